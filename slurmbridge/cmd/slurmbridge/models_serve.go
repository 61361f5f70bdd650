package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/models"
)

const (
	// followEvery is how often the daemon looks for another network.
	followEvery = 5 * time.Second
	// settleFor is how long a daemon that starts leaves the machine alone.
	settleFor = 2 * time.Minute
	// tooLong ends a retraining: it takes a minute of an idle core.
	tooLong = 6 * time.Hour
	// mostData bounds what a retraining may allocate, bytes; its runtime tries to keep to a
	// part of that (GOMEMLIMIT).
	mostData = 2 << 30
)

// teacher has networks trained, and lets the bridge decide by the one in use.
type teacher struct {
	cfg       *config.Config
	dir       models.Dir
	bridge    *loop.Bridge
	predictor rlcore.Predictor
	log       *slog.Logger
	self      string // this program
	follow    time.Duration
	settle    time.Duration
	more      []string // flags of the child, for tests

	using string // stamp of the network that decides
}

// learn follows which network is to decide, and has new ones trained, until ctx ends. Failures
// are logged: the bridge keeps the network that it has.
func (w *wired) learn(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	if !learns(cfg) {
		return nil
	}
	t, err := w.teacher(cfg, log)
	if err != nil {
		log.Error("no network is trained", "err", err)
		return nil
	}
	return t.run(ctx)
}

func (w *wired) teacher(cfg *config.Config, log *slog.Logger) (*teacher, error) {
	self, err := os.Executable()
	return &teacher{
		cfg: cfg, dir: modelsDir(cfg), bridge: w.bridge, predictor: w.bridge.Planner.Decider.Guard.Predictor, log: log,
		self: self, follow: followEvery, settle: settleFor, using: w.network,
	}, err
}

func (t *teacher) run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error {
		for sleep(ctx, t.follow) {
			t.takeUp()
		}
		return nil
	})
	if t.cfg.Retrain {
		g.Go(func() error { return t.trainAlways(ctx) })
	}
	return g.Wait()
}

// sleep waits, and reports whether ctx is still valid.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// takeUp lets the bridge decide by the network in use, if another has become that.
func (t *teacher) takeUp() {
	stamp := t.dir.Stamp()
	if stamp == t.using {
		return
	}
	policies, err := newPolicies(t.cfg, t.predictor, t.log)
	if err != nil {
		t.log.Warn("another network can't be taken up", "err", err)
		return
	}
	policies, name := ownPolicy(t.cfg, t.predictor, policies, t.log)
	t.using = stamp
	t.bridge.Use(policies[0], policies[1:]...)
	t.log.Info("another network decides", "network", name)
}

// trainAlways has a network trained every retrain_every, until ctx ends.
func (t *teacher) trainAlways(ctx context.Context) error {
	wait := t.settle
	all, err := t.dir.Results()
	if err != nil {
		t.log.Warn("the results of earlier rounds are lost", "err", err)
	}
	if len(all) > 0 {
		// A clock that was ahead then puts the next off by no more than the usual time.
		wait = max(wait, min(t.cfg.RetrainEvery, time.Until(all[len(all)-1].At.Add(t.cfg.RetrainEvery))))
	}
	for sleep(ctx, wait) {
		t.train(ctx)
		wait = t.cfg.RetrainEvery
	}
	return nil
}

// train runs `slurmbridge models retrain` and logs what it says.
func (t *teacher) train(ctx context.Context) {
	said, err := t.child(ctx)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
	case err == nil:
		t.log.Info("network trained", "result", said)
	case errors.As(err, &exit) && exit.ExitCode() == exitNoRound:
		t.log.Info("no retraining", "why", said)
	default:
		t.log.Warn("retraining failed; the network in use stays", "err", err, "said", said)
	}
}

// child runs a retraining as a process of its own: on one core, at the lowest priority, and with
// a bound on its memory. It dies with the daemon. Returns the end of what it printed.
func (t *teacher) child(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tooLong)
	defer cancel()
	c := t.cfg
	args := []string{"-n", "19", t.self, "models", "retrain"}
	if c.File != "" {
		args = append(args, "--config="+c.File)
	}
	for name, value := range map[string]any{
		"database": c.Database, "retrain-days": c.RetrainDays, "retrain-runs": c.RetrainRuns, "window": c.Window, "max-group": c.MaxGroup,
		"memory-margin": c.MemoryMargin, "max-delay": c.MaxDelay, "max-slowdown": c.MaxSlowdown, "grace": c.Grace, "trust": c.Trust,
		"objective": c.Objective,
	} {
		args = append(args, fmt.Sprintf("--%s=%v", name, value))
	}
	cmd := exec.CommandContext(ctx, "nice", append(args, t.more...)...) //nolint:gosec // settings are an admin's, and there is no shell
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NOTIFY_SOCKET=") && !strings.HasPrefix(v, "LISTEN_") && !strings.HasPrefix(v, "WATCHDOG_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1", "GOMEMLIMIT=512MiB")
	out := &tail{most: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The child dies with the thread that started it, which has to live as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return "", err
	}
	pid := cmd.Process.Pid
	if err := errors.Join(unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: mostData, Max: mostData}, nil),
		os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0)); err != nil && !errors.Is(err, unix.ESRCH) {
		t.log.Warn("a retraining's memory isn't bounded", "err", err)
	}
	err := cmd.Wait()
	return strings.TrimPrefix(strings.TrimSpace(out.buf.String()), "slurmbridge: "), err
}

type tail struct {
	buf  bytes.Buffer
	most int
}

// Write implements io.Writer.
func (l *tail) Write(p []byte) (int, error) {
	l.buf.Write(p)
	l.buf.Next(max(0, l.buf.Len()-l.most))
	return len(p), nil
}
