package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage/mantest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
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
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	dir := t.TempDir()
	lines := append([]string{
		"listen: " + l.Addr().String(), "bin_dir: " + dir, "database: " + dir + "/db",
		"gate_file: " + dir + "/gate", "wake_file: " + dir + "/wake",
	}, more...)
	file := filepath.Join(dir, "slurmbridge.yaml")
	must.OK(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
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
	if status, _, errOut := call("profiles", "list", "-c", conf(t)); status != 1 ||
		!strings.Contains(errOut, "run this as that user") {
		t.Errorf("profiles without a folder: %d %q", status, errOut)
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

// slurmctld that doesn't answer is not a mistake of the command.
func TestSlurmDown(t *testing.T) {
	fakeSlurm(t, "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2")
	for _, name := range []string{"plan", "open"} {
		status, out, errOut := call(name, "-c", conf(t))
		if status != 1 || out != "" || !strings.Contains(errOut, "Unable to contact slurm controller") {
			t.Errorf("%s: %d %q %q", name, status, out, errOut)
		}
	}
	status, out, _ := call("doctor", "-c", conf(t))
	if status != 2 || !strings.Contains(out, "slurmctld does not answer") ||
		!strings.Contains(out, "systemctl status slurmctld") {
		t.Errorf("doctor: %d %q", status, out)
	}
	status, out, _ = call("doctor", "--json", "-c", conf(t))
	var r struct {
		Findings []struct{ Check, Severity, What, Why string }
		Exit     int
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 2 || r.Exit != 2 || len(r.Findings) != 1 ||
		r.Findings[0].Check != "slurmctld" {
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
		for _, args := range [][]string{
			{"status"},
			{"why", "1"},
			{"plan"},
			{"open"},
			{"doctor"},
			{"profiles", "list"},
			{"serve"},
		} {
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
	if status, _, errOut := call("plan", "--policy", "coin", "-c", conf(t)); status != 2 ||
		!strings.HasPrefix(errOut, "slurmbridge: --policy: ") {
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
: Pages for users and admins (users.md, admins.md, adopt.md, operate.md, how-it-decides.md, faq.md).

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
			said := m[1] + m[2]
			words := strings.Fields(said)
			c, _, err := newRoot(io.Discard, io.Discard).Find(words)
			if err != nil || c.Parent() == nil || len(c.Commands()) > 0 {
				t.Errorf("%s: there is no command slurmbridge %s: %v", page, said, err)
				continue
			}
			for _, w := range words {
				if name, is := strings.CutPrefix(w, "--"); is && c.Flags().Lookup(name) == nil {
					t.Errorf("%s: slurmbridge %s: there is no flag %s", page, said, w)
				}
			}
			n++
		}
	}
	if n < 20 {
		t.Errorf("only %d commands were found", n)
	}
}

func TestManual(t *testing.T) { mantest.Manual(t, newRoot(io.Discard, io.Discard), manual) }

// TestPrintWhy: what an owner reads of a job that waits, and of its runs.
func TestPrintWhy(t *testing.T) {
	at := time.Date(2024, 1, 1, 12, 0, 0, 0, time.UTC)
	outcome := func(o history.Outcome) history.Told {
		o.Ref, o.Node, o.Start, o.End = "7", "n1", at, at.Add(2*time.Minute)
		return history.Told{Outcome: o}
	}
	var out bytes.Buffer
	s := &shared{cli.Env{Out: &out}}
	s.printWhy("7", &journal.Story{
		Note: &job.Explanation{
			At: at, Ref: "7", App: "lmp", Known: true, Preallocates: true, FreeInS: 90, LatestDelayS: 300,
			Ignored: []string{`share:max-slowdown="x": why`},
		},
		Outcomes: []history.Told{
			outcome(history.Outcome{
				State: "COMPLETED", With: []string{"8"}, Slowdown: 1.2, Predicted: 1.05, Contract: 1.1,
				Broken: true,
			}),
			outcome(history.Outcome{State: "COMPLETED", With: []string{"9"}, Slowdown: 1.05, Contract: 1.1}),
			outcome(history.Outcome{
				State: "FAILED", With: []string{"8", "9"}, Suspect: "GPU memory was nearly full",
				Again: true,
			}),
			outcome(history.Outcome{State: "FAILED", Cleared: true}),
			outcome(history.Outcome{Learned: true, Slowdown: 1}),
			outcome(history.Outcome{
				State: "TIMEOUT", With: []string{"8"}, Suspect: "it ran out of its time limit of 1m30s",
				LentS: 60, HeldS: 5, PlainEnd: at,
			}),
		},
	}, true)
	for _, want := range []string{
		"expected to be empty in 1m30s",
		"it takes most of the card's memory at its start",
		`ignored share:max-slowdown="x": why`,
		"job 7 completed after 2m0s on n1\n",
		"  shared  with 8\n  cost    20s: it took 1.20 times its time alone, 1.05 predicted; its contract of 1.10 was " +
			"broken\n",
		"  cost    6s: it took 1.05 times its time alone; its contract of 1.10 was kept\n",
		"  sharing may be the reason: GPU memory was nearly full; it was run again, alone\n",
		"  it failed alone, too",
		"  sharing may be the reason: it ran out of its time limit of 1m30s\n  its time limit was raised by 1m0s",
		"  the bridge kept it waiting 5s longer than it may\n  worse off",
		"  worse off than on plain Slurm: timeout\n  worse off than on plain Slurm: held\n",
		"job 7 ended after 2m0s on n1\n",
		"  the run became part",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not said in\n%s", want, out.String())
		}
	}
}

func TestDaemonAddress(t *testing.T) {
	plain, secure := filepath.Join(t.TempDir(), "plain.yml"), filepath.Join(t.TempDir(), "tls.yml")
	for file, text := range map[string]string{
		plain:  "basic_auth_users: {}\n",
		secure: "tls_server_config:\n  cert_file: x\n",
	} {
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	}
	for _, c := range []struct{ listen, web, server, want string }{
		{":9797", "", "", "http://localhost:9797"},
		{"10.0.0.1:80", plain, "", "http://10.0.0.1:80"},
		{"[::]:9797", secure, "", "https://localhost:9797"},
		{"", "", "", ""},
		{"", "", "https://head:1", "https://head:1"},
	} {
		must.Equal(t, daemonURL(&config.Config{Listen: c.listen, WebConfig: c.web}, c.server), c.want, c)
	}
}

func TestDoctorFlags(t *testing.T) {
	fakeSlurm(t, "")
	for says, args := range map[string][]string{
		"{node}":          {"--agents", "http://gpu1:9798"},
		"--client-config": {"--client-config", "/nowhere/client.yml"},
	} {
		status, out, errOut := call(append([]string{"doctor", "-c", conf(t)}, args...)...)
		if status != 2 || out != "" || !strings.Contains(errOut, says) {
			t.Errorf("%v: %d %q %q", args, status, out, errOut)
		}
	}
}

// On a real Slurm: what a daemon and its absence, agents that nobody answers for, a
// short memory of jobs and a node that came with less than promised look like.
func TestDoctorLive(t *testing.T) {
	l := newLive(t)
	findings := func(args ...string) map[string]string {
		t.Helper()
		status, out, errOut := l.as("slurm", append([]string{"doctor", "--json"}, args...)...)
		var r struct {
			Findings []struct{ Check, Severity string }
			Exit     int
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil || status != r.Exit {
			t.Fatalf("doctor: %d %v %s%s", status, err, out, errOut)
		}
		found := map[string]string{}
		for _, f := range r.Findings {
			found[f.Check] = f.Severity
		}
		return found
	}
	lacks := func(found map[string]string, names ...string) {
		t.Helper()
		for _, name := range names {
			if found[name] != "" {
				t.Errorf("%s: %s", found[name], name)
			}
		}
	}
	quiet := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	_, port, _ := net.SplitHostPort(quiet.Addr().String())
	quiet.Close()
	found := findings("--agents", "http://{node}:"+port)
	for check, severity := range map[string]string{"daemon": "warning", "agent": "warning", "hook-prolog": "error"} {
		if found[check] != severity {
			t.Errorf("%s is %q, not %s: %v", check, found[check], severity, found)
		}
	}
	lacks(found, "munge", "gres-types", "gres-conf", "node-invalid", "lua", "lua-gate-file", "gate-partition",
		"gate-rights", "min-job-age", "default-memory")

	l.serve()
	found = findings("--agents", "")
	lacks(found, "daemon", "daemon-look", "daemon-mode", "gate", "policy", "agent")

	// The partition drains and the memory gets short.
	text := must.Get(os.ReadFile(l.Conf()))(t)
	must.OK(t, os.WriteFile(l.Conf(), append(text, "MinJobAge=5\n"...), 0o644))
	for _, args := range [][]string{{"reconfigure"}, {"update", "PartitionName=" + slurmtest.Partition, "State=DRAIN"}} {
		if out, err := l.Run(t.Context(), "scontrol", args...); err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
	}
	want := []string{"min-job-age", "gate-partition"}
	if !slurmtest.Wait(t.Context(), 20*time.Second, func() bool {
		found = findings("--agents", "")
		return !slices.ContainsFunc(want, func(check string) bool { return found[check] == "" })
	}) {
		t.Errorf("%v", found)
	}
}

// Rules are refused at start where Slurm can't make a job of a whole GPU share, and without the script that gates jobs.
func TestAdoptIsRefused(t *testing.T) {
	const rules = "adopt: [{partition: gpu}]"
	for _, c := range []struct{ release, more, says string }{
		{"22.05", "", "Slurm 22.05.8 can't make a job of a whole GPU share, and gives GPUs in use to others: it takes " +
			"23.11.5"},
		{"24.11", "lua: no", "without job_submit.lua (lua: no) no job is adopted"},
		{"24.11", "", ""},
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

// The preview reads rules of a file, and says so where it has none or no recorded job is one that they could adopt.
func TestAdoptPreview(t *testing.T) {
	file := conf(t, "policy: greedy")
	writeHistory(t, file, job.Active)
	preview := func(rules string) error {
		var out bytes.Buffer
		c := newAdopt(&shared{cli.Env{File: file, Out: &out, ErrOut: &out}})
		args := []string{"preview"}
		if rules != "" {
			path := filepath.Join(t.TempDir(), "rules.yaml")
			must.OK(t, os.WriteFile(path, []byte(rules), 0o600))
			args = append(args, "--rules", path)
		}
		c.SetArgs(args)
		c.SilenceUsage, c.SilenceErrors = true, true
		return c.ExecuteContext(t.Context())
	}
	for rules, says := range map[string]string{
		"":                                     "has no rules",
		"adopt: []":                            "has no rules",
		"adopt: [{partition: 'a b'}]":          "has \"a b\"",
		"adopt: [{partitions: gpu}]":           "did you mean \"partition\"",
		"adopt: [{max_slowdown: 0.5}]":         "max_slowdown is 0.5",
		"adopt: [{partition: gpu, user: ann}]": "of 3 jobs none requested one whole GPU",
	} {
		if err := preview(rules); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", rules, err, says)
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
		if got := ruleOf(p, &c.run); (got != nil) != c.want {
			t.Errorf("%+v: %v", c.run, got)
		}
	}
}
