package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// live is a private Slurm with the real command's daemon.
type live struct {
	*slurmtest.Cluster
	conf   string
	daemon *exec.Cmd
}

// TestOnSlurm plays the script of testdata/live on a private Slurm.
func TestOnSlurm(t *testing.T) {
	slurmtest.Require(t)
	l := &live{Cluster: slurmtest.New(t, slurmtest.Options{
		Lua: "../../../contrib/job_submit.lua",
		Prepare: func(c *slurmtest.Cluster) error {
			c.Options.EpilogSlurmctld = c.Path("epilog")
			return os.WriteFile(c.Path("epilog"), []byte("#!/bin/sh\necho end >>"+c.WakeFile+"\n"), 0o755)
		},
	})}
	// The test binary, under the name that makes it the command (TestMain), where every user may run it.
	if out, err := exec.Command("install", "-m", "755", must.Get(os.Executable())(t), l.bin()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	addr := "127.0.0.1:" + must.Get(l.FreePort())(t)
	text := fmt.Sprintf("slurm_conf: %s\nrun_dir: %s\ndatabase: %s\nlisten: %s\nmunge_socket: "+
		"%s\nsharers_only: [gpu]\nmode: active\n",
		l.Conf(), l.Path("run"), l.Path("run", "slurmbridge.db"), addr, l.MungeSocket)
	l.conf = l.Path("slurmbridge.yaml")
	must.OK(t, os.WriteFile(l.conf, []byte(text), 0o644))
	testscript.Run(t, testscript.Params{
		Dir: "testdata/live",
		Setup: func(env *testscript.Env) error {
			env.Setenv("RELEASE", regexp.QuoteMeta(l.Release))
			env.Setenv("SLURM_CONF", l.Conf())
			env.Setenv("PARTITION", slurmtest.Partition)
			env.Setenv("GATE", l.GateFile)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"as": l.as, "until": l.until, "serve": l.serve, "terminate": l.terminate, "submit": l.submit,
		},
	})
}

func (l *live) bin() string { return l.Path("slurmbridge") }

// command is one of a user's on the cluster; slurmbridge has the cluster's settings.
func (l *live) command(ts *testscript.TestScript, user string, args ...string) *exec.Cmd {
	if args[0] == "slurmbridge" {
		args = append([]string{l.bin()}, append(args[1:], "-c", l.conf)...)
	}
	cmd, err := l.Command(context.Background(), strings.TrimPrefix(user, "root"), args[0], args[1:]...)
	ts.Check(err)
	return cmd
}

// as USER COMMAND... calls a command as a user of this machine.
func (l *live) as(ts *testscript.TestScript, neg bool, args []string) {
	cmd := l.command(ts, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	if err := cmd.Run(); (err != nil) != neg {
		ts.Fatalf("%q: %v", args, err)
	}
}

// until PATTERN USER COMMAND... calls a command until it prints what matches.
func (l *live) until(ts *testscript.TestScript, _ bool, args []string) {
	last := ""
	if !slurmtest.Wait(context.Background(), 2*time.Minute, func() bool {
		out, _ := l.command(ts, args[1], args[2:]...).CombinedOutput() // what it says tells
		last = string(out)
		return regexp.MustCompile(args[0]).MatchString(last)
	}) {
		ts.Fatalf("%q doesn't say %q: %s", args[1:], args[0], last)
	}
}

// serve starts the daemon as SlurmUser, terminate ends it.
func (l *live) serve(ts *testscript.TestScript, _ bool, _ []string) {
	l.daemon = l.command(ts, "slurm", "slurmbridge", "serve")
	log, err := os.Create(l.Path("log", "bridge.log"))
	ts.Check(err)
	defer log.Close()
	l.daemon.Stdout, l.daemon.Stderr = log, log
	if l.daemon.SysProcAttr == nil {
		l.daemon.SysProcAttr = &syscall.SysProcAttr{}
	}
	l.daemon.SysProcAttr.Pdeathsig = syscall.SIGKILL
	ts.Check(l.daemon.Start())
	ts.Defer(func() { _ = l.daemon.Process.Kill() })
}

func (l *live) terminate(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Check(l.daemon.Process.Signal(syscall.SIGTERM))
	ts.Check(l.daemon.Wait())
}

// submit USER NAME submits a shared job, whose number is $NAME from then on.
func (l *live) submit(ts *testscript.TestScript, _ bool, args []string) {
	id, err := l.Submit(context.Background(), args[0], "sleep 60", "--gres=gpu:shared", "--time=5")
	ts.Check(err)
	ts.Setenv(args[1], id)
}
