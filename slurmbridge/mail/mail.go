// Package mail writes to the owners of jobs with idle GPUs, and reports what ended jobs used. The mails contain
// text of users (names, addresses): none of it reaches a shell, a header or an option of a mail program.
package mail

import (
	"errors"
	"fmt"
	"mime"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// Kind is the subject of a mail.
type Kind string

// The kinds, which are also the names of their templates.
const (
	Idle   Kind = "idle"   // a running job's GPUs are idle
	Report Kind = "report" // the job has ended
)

// Mail is a mail to the owner of a job. A job array gets one mail.
type Mail struct {
	Kind Kind
	Job  string // the job's number, without a task's
	User string
	Idle []job.Idle    // tasks with idle GPUs, if Kind is Idle
	Runs []history.Run // ended runs, if Kind is Report
}

// Ref returns the job or task that has the --mail-user to send to.
func (m *Mail) Ref() string {
	if m.Kind == Idle {
		return m.Idle[0].Ref
	}
	return m.Runs[0].Ref
}

// OfIdle returns the mails about idle jobs, without jobs that opted out.
func OfIdle(all []job.Idle) []Mail {
	return group(all, Idle, func(m *Mail, x job.Idle) { m.Idle = append(m.Idle, x) },
		func(x *job.Idle) (ref, user string) {
			if x.NoMail {
				return "", ""
			}
			return x.Ref, x.User
		})
}

// OfRuns returns the mails about ended runs.
func OfRuns(all []history.Run) []Mail {
	return group(all, Report, func(m *Mail, x history.Run) { m.Runs = append(m.Runs, x) },
		func(x *history.Run) (ref, user string) { return x.Ref, x.User })
}

// group makes one mail for each job and user. Entries for which owner returns "" are left out.
func group[T any](all []T, kind Kind, add func(*Mail, T), owner func(*T) (ref, user string)) (out []Mail) {
	for i := range all {
		ref, user := owner(&all[i])
		number, _, _ := strings.Cut(ref, "_")
		if number == "" || user == "" {
			continue
		}
		at := slices.IndexFunc(out, func(m Mail) bool { return m.Job == number && m.User == user })
		if at < 0 {
			out = append(out, Mail{Kind: kind, Job: number, User: user})
			at = len(out) - 1
		}
		add(&out[at], all[i])
	}
	return out
}

// address matches addresses that mailx doesn't take for an option, file or command ("-f", "/file", "|command").
var address = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._%+=-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?$`)

// Bounds on the addresses of a mail.
const (
	mostAddresses  = 5
	longestAddress = 254
)

// Addresses returns the valid addresses of a job's --mail-user, else its owner's address; nil = this is invalid, too.
func Addresses(mailUser, user, domain string) []string {
	own := user
	if domain != "" && !strings.Contains(user, "@") {
		own += "@" + domain
	}
	for _, list := range []string{mailUser, own} {
		var out []string
		for a := range strings.SplitSeq(list, ",") {
			if address.MatchString(a) && len(a) <= longestAddress && len(out) < mostAddresses {
				out = append(out, a)
			}
		}
		if out != nil {
			return out
		}
	}
	return nil
}

// Template is a text/template with a definition for each Kind. The first line of its output is "Subject: SUBJECT".
type Template struct{ t *template.Template }

var errTemplate = errors.New("invalid mail template")

// ParseTemplate parses a template and tries it on a mail of each Kind.
func ParseTemplate(text string) (*Template, error) {
	parsed, err := template.New("mail").Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTemplate, err)
	}
	t := &Template{parsed}
	run := history.Run{Outcome: &history.Outcome{}}
	for _, m := range []Mail{{Kind: Idle, Idle: make([]job.Idle, 2)}, {Kind: Report, Runs: []history.Run{run, run}}} {
		if _, _, err := t.Write(&m, time.Now()); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// data is what a template can use. Each text is one line of printable characters.
type data struct {
	Job, User string
	Name      string // the job's
	GPUs      string // the number of idle GPUs, for example "2 GPUs"
	Node      string
	Since     string // the time of the GPUs' last use
	For       string
	Tasks     []string // further tasks of the array
	Lines     []string // of a report
}

const mostTasks = 20

// Write makes a mail's subject and text.
func (t *Template) Write(m *Mail, now time.Time) (subject, body string, err error) {
	d := data{Job: clean(m.Job), User: clean(m.User)}
	switch m.Kind {
	case Idle:
		x := &m.Idle[0]
		d.Job = clean(x.Ref)
		d.Name = clean(x.Name)
		d.Node = clean(x.Node)
		d.GPUs = usage.GPUs(x.GPUs)
		d.Since = x.Since.Local().Format("2006-01-02 15:04")
		d.For = strings.TrimSuffix(now.Sub(x.Since).Round(time.Minute).String(), "0s")
		for i := range m.Idle[1:min(len(m.Idle), mostTasks)] {
			d.Tasks = append(d.Tasks, clean(m.Idle[1+i].Ref))
		}
	case Report:
		for i := range m.Runs[:min(len(m.Runs), mostTasks)] {
			for _, line := range usage.Tell(&m.Runs[i]) {
				d.Lines = append(d.Lines, clean(line))
			}
		}
		if more := len(m.Runs) - mostTasks; more > 0 {
			d.Lines = append(d.Lines, fmt.Sprintf("and %d more", more))
		}
	}
	var b strings.Builder
	if err := t.t.ExecuteTemplate(&b, string(m.Kind), &d); err != nil {
		return "", "", fmt.Errorf("%w: %w", errTemplate, err)
	}
	first, body, _ := strings.Cut(b.String(), "\n")
	subject, named := strings.CutPrefix(first, "Subject: ")
	if !named || subject == "" {
		return "", "", fmt.Errorf("%w: the first line of %q must be \"Subject: \" and a text", errTemplate, m.Kind)
	}
	return clean(subject), guard(strings.TrimPrefix(body, "\n")), nil
}

// longest is the maximum length of a user's text, or a subject, in a mail, in characters.
const longest = 200

// clean turns a text into one line of printable characters, of limited length.
func clean(s string) string {
	letters := []rune(usage.Clean(s))
	return string(letters[:min(len(letters), longest)])
}

// guard indents lines that mail programs take for commands: GNU mail obeys a line that begins with "~" even from a
// pipe, and a single dot ends a text.
func guard(body string) string {
	lines := strings.Split(body, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "~") || line == "." {
			lines[i] = " " + line
		}
	}
	return strings.Join(lines, "\n")
}

func message(to []string, subject, body string) string {
	return "To: " + strings.Join(to, ", ") + "\nSubject: " + mime.QEncoding.Encode("utf-8", subject) +
		"\nAuto-Submitted: auto-generated\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n" +
		"Content-Transfer-Encoding: 8bit\n\n" + body
}
