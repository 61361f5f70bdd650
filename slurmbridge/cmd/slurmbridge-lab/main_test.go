package main

import (
	"bytes"
	"image/png"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage/mantest"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// call runs one command within this process.
func call(args ...string) (status int, out, errOut string) {
	var o, e bytes.Buffer
	status = run(args, &o, &e)
	return status, o.String(), e.String()
}

// Each command explains itself, as one of slurmbridge's, and is listed there.
func TestHelp(t *testing.T) {
	listed := 0
	var all func(c *cobra.Command)
	all = func(c *cobra.Command) {
		path := strings.TrimPrefix(c.CommandPath(), "slurmbridge ")
		if !cli.Handed(c) {
			status, out, errOut := call(append(strings.Fields(path), "--help")...)
			if status != 0 || errOut != "" || c.Long == "" || !strings.HasPrefix(out, c.Long) || !strings.Contains(out, "Usage:\n  slurmbridge "+path) {
				t.Errorf("%s --help: %d %q %q", path, status, out, errOut)
			}
		}
		if short, ok := cli.Lab[path]; ok {
			listed++
			if short != c.Short {
				t.Errorf("%s: slurmbridge lists it as %q, it is %q", path, short, c.Short)
			}
		}
		for _, sub := range c.Commands() {
			all(sub)
		}
	}
	all(newRoot(nil, nil))
	if listed != len(cli.Lab) {
		t.Errorf("%d of the %d commands that slurmbridge hands over are here", listed, len(cli.Lab))
	}
	if status, out, _ := call("--version"); status != 0 || out != "slurmbridge "+version+"\n" {
		t.Errorf("--version: %d %q", status, out)
	}
}

func TestManual(t *testing.T) { mantest.Manual(t, newRoot(io.Discard, io.Discard), "") }

func TestUnknownSubcommandIsRefused(t *testing.T) {
	status, out, errOut := call("interference", "nope")
	if status != 2 || out != "" || !strings.Contains(errOut, `unknown command "nope"`) || strings.Count(errOut, "\n") != 1 {
		t.Errorf("%d %q %q", status, out, errOut)
	}
}

func TestProfilesPlot(t *testing.T) {
	t.Setenv("SLURMBRIDGE_DATABASE", filepath.Join(t.TempDir(), "db"))
	st, err := store.Open(t.Context(), os.Getenv("SLURMBRIDGE_DATABASE"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	lammps, _ := apps.ByName("lammps")
	if err := st.Import(t.Context(), []*rlcore.Profile{lammps}); err != nil {
		t.Fatal(err)
	}
	st.Close()
	for name, start := range map[string]string{"p.png": "\x89PNG", "p.svg": "<?xml"} {
		out := filepath.Join(t.TempDir(), name)
		if status, _, errOut := call("profiles", "plot", "lammps", "-o", out); status != 0 || errOut != "" {
			t.Fatalf("%s: %d %q", name, status, errOut)
		}
		body, err := os.ReadFile(out)
		if err != nil || !bytes.HasPrefix(body, []byte(start)) {
			t.Errorf("%s: %.20q %v", name, body, err)
		}
		if name == "p.png" {
			if _, err := png.Decode(bytes.NewReader(body)); err != nil {
				t.Error(err)
			}
		}
	}
	for _, args := range [][]string{{"-o", "x.gif"}, {}} {
		if status, _, errOut := call(append([]string{"profiles", "plot", "lammps"}, args...)...); status != 2 || !strings.Contains(errOut, ".png") {
			t.Errorf("%v: %d %s", args, status, errOut)
		}
	}
}
