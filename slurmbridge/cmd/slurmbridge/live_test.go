package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// live is a private Slurm with the real command's daemon.
type live struct {
	*slurmtest.Cluster
	t      *testing.T
	conf   string
	daemon *exec.Cmd
}

func newLive(t *testing.T) *live {
	t.Helper()
	slurmtest.Require(t)
	l := &live{t: t}
	l.Cluster = slurmtest.New(t, slurmtest.Options{
		Lua: "../../../contrib/job_submit.lua",
		Prepare: func(c *slurmtest.Cluster) error {
			c.Options.EpilogSlurmctld = c.Path("epilog")
			return os.WriteFile(c.Path("epilog"), []byte("#!/bin/sh\necho end >>"+c.WakeFile+"\n"), 0o755)
		},
	})
	// The test binary, under the name that makes it the command (TestMain), where
	// every user may run it.
	self := must.Get(os.Executable())(t)
	if out, err := exec.Command("install", "-m", "755", self, l.bin()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	srv := httptest.NewServer(nil) // a port that was free a moment ago
	addr := srv.Listener.Addr().String()
	srv.Close()
	text := fmt.Sprintf("slurm_conf: %s\ngate_file: %s\nwake_file: %s\ndatabase: %s\nlisten: %s\nmunge_socket: "+
		"%s\nsharers_only: [gpu]\n",
		l.Conf(), l.GateFile, l.WakeFile, l.Path("run", "slurmbridge.db"), addr, l.MungeSocket)
	l.conf = l.Path("slurmbridge.yaml")
	must.OK(t, os.WriteFile(l.conf, []byte(text), 0o644))
	return l
}

func (l *live) bin() string { return l.Path("slurmbridge") }

// gated reports whether the gate file names a gate.
func (l *live) gated() bool {
	text, err := os.ReadFile(l.GateFile)
	return err == nil && strings.HasPrefix(string(text), "job=")
}

// serve starts the daemon as SlurmUser and waits for its gate.
func (l *live) serve() {
	l.t.Helper()
	cmd := must.Get(l.Command(context.Background(), "slurm", l.bin(), "serve", "-c", l.conf))(l.t)
	log := must.Get(os.Create(l.Path("log", "bridge.log")))(l.t)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	must.OK(l.t, cmd.Start())
	l.daemon = cmd
	l.t.Cleanup(l.stop)
	if !slurmtest.Wait(l.t.Context(), 20*time.Second, func() bool {
		if !l.gated() {
			return false
		}
		status, _, _ := call("status", "-c", l.conf) // the first look is over a moment later
		return status == 0
	}) {
		l.t.Fatal("the daemon makes no gate, or has no look")
	}
}

func (l *live) stop() {
	if l.daemon == nil {
		return
	}
	_ = l.daemon.Process.Signal(syscall.SIGTERM)
	if err := l.daemon.Wait(); err != nil {
		l.t.Errorf("serve: %v", err)
	}
	l.daemon = nil
}

// as runs the command as a user of this machine.
func (l *live) as(user string, args ...string) (status int, out, errOut string) {
	l.t.Helper()
	cmd := must.Get(l.Command(l.t.Context(), user, l.bin(), append(args, "-c", l.conf)...))(l.t)
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	_ = cmd.Run() // its status tells
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// says runs a command that must succeed and contain each of the words.
func (l *live) says(words []string, args ...string) string {
	l.t.Helper()
	status, out, errOut := call(append(args, "-c", l.conf)...)
	if status != 0 || errOut != "" {
		l.t.Fatalf("%v: %d %q", args, status, errOut)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			l.t.Errorf("%v doesn't say %q:\n%s", args, w, out)
		}
	}
	return out
}

// json runs a command that must succeed, and fails unless its answer has the keys.
func (l *live) json(keys []string, args ...string) map[string]any {
	l.t.Helper()
	out := l.says(nil, append(args, "--json")...)
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		l.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	for _, k := range keys {
		if _, ok := v[k]; !ok {
			l.t.Errorf("%v has no %s:\n%s", args, k, out)
		}
	}
	return v
}

// submit submits a shared job and waits until status, for people, says what is
// wanted; %s in it is the job.
func (l *live) submit(user, want string) string {
	l.t.Helper()
	id := must.Get(l.Submit(l.t.Context(), user, "sleep 60", "--gres=gpu:shared", "--time=5"))(l.t)
	want = strings.ReplaceAll(want, "%s", id)
	if !slurmtest.Wait(l.t.Context(), 30*time.Second,
		func() bool { return strings.Contains(l.says(nil, "status"), want) }) {
		l.t.Fatalf("job %s: status doesn't say %q: %s", id, want, l.says(nil, "status"))
	}
	return id
}

// The commands on a live cluster: one job runs alone, two others
// wait behind the gate until everything is let go.
func TestCommandsOnSlurm(t *testing.T) {
	l := newLive(t)
	l.serve()
	l.says([]string{
		"active, policy dqn (model built in) for the turnaround, Slurm " + l.Release, "0 jobs wait behind it",
		"n1", "titanxp", "idle",
	}, "status")
	if v := l.json([]string{"at", "mode", "changes"}, "plan"); v["changes"] == nil || len(v["changes"].([]any)) != 0 {
		t.Errorf("an empty queue has the plan %v", v)
	}
	l.says([]string{"nothing to change"}, "plan")
	const user = "games"
	first := l.submit(user, "%s "+user+" 99%")
	second := l.submit(user, "1 jobs wait behind it")
	third := l.submit(user, "2 jobs wait behind it")
	l.says([]string{first + " " + user + " 99%"}, "status")
	l.json([]string{
		"at", "mode", "policy", "slurm", "gate", "lease_left_s", "waiting", "gpus", "groups",
		"added_delay_max_s",
	}, "status")
	l.says([]string{"alone on n1 gpu 0", "running since", "release"}, "why", "--verbose", first)
	l.says([]string{"Job " + second + " waits", "place 1 of 2 that wait"}, "why", "--verbose", second)
	if !slurmtest.Wait(t.Context(), 20*time.Second,
		func() bool { status, _, _ := call("why", third, "-c", l.conf); return status == 0 }) {
		t.Errorf("nothing is known of job %s, which waits", third)
	}
	l.says([]string{
		"Job " + third + " waits", "place 2 of 2 that wait; a decision looks at the first 12",
		"it is behind gate", "opens in",
	}, "why", "--verbose", third)
	l.json([]string{"waits"}, "why", third)
	if status, _, errOut := call("why", "999999", "-c", l.conf); status != 1 || !strings.Contains(errOut, "999999") {
		t.Errorf("why of a job nobody knows: %d %q", status, errOut)
	}
	if status, _, errOut := call("why", "1;reboot", "-c", l.conf); status != 1 ||
		!strings.Contains(errOut, "123 or 120_4") {
		t.Errorf("why of no job: %d %q", status, errOut)
	}
	l.says([]string{"APPLICATION", "MEMORY PEAK"}, "profiles", "list")
	l.open(third)
}

// open is refused to users, and lets all jobs go for SlurmUser, daemon or not.
func (l *live) open(waiting string) {
	l.t.Helper()
	before := l.job(waiting)["Dependency"]
	status, out, errOut := l.as("nobody", "open")
	if status != 1 || out != "" || !strings.Contains(errOut, "permission denied") {
		l.t.Errorf("open as nobody: %d %q %q", status, out, errOut)
	}
	if now := l.job(waiting)["Dependency"]; now != before || !strings.HasPrefix(now, "after:") {
		l.t.Errorf("open as nobody made %q of %q", now, before)
	}
	if !l.gated() {
		l.t.Error("open as nobody: there is no gate")
	}
	l.stop()
	if status, _, errOut := call("status", "-c", l.conf); status != 1 ||
		!strings.Contains(errOut, "no answer from the daemon") {
		l.t.Errorf("status without a daemon: %d %q", status, errOut)
	}
	status, out, errOut = l.as("slurm", "open", "--json")
	var n struct{ Jobs *int }
	if err := json.Unmarshal([]byte(out), &n); err != nil || status != 0 || errOut != "" || n.Jobs == nil || *n.Jobs != 2 {
		l.t.Errorf("open: %d %v %q %q", status, err, out, errOut)
	}
	if l.gated() {
		l.t.Error("the gate file still names a gate")
	}
	if !slurmtest.Wait(l.t.Context(), 70*time.Second, func() bool { return l.job(waiting)["Dependency"] == "(null)" }) {
		l.t.Errorf("job %s waits for %s", waiting, l.job(waiting)["Dependency"])
	}
	if status, out, _ := l.as("slurm", "open"); status != 0 || !strings.HasPrefix(out, "open: 0 jobs") {
		l.t.Errorf("open again: %d %q", status, out)
	}
}

func (l *live) job(id string) map[string]string {
	l.t.Helper()
	f := must.Get(l.Job(l.t.Context(), id))(l.t)
	return f
}
