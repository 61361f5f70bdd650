package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
)

// TestMain turns the test binary into slurmbridge itself where it is called as that,
// so that tests can run it as another user and kill it.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "slurmbridge" {
		main()
	}
	os.Exit(m.Run())
}

// call runs one command within this process.
func call(args ...string) (status int, out, errOut string) {
	var o, e bytes.Buffer
	status = run(args, &o, &e)
	return status, o.String(), e.String()
}

// conf writes a configuration where nothing runs: a free port, no Slurm, a database
// in a folder of its own. more are further lines.
func conf(t *testing.T, more ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	lines := append([]string{
		"listen: " + l.Addr().String(), "bin_dir: " + dir, "database: " + dir + "/db",
		"gate_file: " + dir + "/gate", "wake_file: " + dir + "/wake",
	}, more...)
	file := filepath.Join(dir, "slurmbridge.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Each command explains itself: what it is for, how it is called.
func TestHelp(t *testing.T) {
	var all func(c *cobra.Command, path []string)
	n := 0
	all = func(c *cobra.Command, path []string) {
		n++
		status, out, errOut := call(append(path, "--help")...)
		about := c.Long
		if about == "" {
			about = c.Short
		}
		if status != 0 || errOut != "" || about == "" || !strings.HasPrefix(out, about) || !strings.Contains(out, "Usage:\n  slurmbridge") {
			t.Errorf("%s --help: %d %q %q", strings.Join(path, " "), status, out, errOut)
		}
		for _, sub := range c.Commands() {
			if cli.Handed(sub) {
				continue
			}
			all(sub, append(path[:len(path):len(path)], sub.Name()))
		}
	}
	all(newRoot(nil, nil), nil)
	if n < 13 {
		t.Errorf("%d commands were asked", n)
	}
	if status, out, _ := call("--version"); status != 0 || out != "slurmbridge "+version+"\n" {
		t.Errorf("--version: %d %q", status, out)
	}
}

// With nothing running each command says so, and what to do about it.
func TestNothingRuns(t *testing.T) {
	noDaemon := []string{"no answer from the daemon", "systemctl status slurmbridge", "--server"}
	noSlurm := []string{"is Slurm installed here", "bin_dir"}
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"status"}, noDaemon},
		{[]string{"status", "--json"}, noDaemon},
		{[]string{"why", "4711"}, noDaemon},
		{[]string{"why", "--json", "4711_3"}, noDaemon},
		{[]string{"plan"}, noSlurm},
		{[]string{"open"}, noSlurm},
		{[]string{"doctor"}, noSlurm},
	} {
		file := conf(t)
		status, out, errOut := call(append(c.args, "--config", file)...)
		if status != 1 || out != "" || !strings.HasPrefix(errOut, "slurmbridge: ") || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%v: %d %q %q", c.args, status, out, errOut)
		}
		for _, s := range c.says {
			if !strings.Contains(errOut, s) {
				t.Errorf("%v doesn't say %q: %q", c.args, s, errOut)
			}
		}
	}
	file := conf(t, "listen: \"\"")
	// The second listen is a mistake of its own, told with the file's name.
	if status, _, errOut := call("status", "-c", file); status != 2 || !strings.Contains(errOut, file) {
		t.Errorf("%d %q", status, errOut)
	}
	t.Setenv("SLURMBRIDGE_DATABASE", filepath.Join(t.TempDir(), "absent", "db"))
	if status, _, errOut := call("profiles", "list", "-c", conf(t)); status != 1 || !strings.Contains(errOut, "run this as that user") {
		t.Errorf("profiles without a folder: %d %q", status, errOut)
	}
}

// slurmctld that doesn't answer is not a mistake of the command.
func TestSlurmDown(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"squeue", "sbatch", "scontrol", "scancel"} {
		script := "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n"
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SLURMBRIDGE_BIN_DIR", bin)
	for _, name := range []string{"plan", "open"} {
		status, out, errOut := call(name, "-c", conf(t))
		if status != 1 || out != "" || !strings.Contains(errOut, "Unable to contact slurm controller") {
			t.Errorf("%s: %d %q %q", name, status, out, errOut)
		}
	}
	status, out, _ := call("doctor", "-c", conf(t))
	if status != 2 || !strings.Contains(out, "slurmctld does not answer") || !strings.Contains(out, "systemctl status slurmctld") {
		t.Errorf("doctor: %d %q", status, out)
	}
	status, out, _ = call("doctor", "--json", "-c", conf(t))
	var r struct {
		Findings []struct{ Check, Severity, What, Why string }
		Exit     int
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 2 || r.Exit != 2 || len(r.Findings) != 1 || r.Findings[0].Check != "slurmctld" {
		t.Errorf("doctor --json: %d %v %q", status, err, out)
	}
}

// A mistake in the configuration is named with its file by every command.
func TestConfigMistakes(t *testing.T) {
	for line, says := range map[string]string{
		"leese: 90s":     `there is no setting "leese"`,
		"lease: soon":    "lease",
		"policy: coin":   "policy",
		"mode: agressiv": "mode",
		"max_group: 99":  "max_group",
	} {
		file := conf(t, line)
		for _, args := range [][]string{{"status"}, {"why", "1"}, {"plan"}, {"open"}, {"doctor"}, {"profiles", "list"}, {"serve"}} {
			if line == "policy: coin" && args[0] != "plan" && args[0] != "serve" {
				continue // only who makes a policy knows their names
			}
			status, _, errOut := call(append(args, "-c", file)...)
			if status != 2 || !strings.Contains(errOut, says) || !strings.Contains(errOut, file) {
				t.Errorf("%s, %v: %d %q", line, args, status, errOut)
			}
		}
	}
	status, _, errOut := call("status", "-c", "/nowhere/slurmbridge.yaml")
	if status != 2 || !strings.Contains(errOut, "/nowhere/slurmbridge.yaml") {
		t.Errorf("no such file: %d %q", status, errOut)
	}
	if status, _, errOut := call("plan", "--policy", "coin", "-c", conf(t)); status != 2 || !strings.HasPrefix(errOut, "slurmbridge: --policy: ") {
		t.Errorf("flag: %d %q", status, errOut)
	}
	t.Setenv("SLURMBRIDGE_LEASE", "never")
	if status, _, errOut := call("status", "-c", conf(t)); status != 2 || !strings.Contains(errOut, "SLURMBRIDGE_LEASE") {
		t.Errorf("environment: %d %q", status, errOut)
	}
}

// What is called wrongly is refused, with the way to find out.
func TestCalledWrongly(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"status", "--nope"}, "unknown flag: --nope; see slurmbridge status --help"},
		{[]string{"nonsense"}, `unknown command "nonsense"`},
		{[]string{"statu"}, "Did you mean this? status; see slurmbridge --help"},
		{[]string{"why"}, "1 arg"},
		{[]string{"why", "1", "2"}, "1 arg"},
		{[]string{"open", "now"}, "unknown command"},
		{[]string{"profiles", "show"}, "1 arg(s), received 0; see slurmbridge profiles show --help"},
		{[]string{"profiles", "nope"}, `unknown command "nope" for "slurmbridge profiles"; see slurmbridge profiles --help`},
		{[]string{"status", "--server", "a b://"}, "--server"},
	} {
		status, out, errOut := call(append(c.args, "-c", conf(t))...)
		if status != 2 || out != "" || !strings.Contains(errOut, c.says) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%v: %d %q %q", c.args, status, out, errOut)
		}
	}
	if status, out, errOut := call("profiles"); status != 0 || errOut != "" || !strings.Contains(out, "import") {
		t.Errorf("profiles alone: %d %q %q", status, out, errOut)
	}
}
