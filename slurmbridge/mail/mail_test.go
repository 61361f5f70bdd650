package mail

import (
	"bufio"
	"context"
	netmail "net/mail"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)

func idle(ref, user string) job.Idle {
	return job.Idle{Ref: ref, User: user, Name: "train", Node: "n1", GPUs: 2, Since: noon.Add(-90 * time.Minute)}
}

func ran(ref, user string, record int64) history.Run {
	return history.Run{
		ID: record, Ref: ref, User: user, Node: "n1", Start: noon.Add(-time.Hour), End: noon, Outcome: &history.Outcome{},
		Ending: history.Ending{How: job.Description{State: "COMPLETED"}},
	}
}

func book(t *testing.T) *Book {
	t.Helper()
	db := must.Get(database.Open(t.Context(), filepath.Join(t.TempDir(), "db")))(t)
	t.Cleanup(func() { db.Close() })
	return &Book{db}
}

func TestWhereMailsGo(t *testing.T) {
	five := slices.Repeat([]string{"a@x.org"}, 5)
	for name, c := range map[string]struct {
		mailUser, user, domain string
		want                   []string
	}{
		"the job's":                {"ann.b+x@mail.example.org", "ann", "example.org", []string{"ann.b+x@mail.example.org"}},
		"two of them":              {"ann@x.org,bob", "ann", "", []string{"ann@x.org", "bob"}},
		"the user's":               {"", "ann", "example.org", []string{"ann@example.org"}},
		"a user of this machine":   {"", "ann", "", []string{"ann"}},
		"a user with a domain":     {"", "ann@ad.org", "example.org", []string{"ann@ad.org"}},
		"an option":                {"-fboss@x.org", "ann", "", []string{"ann"}},
		"a command":                {"|reboot", "ann", "", []string{"ann"}},
		"a file":                   {"/etc/passwd", "ann", "", []string{"ann"}},
		"a folder of mails":        {"+inbox", "ann", "", []string{"ann"}},
		"a header":                 {"ann@x.org\nBcc: all@x.org", "ann", "", []string{"ann"}},
		"letters of a shell":       {"$(reboot)@x.org,`id`@x.org,a;b@x.org", "ann", "", []string{"ann"}},
		"one good, one bad":        {"|reboot,ann@x.org", "bob", "", []string{"ann@x.org"}},
		"as many as one may write": {strings.Repeat("a@x.org,", 100), "ann", "", five},
		"a very long one":          {strings.Repeat("a", 300) + "@x.org", "ann", "", []string{"ann"}},
		"a user that is no name":   {"", "ann\nBcc: x", "", nil},
	} {
		must.Equal(t, Addresses(c.mailUser, c.user, c.domain), c.want, name)
	}
}

// The built-in text says what there is to say, once for an array.
func TestTheTextSaysWhatThereIs(t *testing.T) {
	built := must.Get(ParseTemplate(etc.Mail))(t)
	kept := idle("9", "ann")
	kept.NoMail = true
	mails := OfIdle([]job.Idle{idle("7", "ann"), kept, idle("8_1", "bob"), idle("8_2", "bob")})
	if len(mails) != 2 {
		t.Fatalf("%+v", mails)
	}
	subject, body, err := built.Write(&mails[0], noon)
	must.OK(t, err)
	must.Equal(t, subject, "Job 7 has not used 2 GPUs for 1h30m")
	for _, want := range []string{
		"Your job 7 (train) holds 2 GPUs on n1\nand has done nothing there since 2026-01-02 10:30.\n\n",
		"scancel 7\n", "--comment=share:no-mail",
	} {
		must.Contain(t, body, want)
	}
	_, body, err = built.Write(&mails[1], noon)
	if err != nil || !strings.Contains(body, "10:30. So do these tasks of its array:\n 8_2\n") {
		t.Errorf("an array: %v\n%s", err, body)
	}
	report := OfRuns([]history.Run{ran("8_1", "bob", 1)})[0]
	subject, body, err = built.Write(&report, noon)
	must.OK(t, err)
	if subject != "What job 8 used" ||
		!strings.HasPrefix(body, "job 8_1 completed after 1h0m0s on n1\n  used    unknown: ") {
		t.Errorf("%s\n%s", subject, body)
	}
}

// Whatever users write, a mail has the headers that we give it, and no line that is a command to a mail program.
func TestNoNameBecomesAHeader(t *testing.T) {
	site := must.Get(ParseTemplate(`{{define "idle"}}Subject: {{.Name}} of {{.User}}

{{.Name}}
{{.Node}}
{{end}}{{define "report"}}Subject: x
{{range .Lines}}{{.}}
{{end}}{{end}}`))(t)
	rapid.Check(t, func(rt *rapid.T) {
		word := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
			"x\nBcc: all@x.org\n\n", "~!reboot", "~r/etc/passwd", ".", "x\r\n.\r\n", "\x1b]0;x\a", "a\u202eb\u2028c",
			"$(reboot)", "ä", "=?utf-8?q?=0ABcc:_x?=", strings.Repeat("long ", 1000),
		}))
		x := idle("7", word.Draw(rt, "user"))
		x.Name, x.Node = word.Draw(rt, "name"), word.Draw(rt, "node")
		subject, body, err := site.Write(&Mail{Kind: Idle, Job: "7", User: x.User, Idle: []job.Idle{x}}, noon)
		if x.Name == "" && x.User == "" && err == nil {
			return
		}
		must.OK(rt, err)
		text := message([]string{"ann@x.org"}, subject, body)
		m, err := netmail.ReadMessage(bufio.NewReader(strings.NewReader(text)))
		must.OK(rt, err)
		if len(m.Header) != 6 || m.Header.Get("To") != "ann@x.org" || strings.ContainsAny(subject, "\r\n\x1b") {
			rt.Fatalf("%q", m.Header)
		}
		lines := strings.Split(body, "\n")
		if len(lines) != 3 {
			rt.Fatalf("%d lines: %q", len(lines), body)
		}
		for _, line := range lines {
			if strings.HasPrefix(line, "~") || line == "." || len([]rune(line)) > longest+1 {
				rt.Fatalf("%q", line)
			}
		}
	})
}

func TestBadTemplates(t *testing.T) {
	for _, text := range []string{
		"", "{{", `{{define "idle"}}Subject: x{{end}}`, `{{define "idle"}}x{{end}}{{define "report"}}Subject: x{{end}}`,
		`{{define "idle"}}Subject: {{.Password}}{{end}}{{define "report"}}Subject: x{{end}}`,
	} {
		must.Fail(t, must.Err(ParseTemplate(text)), "", text)
	}
}

// A job's owner gets a mail a day, and another kind of mail besides.
func TestOnceADay(t *testing.T) {
	b := book(t)
	sent := func(m Mail, now time.Time) bool { return must.Get(b.Claim(t.Context(), &m, now))(t) }
	of := func(ref, user string) Mail { return OfIdle([]job.Idle{idle(ref, user)})[0] }
	for i, c := range []struct {
		after time.Duration
		mail  Mail
		want  bool
	}{
		{0, of("7_1", "ann"), true},
		{time.Hour, of("7_1", "ann"), false},
		{time.Hour, of("7_2", "ann"), false}, // of the same array
		{time.Hour, of("8", "ann"), true},
		{time.Hour, OfRuns([]history.Run{ran("7_1", "ann", 1)})[0], true},
		{23 * time.Hour, of("7_1", "ann"), false},
		{25 * time.Hour, of("7_1", "ann"), true},
		{26 * time.Hour, of("7_1", "ann"), false},
		{27 * time.Hour, of("7", "bob"), true}, // slurmctld began to count anew
	} {
		now := noon.Add(c.after)
		if due := must.Get(Due(t.Context(), b.DB, &c.mail, now))(t); due != c.want || sent(c.mail, now) != c.want {
			t.Errorf("%d: after %s: not %v", i, c.after, c.want)
		}
	}
	m := of("9", "ann")
	if now := noon.Add(30 * time.Hour); !sent(m, now) || b.Drop(t.Context(), &m, now) != nil || !sent(m, now) {
		t.Error("a mail that could not be sent isn't tried again")
	}
}

// A run is reported once; of an array those runs that ended since its last mail.
func TestRunsAreReportedOnce(t *testing.T) {
	b := book(t)
	all := []history.Run{ran("7_1", "ann", 1)}
	claim := func(now time.Time) (refs []string) {
		m := OfRuns(all)[0]
		if must.Get(b.Claim(t.Context(), &m, now))(t) {
			for i := range m.Runs {
				refs = append(refs, m.Runs[i].Ref)
			}
		}
		return refs
	}
	must.Equal(t, claim(noon), []string{"7_1"})
	all = append(all, ran("7_2", "ann", 2), ran("7_3", "ann", 3))
	must.Equal(t, claim(noon.Add(time.Hour)), nil)
	must.Equal(t, claim(noon.Add(25*time.Hour)), []string{"7_2", "7_3"})
	must.Equal(t, claim(noon.Add(50*time.Hour)), nil)
}

// A user of thousands of jobs isn't sent thousands of mails, and others get theirs.
func TestMailsOfAUserAreBounded(t *testing.T) {
	b := book(t)
	n := 0
	for i := range 2 * mostPerUser {
		m := OfRuns([]history.Run{ran(strconv.Itoa(100+i), "ann", int64(i))})[0]
		if must.Get(b.Claim(t.Context(), &m, noon.Add(time.Duration(i)*time.Second)))(t) {
			n++
		}
	}
	other := OfIdle([]job.Idle{idle("7", "bob")})[0]
	if n != mostPerUser || !must.Get(b.Claim(t.Context(), &other, noon))(t) {
		t.Errorf("%d mails", n)
	}
}

// Two processes at once send one mail.
func TestTwoAtOnce(t *testing.T) {
	b := book(t)
	var all sync.WaitGroup
	sent := make(chan bool, 8)
	for range cap(sent) {
		all.Go(func() {
			m := OfIdle([]job.Idle{idle("7", "ann")})[0]
			claimed, err := b.Claim(context.Background(), &m, noon)
			sent <- claimed && err == nil
		})
	}
	all.Wait()
	close(sent)
	n := 0
	for is := range sent {
		if is {
			n++
		}
	}
	must.Equal(t, n, 1, "mails")
}

// program is a mail program that writes down its arguments, a line each, and its input.
func program(t *testing.T, name, more string) (path string, said func() string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, name)
	must.OK(t, os.WriteFile(path, []byte("#!/bin/sh\n(printf '[%s]\\n' \"$@\"; cat) >>"+dir+"/said\n"+more), 0o755))
	return path, func() string { return string(must.Get(os.ReadFile(filepath.Join(dir, "said")))(t)) }
}

// What is sent reaches the program as arguments and input, and nothing of it a shell.
func TestNothingReachesAShell(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	evil := "$(touch " + victim + "); `touch " + victim + "`"
	mailx, said := program(t, "mail", "")
	must.Get(Send(t.Context(), mailx, []string{"ann", "bob@x.org"}, evil, "text\n"))(t)
	must.Equal(t, said(), "[-s]\n["+evil+"]\n[ann]\ntext\n[-s]\n["+evil+"]\n[bob@x.org]\ntext\n")
	sendmail, said := program(t, "sendmail", "")
	must.Get(Send(t.Context(), sendmail, []string{"ann", "bob@x.org"}, evil+" ä", "text\n"))(t)
	args := "[-i]\n[--]\n[ann]\n[bob@x.org]\n"
	if got := said(); !strings.HasPrefix(got, args+"To: ann, bob@x.org\nSubject: =?utf-8?q?$(touch") ||
		!strings.HasSuffix(got, "\n\ntext\n") {
		t.Error(got)
	}
	must.Is(t, must.Err(os.Stat(victim)), os.ErrNotExist, "what a shell would make that saw the subject")
	fails, _ := program(t, "mail", "[ \"$3\" = bob ] && exit\necho no such user >&2\nexit 67\n")
	for to, want := range map[string]bool{"ann": false, "ann,bob": true, "bob,ann": true} {
		sent, err := Send(t.Context(), fails, strings.Split(to, ","), "x", "")
		if sent != want || err == nil || !strings.Contains(err.Error(), "no such user") {
			t.Errorf("to %s: sent %v, %v", to, sent, err)
		}
	}
}

// A mail program that has taken a mail, and leaves a process behind with its output, isn't called for that mail again.
func TestSentThoughSomethingIsLeftBehind(t *testing.T) {
	leaves, _ := program(t, "mail", "sleep 5 &\n")
	must.Equal(t, must.Get(Send(t.Context(), leaves, []string{"ann"}, "x", ""))(t), true)
}

func TestThePathOfTheMailProgram(t *testing.T) {
	own, _ := program(t, "mail", "")
	for _, c := range []struct{ site, mailProg, want string }{
		{own, "/bin/false", own}, {"", own, own}, {"/absent/mail", own, ""},
	} {
		if got, err := Program(c.site, c.mailProg); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q %v", c, got, err)
		}
	}
	before := sendmails
	t.Cleanup(func() { sendmails = before })
	mta, _ := program(t, "sendmail", "")
	sendmails = []string{"/absent/sendmail", mta}
	must.Equal(t, must.Get(Program("", "/absent/mail"))(t), mta, "without MailProg")
	sendmails = nil
	must.Fail(t, must.Err(Program("", "/absent/mail")), "", "without any")
}
