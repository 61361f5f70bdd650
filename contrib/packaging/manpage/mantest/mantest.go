// Package mantest writes the manual pages of a program from its commands' own help, for the packages, and tests them.
package mantest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Manual writes root's pages, into SLURMBRIDGE_WRITE_MAN where that is set (dated
// SOURCE_DATE_EPOCH), and checks that each says what its command does. Root's page gets more as well, sections in
// Markdown ("# FILES"). The pages of commands for users are of section 1, the others of section 8. Beside the pages it
// writes the shells' completions of root, NAME.bash and so on.
func Manual(t *testing.T, root *cobra.Command, more string, users ...string) {
	t.Helper()
	dir, when := Target(t)
	root.CompletionOptions.DisableDefaultCmd = true
	prepare(root)
	root.Long += more
	file := filepath.Join(dir, root.Name())
	must.OK(t, doc.GenManTreeFromOpts(root, doc.GenManTreeOptions{
		Path: dir, CommandSeparator: "-",
		Header: &doc.GenManHeader{Section: "8", Date: &when, Source: root.Name(), Manual: "System administration"},
	}), root.GenBashCompletionFileV2(file+".bash", true), root.GenFishCompletionFile(file+".fish", true),
		root.GenZshCompletionFile(file+".zsh"))
	pages, err := filepath.Glob(filepath.Join(dir, root.Name()+"*.8"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	n := 0
	for _, p := range pages {
		text := string(must.Get(os.ReadFile(p))(t))
		name := strings.TrimSuffix(filepath.Base(p), ".8")
		must.OK(t, os.Remove(p))
		for _, u := range users {
			u = root.Name() + "-" + u
			text = strings.ReplaceAll(text, u+"(8)", u+"(1)")
			if name == u {
				n++
				text = strings.Replace(text, `"8"`, `"1"`, 1)
				text = strings.Replace(text, "System administration", "User commands", 1)
				p = strings.TrimSuffix(p, "8") + "1"
			}
		}
		must.OK(t, os.WriteFile(p, []byte(text), 0o600))
		if strings.Contains(text, "\\_") || strings.Contains(text, "\\*") {
			t.Errorf("%s shows Markdown's marks", filepath.Base(p))
		}
		for _, section := range []string{".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS"} {
			if !strings.Contains(text, section+"\n") {
				t.Errorf("%s has no %s", filepath.Base(p), section)
			}
		}
		_, description, _ := strings.Cut(text, ".SH DESCRIPTION\n")
		description, _, _ = strings.Cut(description, ".SH ")
		if len(strings.Fields(description)) < 4 {
			t.Errorf("%s says too little: %q", filepath.Base(p), description)
		}
	}
	must.Equal(t, n, len(users), "pages of section 1")
}

// Target is the folder that pages are written to, and their date.
func Target(t *testing.T) (dir string, when time.Time) {
	t.Helper()
	dir, keep := os.LookupEnv("SLURMBRIDGE_WRITE_MAN")
	if !keep {
		dir = t.TempDir()
	}
	must.OK(t, os.MkdirAll(dir, 0o750))
	if s := os.Getenv("SOURCE_DATE_EPOCH"); s != "" {
		when = time.Unix(must.Get(strconv.ParseInt(s, 10, 64))(t), 0).UTC()
	}
	return dir, when
}

// prepare makes Markdown of the texts of a command and those below it.
func prepare(c *cobra.Command) {
	c.DisableAutoGenTag = true // it would add a date, and that it was generated
	c.Long = Markdown(cmp.Or(c.Long, c.Short+".")) + commands(c)
	for _, sub := range c.Commands() {
		prepare(sub)
	}
}

// commands lists a command's own.
func commands(c *cobra.Command) string {
	var b strings.Builder
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(&b, "\n**%s**\n: %s.\n", Escape(sub.Name()), Escape(sub.Short))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n# COMMANDS\n" + b.String() + "\n"
}

// Markdown is a help text as the library wants it: what is indented is set as it
// stands, and no letter has a meaning of its own.
func Markdown(help string) string {
	var b strings.Builder
	indented := false
	for line := range strings.Lines(help) {
		text := strings.TrimRight(line, "\n")
		is := strings.HasPrefix(text, " ") || strings.HasPrefix(text, "\t")
		if is != indented && b.Len() > 0 && text != "" {
			b.WriteString("\n")
		}
		switch {
		case text == "":
		case is:
			text = "    " + text
		default:
			text = Escape(text)
		}
		if text != "" {
			indented = is
		}
		fmt.Fprintln(&b, text)
	}
	return b.String()
}

var special = strings.NewReplacer("_", `\_`, "*", `\*`, "`", "\\`", "<", `\<`, "#", `\#`)

// Escape makes no letter of a text have a meaning of its own in Markdown.
func Escape(text string) string { return special.Replace(text) }
