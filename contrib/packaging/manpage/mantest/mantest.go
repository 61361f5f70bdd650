// Package mantest is the test of a program's manual that writes it, too.
package mantest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage"
)

// Manual writes root's pages, into SLURMBRIDGE_WRITE_MAN where that is set (dated
// SOURCE_DATE_EPOCH; more as in manpage.Write), and checks that each says what its command does.
func Manual(t *testing.T, root *cobra.Command, more string) {
	t.Helper()
	dir, keep := os.LookupEnv("SLURMBRIDGE_WRITE_MAN")
	if !keep {
		dir = t.TempDir()
	}
	var when time.Time
	if s := os.Getenv("SOURCE_DATE_EPOCH"); s != "" {
		sec, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		when = time.Unix(sec, 0).UTC()
	}
	if err := manpage.Write(root, dir, more, when); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, root.Name()+"*.8"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, p := range pages {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
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
}
