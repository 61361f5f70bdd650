package mantest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cpuguy83/go-md2man/v2/md2man"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Page is a manual page made of a file of the sources: Settings of a file of settings, Text of a page in Markdown.
type Page struct {
	Name, Section, Short, Source string
	Also                         string // other pages
	Make                         func(text string) (string, error)
}

// Write writes the pages as Manual does, with their sources in the folder root, and returns each as roff by its name.
func Write(t *testing.T, root string, pages ...Page) map[string]string {
	t.Helper()
	dir, when := target(t)
	out := map[string]string{}
	for _, p := range pages {
		body := must.Get(p.Make(string(must.Get(os.ReadFile(filepath.Join(root, p.Source)))(t))))(t)
		text := fmt.Sprintf("%% %q %q %q %q %q\n\n# NAME\n%s - %s\n\n%s\n# SEE ALSO\n%s\n",
			strings.ToUpper(p.Name), p.Section, when.Format("Jan 2006"), "slurmbridge", "slurmbridge", p.Name, p.Short, body,
			p.Also)
		roff := md2man.Render([]byte(text))
		must.OK(t, os.WriteFile(filepath.Join(dir, p.Name+"."+p.Section), roff, 0o600))
		out[p.Name+"."+p.Section] = string(roff)
	}
	return out
}

var setting = regexp.MustCompile(`^([a-z_]+): (.+)$`)

// Settings makes a page of a file in YAML: its first comment, and each setting with its default and the comment above
// it.
func Settings(text string) (string, error) {
	head, rest, _ := strings.Cut(text, "\n\n")
	uncommented := regexp.MustCompile(`(?m)^# ?`)
	out := "# DESCRIPTION\n" + markdown(uncommented.ReplaceAllString(head, "")) + "\n# SETTINGS\n"
	said := ""
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, "\n")
		m := setting.FindStringSubmatch(line)
		switch {
		case line == "":
		case strings.HasPrefix(line, "#"):
			said += uncommented.ReplaceAllString(line, "") + "\n"
		case m == nil || said == "":
			return "", fmt.Errorf("it is no setting with a comment: %q", line)
		default:
			value := cmp.Or(strings.Trim(m[2], `"`), "(empty)") // roff would take the quotes as its own
			out += "\n### " + escape.Replace(m[1]+": "+value) + "\n" + markdown(said)
			said = ""
		}
	}
	return out, nil
}

// Text makes a page of one in Markdown: links are their text, commands stand without their names.
func Text(text string) (string, error) {
	title, rest, ok := strings.Cut(text, "\n")
	if !ok || !strings.HasPrefix(title, "# ") {
		return "", fmt.Errorf("it begins with %q, not with a title", title)
	}
	for _, r := range []struct{ from, to string }{
		{`(?m)^## (.*)$`, "# $1"}, {"(?m)^```sh .*$", "```"}, {`\[([^\]]*)\]\([^)]*\)`, "$1"},
	} {
		rest = regexp.MustCompile(r.from).ReplaceAllString(rest, r.to)
	}
	return "# DESCRIPTION\n" + rest, nil
}
