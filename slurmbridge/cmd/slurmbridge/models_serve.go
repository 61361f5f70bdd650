package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/models"
)

const (
	// followEvery is how often the daemon asks which model is to decide.
	followEvery = 5 * time.Second
	// settleFor is how long a daemon that starts leaves the machine alone.
	settleFor = 2 * time.Minute
	// tooLong ends a retraining: it takes a minute of a core where one is idle.
	tooLong = 6 * time.Hour
)

// teacher has models trained and the bridge decide by the one in use.
type teacher struct {
	retraining
	bridge    *loop.Bridge
	predictor rlcore.Predictor
	self      string // this program
	follow    time.Duration
	settle    time.Duration
	now       func() time.Time
	more      []string // flags of the child, for tests

	using int64
}

func (w *wired) teacher(ctx context.Context, cfg *config.Config, log *slog.Logger) (*teacher, error) {
	ms := models.NewRegister(w.store.DB())
	t := &teacher{
		retraining: retraining{cfg: cfg, store: w.store, jour: w.journal, models: ms, dir: modelsDir(cfg), log: log},
		bridge:     w.bridge, predictor: w.bridge.Planner.Decider.Guard.Predictor,
		self: "/proc/self/exe", follow: followEvery, settle: settleFor, now: time.Now,
	}
	line, err := ms.Line(ctx)
	if err == nil && len(line) > 0 {
		t.using = line[0].ID // wire has taken it up
	}
	return t, err
}

// learn follows which model is to decide, and has new ones trained, until ctx ends.
// What goes wrong is logged: the bridge goes on with the model that it has.
func (w *wired) learn(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	if !learns(cfg) {
		return nil
	}
	t, err := w.teacher(ctx, cfg, log)
	if err != nil {
		log.Error("models aren't looked after", "err", err)
		return nil
	}
	t.run(ctx)
	return nil
}

func (t *teacher) run(ctx context.Context) {
	done := make(chan struct{})
	if t.cfg.Retrain {
		go func() {
			defer close(done)
			t.retrainAlways(ctx)
		}()
	} else {
		close(done)
	}
	tick := time.NewTicker(t.follow)
	defer tick.Stop()
	for {
		if err := t.takeUp(ctx); err != nil && ctx.Err() == nil {
			t.log.Warn("which model is to decide is not known", "err", err)
		}
		select {
		case <-ctx.Done():
			<-done
			return
		case <-tick.C:
		}
	}
}

// takeUp has the bridge decide by the model in use, if it doesn't.
func (t *teacher) takeUp(ctx context.Context) error {
	u, err := t.models.Use(ctx)
	if err != nil || u.Model == t.using {
		return err
	}
	policies, err := newPolicies(t.cfg, t.predictor, t.log)
	if err != nil {
		return err
	}
	policies, id, err := withModel(ctx, t.cfg, t.models, t.predictor, policies, t.log)
	if err != nil {
		return err
	}
	t.using = u.Model
	t.bridge.Use(policies[0], policies[1:]...)
	t.log.Info("another model decides", "model", id, "wanted", u.Model, "pinned", u.Pinned)
	return nil
}

// retrainAlways has a model trained whenever it is time.
func (t *teacher) retrainAlways(ctx context.Context) {
	at := t.now().Add(t.settle)
	if all, err := t.models.List(ctx); err == nil && len(all) > 0 {
		if due := all[len(all)-1].Made.Add(t.cfg.RetrainEvery); due.After(at) {
			at = due
		}
	}
	for {
		timer := time.NewTimer(at.Sub(t.now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		t.once(ctx)
		at = t.now().Add(t.cfg.RetrainEvery)
	}
}

// once has one model trained, and logs the result.
func (t *teacher) once(ctx context.Context) {
	m, err := t.train(ctx)
	var few tooFewError
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &few):
		t.log.Info("no retraining", "why", few.Error())
	case errors.Is(err, models.ErrBusy):
		t.log.Info("no retraining", "why", err)
	case err != nil:
		t.log.Warn("retraining failed; the model in use stays", "err", err)
	default:
		t.log.Info("model trained", "model", m.ID, "state", m.State, "why", m.History[len(m.History)-1].Why)
	}
}

// tooFewError is what a child said that had too few runs.
type tooFewError struct{ error }

// train runs a retraining as a process of its own and writes down the result.
// The daemon holds the lock, so that no other process tidies the files away in between.
func (t *teacher) train(ctx context.Context) (*models.Model, error) {
	if err := t.dir.Make(); err != nil {
		return nil, err
	}
	lock, err := t.dir.Lock()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	text, err := t.child(ctx)
	if err != nil {
		return nil, err
	}
	var f found
	if err := json.Unmarshal(text, &f); err != nil || f.Finding == nil {
		return nil, fmt.Errorf("retraining said %.100q: %w", text, errors.Join(err, errors.New("that is no finding")))
	}
	return t.conclude(ctx, &f)
}

// child runs `slurmbridge models retrain` and returns what it prints. It has one core
// at most, the lowest priorities, and a bound on its memory; it dies with the daemon.
func (t *teacher) child(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, tooLong)
	defer cancel()
	c := t.cfg
	args := []string{"models", "retrain", "--low"}
	if c.File != "" {
		args = append(args, "--config="+c.File)
	}
	for name, value := range map[string]any{
		"database": c.Database, "retrain-days": c.RetrainDays, "retrain-runs": c.RetrainRuns, "window": c.Window, "max-group": c.MaxGroup,
		"memory-margin": c.MemoryMargin, "max-delay": c.MaxDelay, "max-slowdown": c.MaxSlowdown, "grace": c.Grace, "trust": c.Trust,
	} {
		args = append(args, fmt.Sprintf("--%s=%v", name, value))
	}
	cmd := exec.CommandContext(ctx, t.self, append(args, t.more...)...)
	cmd.Args[0] = "slurmbridge"
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NOTIFY_SOCKET=") && !strings.HasPrefix(v, "LISTEN_") && !strings.HasPrefix(v, "WATCHDOG_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1", "GOMEMLIMIT=512MiB")
	out, said := &head{most: 1 << 20}, &head{most: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, said
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The child dies with the thread that made it: that one has to live as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	last := strings.TrimSpace(said.String())
	var exit *exec.ExitError
	switch {
	case err == nil:
		return out.Bytes(), nil
	case errors.As(err, &exit) && exit.ExitCode() == exitTooFew:
		return nil, tooFewError{errors.New(strings.TrimPrefix(last, "slurmbridge: "))}
	case last != "":
		return nil, fmt.Errorf("%w: %s", err, last)
	}
	return nil, err
}

// head keeps the first of what is written to it.
type head struct {
	bytes.Buffer
	most int
}

// Write implements io.Writer.
func (h *head) Write(p []byte) (int, error) {
	h.Buffer.Write(p[:min(len(p), max(0, h.most-h.Len()))])
	return len(p), nil
}
