package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// post is a site whose Slurm has a MailProg that writes mails down.
type post struct {
	t    *testing.T
	dir  string
	conf string
	idle httpapi.IdleReport // what the daemon says
	url  string
}

// newPost makes one; more are lines of its slurm.conf. Job 7 has a --mail-user.
func newPost(t *testing.T, more ...string) *post {
	p := &post{t: t, dir: t.TempDir(), conf: conf(t), idle: httpapi.IdleReport{At: time.Now()}}
	p.mailProg("")
	fakeSlurm(t, `case "$*" in
"show config") echo "MailProg = `+p.dir+`/mail
MailDomain = example.org
`+strings.Join(more, "\n")+`"; exit 0 ;;
"--all show job 7") echo "JobId=7 JobName=x
   UserId=ann(1000)
   MailUser=ann@elsewhere.org MailType=END

"; exit 0 ;;
"--all show job 66") echo "Unable to contact slurm controller (connect failure)" >&2; exit 1 ;;
*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
esac`)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == httpapi.IdlePath {
			_ = json.NewEncoder(w).Encode(p.idle)
		}
	}))
	t.Cleanup(srv.Close)
	p.url = srv.URL
	return p
}

// mailProg writes the mail program; what it does last is more.
func (p *post) mailProg(more string) {
	must.OK(p.t, os.WriteFile(filepath.Join(p.dir, "mail"),
		[]byte("#!/bin/sh\n(printf '[%s]' \"$@\"; echo; cat) >>"+p.dir+"/said\n"+more+"\n"), 0o755))
}

// idles adds a job that does nothing.
func (p *post) idles(ref, user string) *job.Idle {
	p.idle.Jobs = append(p.idle.Jobs, job.Idle{
		Ref: ref, User: user, Name: "train", Node: "n1", GPUs: 1, Whole: true, Since: time.Now().Add(-2 * time.Hour),
	})
	return &p.idle.Jobs[len(p.idle.Jobs)-1]
}

// ran writes down a run of ann's that ended a minute ago and shared with a job of bob's.
func (p *post) ran(ref string, record int64, terms job.Terms) {
	p.t.Helper()
	cfg := must.Get(config.Load(p.conf, nil))(p.t)
	st := must.Get(store.Open(p.t.Context(), cfg.Database))(p.t)
	defer st.Close()
	start, end := time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	r := history.Run{
		ID: record, Ref: ref, User: "ann", Mode: job.Active, Start: start, End: end, Node: "n1", GPUs: []int{0}, Shares: 50,
		Terms: terms,
	}
	o := history.Outcome{
		Run: record, Ref: ref, User: "ann", Node: "n1", State: "COMPLETED", Start: start, End: end, With: []string{"8"},
		Others: []rlcore.Identity{{App: "secret", Owner: "bob"}},
	}
	must.Get(st.DB().ExecContext(p.t.Context(), `INSERT INTO run (ref, ended, record, detail, outcome)
		VALUES (?, ?, ?, ?, ?)`, ref, end.UnixMilli(), record, database.JSON(&r), database.JSON(&o)))(p.t)
}

// notify calls the command, and returns what it says and the mails that came since the last call.
func (p *post) notify(args ...string) (status int, out, mails string) {
	p.t.Helper()
	_ = os.Remove(p.dir + "/said")
	status, out, errOut := call(append([]string{"notify", "-c", p.conf, "--server", p.url}, args...)...)
	b, err := os.ReadFile(p.dir + "/said")
	if err != nil && !os.IsNotExist(err) {
		p.t.Fatal(err)
	}
	return status, out + errOut, string(b)
}

// A mail on a job that does nothing goes to its --mail-user or its owner, once; none does where the owner wants none.
func TestNotifyOfIdleJobs(t *testing.T) {
	p := newPost(t)
	p.idles("7", "ann").Name = "x\nBcc: y"
	p.idles("9", "bob")
	p.idles("10", "eve").NoMail = true
	status, out, mails := p.notify("--dry-run")
	if status != 0 || mails != "" || strings.Count(out, "To: ") != 2 ||
		!strings.Contains(out, "2 mails would be sent through "+p.dir+"/mail (--dry-run)") {
		t.Errorf("--dry-run: %d %s\n%s", status, out, mails)
	}
	status, out, mails = p.notify()
	if status != 0 || strings.Count(mails, "[-s]") != 2 ||
		!strings.Contains(mails, "[-s][Job 7 has not used a GPU for 2h0m][ann@elsewhere.org]\n"+
			"Your job 7 (x?Bcc: y) holds a GPU on n1\n") ||
		!strings.Contains(mails, "[-s][Job 9 has not used a GPU for 2h0m][bob@example.org]\n") ||
		!strings.Contains(out, "to bob@example.org: Job 9 has not used a GPU for 2h0m\n") {
		t.Errorf("%d %s\n%s", status, out, mails)
	}
	if status, out, mails = p.notify(); status != 0 || mails != "" || out != "" {
		t.Errorf("again: %d %s\n%s", status, out, mails)
	}
}

// Who asked for it gets a report of a job, once: what why says, without others' jobs where Slurm hides them.
func TestNotifyOfRuns(t *testing.T) {
	for conf, others := range map[string]string{"": "8 (secret of bob)", "PrivateData = jobs": "other A"} {
		p := newPost(t, conf)
		p.ran("7", 1, job.Terms{Report: true})
		p.ran("9", 2, job.Terms{})
		status, out, mails := p.notify()
		begin := "[-s][What job 7 used][ann@elsewhere.org]\njob 7 completed after 59m0s on n1, with 50 % of a GPU\n"
		if status != 0 || strings.Count(mails, "[-s]") != 1 || !strings.HasPrefix(mails, begin) ||
			!strings.Contains(mails, "  shared  with "+others+"\n") {
			t.Errorf("%q: %d %s\n%s", conf, status, out, mails)
		}
		if status, out, mails = p.notify(); status != 0 || mails != "" {
			t.Errorf("again: %d %s\n%s", status, out, mails)
		}
	}
}

// A mail that couldn't be handed over is tried again, and others are sent meanwhile.
func TestNotifyTriesAgain(t *testing.T) {
	p := newPost(t)
	p.idles("66", "eve") // Slurm doesn't answer for it
	p.idles("7", "ann")
	p.mailProg("echo no disk space >&2; exit 75")
	status, out, _ := p.notify()
	if status != 1 || !strings.Contains(out, "mail about job 7: ") || !strings.Contains(out, "no disk space") ||
		!strings.Contains(out, "mail about job 66: scontrol show job") {
		t.Errorf("%d %s", status, out)
	}
	p.mailProg("")
	if status, out, mails := p.notify(); status != 1 || strings.Count(mails, "[-s]") != 1 ||
		!strings.Contains(mails, "[ann@elsewhere.org]") {
		t.Errorf("%d %s\n%s", status, out, mails)
	}
}

// The standby of two daemons sends nothing, and neither does one that doesn't know how jobs are now.
func TestNotifyOnTheOtherController(t *testing.T) {
	p := newPost(t)
	p.idles("7", "ann")
	p.ran("9", 1, job.Terms{Report: true})
	p.idle.Standby = "head1"
	if status, out, mails := p.notify(); status != 0 || mails != "" ||
		!strings.Contains(out, "standby: the daemon of head1 decides") {
		t.Errorf("%d %s\n%s", status, out, mails)
	}
	p.idle.Standby, p.idle.At = "", time.Now().Add(-3*time.Hour)
	status, out, mails := p.notify()
	if status != 1 || strings.Count(mails, "[-s]") != 1 || !strings.Contains(mails, "What job 9 used") ||
		!strings.Contains(out, "the daemon's last poll was 3h0m0s ago") {
		t.Errorf("%d %s\n%s", status, out, mails)
	}
}

// What is wrong with the settings is said, and nothing is sent.
func TestNotifySettings(t *testing.T) {
	p := newPost(t)
	p.idles("7", "ann")
	bad := filepath.Join(p.dir, "bad.tmpl")
	must.OK(t, os.WriteFile(bad, []byte("{{"), 0o600))
	for setting, says := range map[string]string{
		"MAIL_PROGRAM=/absent/mail": "SLURMBRIDGE_MAIL_PROGRAM: ", "MAIL_TEMPLATE=/absent": "SLURMBRIDGE_MAIL_TEMPLATE: ",
		"MAIL_TEMPLATE=" + bad: bad + ": it is no template", "MAIL_DOMAIN=a b": "takes a domain",
	} {
		name, value, _ := strings.Cut(setting, "=")
		t.Run(name, func(t *testing.T) {
			t.Setenv("SLURMBRIDGE_"+name, value)
			if status, out, mails := p.notify(); status == 0 || mails != "" || !strings.Contains(out, says) {
				t.Errorf("%d %s\n%s", status, out, mails)
			}
		})
	}
	own := filepath.Join(p.dir, "own.tmpl")
	const text = `{{define "idle"}}Subject: {{.User}}!{{end}}{{define "report"}}Subject: x{{end}}`
	must.OK(t, os.WriteFile(own, []byte(text), 0o600))
	t.Setenv("SLURMBRIDGE_MAIL_TEMPLATE", own)
	if status, out, mails := p.notify(); status != 0 || mails != "[-s][ann!][ann@elsewhere.org]\n" {
		t.Errorf("the site's text: %d %s\n%s", status, out, mails)
	}
	if _, out, _ := p.notify("--json"); strings.TrimSpace(out) != "[]" {
		t.Error(out)
	}
}
