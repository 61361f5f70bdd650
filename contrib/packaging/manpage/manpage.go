// Package manpage writes the manual pages of a program from its commands' own help,
// for the packages.
package manpage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Write writes one page of section 8 for each command of root into dir, NAME-COMMAND.8,
// dated when. Root's gets more as well, sections in Markdown ("# FILES"). It changes
// root's texts. A command with the annotation "elsewhere" is another program's, which has
// its page.
func Write(root *cobra.Command, dir, more string, when time.Time) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	root.CompletionOptions.DisableDefaultCmd = true
	var errs []error
	each(root, func(c *cobra.Command) {
		if _, other := c.Annotations["elsewhere"]; other || c.Hidden || c.Name() == "help" {
			return
		}
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		var b bytes.Buffer
		if c != root {
			more = ""
		}
		errs = append(errs, page(c, &b, more, &doc.GenManHeader{
			Title: strings.ToUpper(name), Section: "8", Date: &when, Source: root.Name(), Manual: "System administration",
		}), os.WriteFile(filepath.Join(dir, name+".8"), b.Bytes(), 0o600))
	})
	return errors.Join(errs...)
}

func each(c *cobra.Command, do func(*cobra.Command)) {
	do(c)
	for _, sub := range c.Commands() {
		each(sub, do)
	}
}

// page writes one command's page.
func page(c *cobra.Command, b *bytes.Buffer, more string, h *doc.GenManHeader) error {
	c.DisableAutoGenTag = true // it would say when, and that it was generated
	if c.Long == "" {
		c.Long = c.Short + "."
	}
	c.Long = markdown(c.Long) + commands(c) + more
	return doc.GenMan(c, h, b)
}

// commands lists a command's own.
func commands(c *cobra.Command) string {
	var b strings.Builder
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(&b, "\n**%s**\n: %s.\n", escape.Replace(sub.Name()), escape.Replace(sub.Short))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n# COMMANDS\n" + b.String() + "\n"
}

// markdown is a help text as the library wants it: what is indented is set as it
// stands, and no letter has a meaning of its own.
func markdown(help string) string {
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
			text = escape.Replace(text)
		}
		if text != "" {
			indented = is
		}
		fmt.Fprintln(&b, text)
	}
	return b.String()
}

var escape = strings.NewReplacer("_", `\_`, "*", `\*`, "`", "\\`", "<", `\<`, "#", `\#`)
