// Package mail writes to the owners of jobs: that a job's GPUs do nothing, and what a job used that has ended. What
// users wrote (names, addresses) is in these mails: it reaches no shell, no header and no option of a mail program.
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

// Kind is what a mail is about.
type Kind string

// The kinds, which are also the names of their templates.
const (
	Idle   Kind = "idle"   // the job runs, and its GPUs do nothing
	Report Kind = "report" // the job has ended
)

// Mail is to the owner of a job; an array is one job.
type Mail struct {
	Kind Kind
	Job  string // its number, without a task's
	User string
	Idle []job.Idle     // its tasks whose GPUs do nothing
	Runs []history.Told // that are reported
}

// Ref is the job or task whose --mail-user the mail goes to.
func (m *Mail) Ref() string {
	if m.Kind == Idle {
		return m.Idle[0].Ref
	}
	return m.Runs[0].Ref
}

// OfIdle are the mails about jobs that do nothing, but for owners who want no mail.
func OfIdle(all []job.Idle) []Mail {
	return group(all, Idle, func(m *Mail, x job.Idle) { m.Idle = append(m.Idle, x) },
		func(x *job.Idle) (ref, user string) {
			if x.NoMail {
				return "", ""
			}
			return x.Ref, x.User
		})
}

// OfRuns are the mails about runs that have ended.
func OfRuns(all []history.Told) []Mail {
	return group(all, Report, func(m *Mail, x history.Told) { m.Runs = append(m.Runs, x) },
		func(x *history.Told) (ref, user string) { return x.Ref, x.User })
}

// group makes a mail for each job and user; an empty ref is left out.
func group[T any](all []T, kind Kind, add func(*Mail, T), of func(*T) (ref, user string)) (out []Mail) {
	for i := range all {
		ref, user := of(&all[i])
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

// address is one that is no option, file or command to any mail program: mailx takes "-f", "/file" and "|command".
var address = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._%+=-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?$`)

// mostAddresses and longestAddress bound to whom a mail goes.
const (
	mostAddresses  = 5
	longestAddress = 254
)

// Addresses are those of a job's --mail-user, or where none of them is fit to be used its owner's; nil = nor is that.
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

// Template makes the text of mails. It is a text/template with one definition for each Kind, whose first line is the
// subject's.
type Template struct{ t *template.Template }

// errTemplate marks a template that makes no mail.
var errTemplate = errors.New("it is no template of mails")

// ParseTemplate reads a template, and tries it.
func ParseTemplate(text string) (*Template, error) {
	parsed, err := template.New("mail").Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTemplate, err)
	}
	t := &Template{parsed}
	for _, m := range []Mail{{Kind: Idle, Idle: make([]job.Idle, 2)}, {Kind: Report, Runs: make([]history.Told, 2)}} {
		if _, _, err := t.Write(&m, time.Now()); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// data are what a template may say: text of one line each, without anything that moves a terminal's cursor.
type data struct {
	Job, User string
	Name      string // the job's
	GPUs      string // that do nothing, for example "2 GPUs"
	Node      string
	Since     string // when they did something last
	For       string
	Tasks     []string // further tasks of the array
	Lines     []string // of a report
}

// mostTasks bounds the tasks of an array that a mail names, or tells of.
const mostTasks = 20

// Write makes a mail's subject and text.
func (t *Template) Write(m *Mail, now time.Time) (subject, body string, err error) {
	d := data{Job: clean(m.Job), User: clean(m.User)}
	switch m.Kind {
	case Idle:
		x := &m.Idle[0]
		d.Job, d.Name, d.Node, d.GPUs = clean(x.Ref), clean(x.Name), clean(x.Node), usage.GPUs(x.GPUs)
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
		return "", "", fmt.Errorf("%w: the first line of %q is not Subject: and a text", errTemplate, m.Kind)
	}
	return clean(subject), guard(strings.TrimPrefix(body, "\n")), nil
}

// longest is how long a text of a user's, or a subject, may be in a mail, in letters.
const longest = 200

// clean is a text as one line of visible letters.
func clean(s string) string {
	letters := []rune(usage.Clean(s))
	return string(letters[:min(len(letters), longest)])
}

// guard keeps lines from being commands to a mail program: GNU mail obeys a line that begins with "~" from a pipe, too,
// and a single dot ends a text.
func guard(body string) string {
	lines := strings.Split(body, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "~") || line == "." {
			lines[i] = " " + line
		}
	}
	return strings.Join(lines, "\n")
}

// message is a mail as sendmail takes it.
func message(to []string, subject, body string) string {
	return "To: " + strings.Join(to, ", ") + "\nSubject: " + mime.QEncoding.Encode("utf-8", subject) +
		"\nAuto-Submitted: auto-generated\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n" +
		"Content-Transfer-Encoding: 8bit\n\n" + body
}
