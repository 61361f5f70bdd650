package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"

	"go.uber.org/goleak"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/models"
)

// lines is a log that tests read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// teacherOf makes what the daemon has for its models, with a bridge that doesn't look.
func teacherOf(t *testing.T, file string) (*teacher, *lines) {
	t.Helper()
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	st, j := opened(t, file)
	t.Cleanup(func() { st.Close() })
	b := &loop.Bridge{Planner: &plan.Planner{Decider: &rlcore.Decider{Policy: baseline.Exclusive{}, Guard: &rlcore.Guard{}}}}
	log := &lines{}
	out, err := (&wired{bridge: b, store: st, journal: j}).teacher(cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "slurmbridge") // by that name this binary is the program, see TestMain
	if err := os.Symlink(out.self, link); err != nil {
		t.Fatal(err)
	}
	out.self = link
	out.follow, out.settle, out.more = 5*time.Millisecond, 0, []string{"--rounds=5", "--sets=20"}
	return out, log
}

// leaks fails a test that leaves goroutines behind, once all it made is closed.
func leaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// children lists the processes that this one has started, by number.
func children(t *testing.T) []int { return childrenOf(t, os.Getpid()) }

func childrenOf(t *testing.T, parent int) []int {
	t.Helper()
	var out []int
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tasks {
		text, _ := os.ReadFile(f) // a thread may have ended
		for w := range strings.FieldsSeq(string(text)) {
			pid, _ := strconv.Atoi(w)
			out = append(out, pid)
		}
	}
	return out
}

// until waits for something that is about to happen.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// A retraining is a process of its own, of the lowest priority in all its threads.
func TestChildIsLow(t *testing.T) {
	file := conf(t, "retrain_runs: 100")
	busy(t, file, 200, time.Now().Truncate(time.Second))
	tch, log := teacherOf(t, file)
	tch.more = []string{"--rounds=1000000"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := tch.child(ctx); done <- err }()
	bounded := func(pid int) bool {
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		score, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		return err == nil && err2 == nil && strings.Contains(string(limits), strconv.Itoa(mostData)) && strings.TrimSpace(string(score)) == "1000"
	}
	var pid int
	until(t, "a child of the lowest priority, with a bound", func() bool {
		for _, pid = range children(t) {
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
			low := 0
			for _, th := range threads {
				stat, err := os.ReadFile(th)
				if f := fieldsOf(string(stat)); err == nil && len(f) > 18 && f[18] == "19" {
					low++
				}
			}
			if len(threads) > 2 && low == len(threads) && bounded(pid) {
				return true
			}
		}
		return false
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("it was ended, and returns no error")
	}
	if slices.Contains(children(t), pid) {
		t.Error("it lives on")
	}
	if strings.Contains(log.String(), "isn't bounded") {
		t.Error(log.String())
	}
}

// fieldsOf splits /proc/PID/stat; field n of proc(5) is n-1 here.
func fieldsOf(stat string) []string {
	_, rest, _ := strings.Cut(stat, ") ")
	return append([]string{"", ""}, strings.Fields(rest)...)
}

// Whenever a retraining is killed, the daemon keeps the network that it has, and the next round works.
func TestChildKilled(t *testing.T) {
	leaks(t)
	file := conf(t, "retrain_runs: 100")
	busy(t, file, 200, time.Now().Truncate(time.Second))
	tch, log := teacherOf(t, file)
	results := func() []models.Result {
		t.Helper()
		all, err := tch.dir.Results()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	for i := range 8 {
		done := make(chan struct{})
		go func() { defer close(done); tch.train(t.Context()) }()
		after := time.Duration(i*i) * 20 * time.Millisecond
		began := time.Now()
	kill:
		for {
			select {
			case <-done:
				break kill
			default:
			}
			for _, pid := range children(t) {
				if time.Since(began) >= after {
					_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
				}
			}
			time.Sleep(time.Millisecond)
		}
		// One that is killed after its last write has both.
		if n := strings.Count(log.String(), "retraining failed"); n+len(results()) < i+1 {
			t.Fatalf("after %d: %d failed, %d results\n%s", i+1, n, len(results()), log.String())
		}
		if _, err := tch.dir.Load(policy.Turnaround); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(log.String(), "signal: killed") {
		t.Errorf("none was killed:\n%s", log.String())
	}
	before := len(results())
	tch.train(t.Context())
	if all := results(); len(all) != before+1 || all[before].Trained.Runs != 150 || all[before].Trained.Held != 50 {
		t.Errorf("%+v\n%s", all, log.String())
	}
}

// The daemon ends at once in the middle of a retraining, and takes it with it.
func TestShutdownWhileTraining(t *testing.T) {
	leaks(t)
	file := conf(t, "retrain_runs: 100")
	busy(t, file, 200, time.Now().Truncate(time.Second))
	tch, log := teacherOf(t, file)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = tch.run(ctx) }()
	until(t, "a retraining", func() bool { return len(children(t)) > 0 })
	time.Sleep(50 * time.Millisecond)
	cancel()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it doesn't end")
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("%v live on", left)
	}
	if strings.Contains(log.String(), "retraining failed") {
		t.Errorf("an end that was asked for is no failure:\n%s", log.String())
	}
	if all, err := tch.dir.Results(); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// What a child says in its last moments is in the log, and does no harm.
func TestStrangeChildren(t *testing.T) {
	file := conf(t)
	tch, log := teacherOf(t, file)
	for text, want := range map[string]string{
		"exit 1": "exit status 1",
		"yes | head -c 5000000; echo fatal error: out of memory >&2; exit 2": "out of memory",
		"echo 'slurmbridge: too few runs: 3' >&2; exit 3":                    "level=INFO msg=\"no retraining\" why=\"too few runs: 3\"",
	} {
		tch.self = filepath.Join(t.TempDir(), "child")
		if err := os.WriteFile(tch.self, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		tch.train(t.Context())
		if !strings.Contains(log.String(), want) || len(log.String()) > 20_000 {
			t.Errorf("%s: no %q in\n%s", text, want, log.String())
		}
	}
}

// A network that is put in place decides a moment later, without a restart, and so does the one
// before it, and the built-in one where none is left.
func TestFollow(t *testing.T) {
	leaks(t)
	file := conf(t, "retrain: false")
	tch, log := teacherOf(t, file)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); _ = tch.run(ctx) }()
	says := func(n int, want string) {
		t.Helper()
		until(t, want, func() bool { return strings.Count(log.String(), want) == n })
	}
	const own = "another network decides\" network=\"site 2"
	dir := put(t, file, alone(t))
	says(1, own)
	put(t, file, alone(t))
	says(2, own)
	if err := dir.Return(); err != nil {
		t.Fatal(err)
	}
	says(3, own)
	if err := os.Remove(dir.Current()); err != nil {
		t.Fatal(err)
	}
	says(1, "network=\""+pretrained.BuiltInFor(policy.Turnaround))
	cancel()
	<-done
}

// A daemon that is killed takes its retraining with it.
func TestChildDiesWithDaemon(t *testing.T) {
	if file := os.Getenv("TEST_DAEMON_OF"); file != "" {
		tch, _ := teacherOf(t, file)
		tch.more = []string{"--rounds=1000000"}
		_, _ = tch.child(t.Context()) // the daemon is killed meanwhile
		return
	}
	file := conf(t, "retrain_runs: 100")
	busy(t, file, 200, time.Now().Truncate(time.Second))
	daemon := exec.Command("/proc/self/exe", "-test.run=^TestChildDiesWithDaemon$")
	daemon.Env = append(os.Environ(), "TEST_DAEMON_OF="+file)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	until(t, "a retraining", func() bool { pids = childrenOf(t, daemon.Process.Pid); return len(pids) > 0 })
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Wait() // it was killed
	until(t, "its end", func() bool {
		for _, pid := range pids {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if f := fieldsOf(string(stat)); err == nil && f[2] != "Z" {
				return false
			}
		}
		return true
	})
}
