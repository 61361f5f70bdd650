package main

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage/mantest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

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
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	dir := t.TempDir()
	lines := append([]string{
		"listen: " + l.Addr().String(), "bin_dir: " + dir, "database: " + dir + "/db",
		"run_dir: " + dir,
	}, more...)
	file := filepath.Join(dir, "slurmbridge.yaml")
	must.OK(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return file
}

// Each command explains itself: what it is for, how it is called.
func TestEachCommandExplainsItself(t *testing.T) {
	var all func(c *cobra.Command, path []string)
	n := 0
	all = func(c *cobra.Command, path []string) {
		n++
		status, out, errOut := call(append(path, "--help")...)
		about := c.Long
		if about == "" {
			about = c.Short
		}
		if status != 0 || errOut != "" || about == "" || !strings.HasPrefix(out, about) ||
			!strings.Contains(out, "Usage:\n  slurmbridge") {
			t.Errorf("%s --help: %d %q %q", strings.Join(path, " "), status, out, errOut)
		}
		for _, sub := range c.Commands() {
			all(sub, append(path[:len(path):len(path)], sub.Name()))
		}
	}
	all(newRoot(nil, nil), nil)
	if n < 20 {
		t.Errorf("%d commands were asked", n)
	}
	if status, out, _ := call("--version"); status != 0 || out != "slurmbridge "+version+"\n" {
		t.Errorf("--version: %d %q", status, out)
	}
}

// Shells complete the values of flags that take some words only.
func TestValuesAreCompleted(t *testing.T) {
	for _, c := range [][]string{
		{"usage", "--by", "application"},
		{"plan", "--policy", "dqn-makespan"},
		{"plan", "--mode", "shadow"},
		{"lab experiment", "--objective", "makespan"},
	} {
		args := append(append([]string{"__complete"}, strings.Fields(c[0])...), c[1], "")
		if _, out, _ := call(args...); !strings.Contains(out, c[2]+"\n") {
			t.Errorf("%s: %q", args, out)
		}
	}
}

// fakeSlurm has a script for each of Slurm's commands.
func fakeSlurm(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	for _, name := range []string{"squeue", "sbatch", "scontrol", "scancel"} {
		must.OK(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\nexit 1\n"), 0o700))
	}
	t.Setenv("SLURMBRIDGE_BIN_DIR", bin)
}

// manual is what slurmbridge(8) has beyond the help.
const manual = `
# FILES

**/etc/slurmbridge/slurmbridge.yaml**
: Settings, each with its default and its meaning.

**/run/slurmbridge/gate**
: Which job is the gate, for job\_submit.lua.

**/run/slurmbridge/wake**
: A line here makes the daemon look.

**/var/lib/slurmbridge/slurmbridge.db**
: Profiles, runs and the journal (SQLite).

**/usr/share/slurmbridge/job\_submit.lua**
: Turns gpu:shared into shares and the gate. Belongs beside slurm.conf.

**/usr/share/doc/slurmbridge**
: Pages for users and admins (users.md, admins.md, adopt.md, operate.md, how-it-decides.md, words.md,
json.md, faq.md).

# SEE ALSO

**slurmbridge**(7) for users, **slurmbridge.yaml**(5), **gpuprof**(8)

**/usr/share/doc/slurmbridge/examples**
: What belongs into slurm.conf and gres.conf.

# EXIT STATUS

0, 1 where something failed, 2 where command line or configuration are wrong;
**slurmbridge-doctor**(8) has its own.
`

// Commands and flags of slurmbridge that README.md and the pages name are there.
func TestPagesNameCommands(t *testing.T) {
	pages := append(must.Get(filepath.Glob("../../../contrib/doc/*.md"))(t), "../../../README.md",
		"../../../contrib/prometheus/README.md", "../../../CONTRIBUTING.md")
	// In a sentence, or a line of its own.
	named := regexp.MustCompile("(?m)`slurmbridge\\s([a-z][^`]*)`|^slurmbridge ([a-z]+(?: [$\\w-]+){0,2})$")
	n := 0
	for _, page := range pages {
		text := string(must.Get(os.ReadFile(page))(t))
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			isCommand(t, page, strings.Fields(m[1]+m[2]))
			n++
		}
	}
	if n < 20 {
		t.Errorf("only %d commands were found", n)
	}
}

// isCommand fails a test unless the words that a page names are a command of slurmbridge's with flags of its own.
func isCommand(t *testing.T, page string, words []string) {
	t.Helper()
	c, _, err := newRoot(io.Discard, io.Discard).Find(words)
	if err != nil || c.Parent() == nil || len(c.Commands()) > 0 {
		t.Errorf("%s: there is no command slurmbridge %s: %v", page, words, err)
		return
	}
	for _, w := range words {
		if name, is := strings.CutPrefix(w, "--"); is && c.Flags().Lookup(name) == nil {
			t.Errorf("%s: slurmbridge %s: there is no flag %s", page, words, w)
		}
	}
}

// The script that compares the model with other learners calls a command that is there.
func TestScriptOfLearnersCallsACommand(t *testing.T) {
	const script = "../../lab/learners/compare.py"
	call := regexp.MustCompile(`(?s)\[lab, (.*?)\]\n`).FindSubmatch(must.Get(os.ReadFile(script))(t))
	if call == nil {
		t.Fatalf("%s calls nothing", script)
	}
	var words []string
	for _, m := range regexp.MustCompile(`"([a-z-]+)"`).FindAllSubmatch(call[1], -1) {
		words = append(words, string(m[1]))
	}
	isCommand(t, script, words)
}

func TestManualOfTheCommands(t *testing.T) {
	mantest.Manual(t, newRoot(io.Discard, io.Discard), manual,
		"status", "why", "usage", "profiles-list", "profiles-show", "profiles-identify")
}

func TestDaemonAddress(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for _, c := range []struct{ listen, server, want string }{
		{"[::1]:1", "", "http://[::1]:1"},
		{"", "", ""},
		{"", "https://head:1/", "https://head:1"},
		{":9797", plain.Listener.Addr().String(), plain.URL},
		{secure.Listener.Addr().String(), "", secure.URL},
	} {
		a, err := newAsking(t.Context(), &config.Config{Listen: c.listen, Server: c.server})
		must.OK(t, err)
		must.Equal(t, a.url, c.want, c)
	}
	must.Equal(t, daemonAddress(&config.Config{Listen: "[::]:9797"}), "localhost:9797")
}

// Rules are refused at start where Slurm can't make a job of a whole GPU share.
func TestAdoptIsRefused(t *testing.T) {
	const rules = "adopt: [{partition: gpu}]"
	for _, c := range []struct{ release, more, says string }{
		{"22.05", "", "Slurm 22.05.8 can't make a job of a whole GPU share, and gives GPUs in use to others: it takes " +
			"23.11.5"},
		{"24.11", "", "Slurm 24.11.5 keeps nodes with shared GPUs for waiting jobs of whole GPUs: it takes 25.05, or " +
			"mixed_partitions: share"},
		{"26.05", "", ""},
		{"24.11", "mixed_partitions: share", ""},
	} {
		config := must.Get(filepath.Abs("../../slurm/testdata/" + c.release + "/config"))(t)
		fakeSlurm(t, "[ \"$*\" = 'show config' ] && exec cat "+config)
		for _, command := range []string{"serve", "plan"} {
			if c.says == "" && command == "serve" {
				continue // it would run
			}
			file := conf(t, rules, c.more)
			status, _, errOut := call(command, "-c", file)
			if refused := strings.Contains(errOut, "adopt"); refused != (c.says != "") || !strings.Contains(errOut, c.says) ||
				refused && (status != 2 || !strings.Contains(errOut, file)) {
				t.Errorf("%s on %s, %s: %d %q", command, c.release, c.more, status, errOut)
			}
		}
	}
}

// A preview matches runs as the bridge does jobs, which leaves those with a deadline or a reservation alone.
func TestRuleOfARun(t *testing.T) {
	p := &adopt.Policy{Percent: 100, Rules: []adopt.Rule{{QOS: []string{"low"}, MaxSlowdown: 1.2}}}
	for _, c := range []struct {
		run  history.Run
		want bool
	}{
		{history.Run{QOS: "low"}, true},
		{history.Run{QOS: "high"}, false},
		{history.Run{QOS: "low", Reservation: "course"}, false},
		{history.Run{QOS: "low", Deadline: time.Unix(1e9, 0)}, false},
	} {
		must.Equal(t, ruleOf(p, &c.run) != nil, c.want, c.run)
	}
}
