package loop

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// scripts counts by job how often its script was read.
type scripts struct {
	job.Slurm
	*sync.Mutex
	read map[string]int
}

func (s scripts) Script(_ context.Context, ref string) ([]byte, error) {
	s.Lock()
	defer s.Unlock()
	s.read[ref]++
	return []byte("#!/bin/sh\nlmp\n"), nil
}

type named struct{}

func (named) Identify(context.Context, *job.Job, job.Terms, []byte) (string, error) {
	return "lmp", nil
}

func (named) Profile(context.Context, string, string, string) (*rlcore.Profile, error) {
	return nil, nil
}

// What a job with a GPU of its own runs is found out once, and no plan hears of it; jobs that wait, and those with
// several GPUs, are no business of ours.
func TestJobsWithAGPUOfTheirOwnAreRecognised(t *testing.T) {
	s := scripts{Mutex: new(sync.Mutex), read: map[string]int{}}
	d := &identifier{
		apps: named{}, slurm: s, log: slog.New(slog.DiscardHandler), now: time.Now,
		window: func() int { return 5 }, byRef: map[string]identified{}, profiles: map[application]*rlcore.Profile{},
		foretold: map[*rlcore.Profile]map[time.Duration]*rlcore.Profile{},
	}
	whole := func(ref string, state job.JobState, gpus int) job.Job {
		return job.Job{Ref: ref, User: "ann", State: state, Request: job.GPURequest{Kind: job.WholeGPU, Count: gpus}}
	}
	snap := &job.Snapshot{Jobs: []job.Job{
		whole("1", job.Running, 1), whole("2", job.Pending, 1),
		whole("3", job.Running, 4),
	}}
	for range 3 {
		in := &plan.Input{Snap: snap, Tracker: tracker.New()}
		d.identify(t.Context(), in)
		if len(in.Apps) > 0 {
			t.Errorf("a plan hears of %v", in.Apps)
		}
	}
	if s.read["1"] != 1 || len(s.read) != 1 {
		t.Errorf("scripts were read %v times", s.read)
	}
}

// An interactive session needs no script, keeps its profile from tick to tick, and is no application.
func TestSessionsAreRecognised(t *testing.T) {
	s := scripts{Mutex: new(sync.Mutex), read: map[string]int{}}
	d := &identifier{
		apps: named{}, slurm: s, log: slog.New(slog.DiscardHandler), now: time.Now,
		window: func() int { return 5 }, sessions: job.Sessions{MemMiB: 4096, MaxSlowdown: 1.3},
		byRef: map[string]identified{}, profiles: map[application]*rlcore.Profile{},
		foretold: map[*rlcore.Profile]map[time.Duration]*rlcore.Profile{},
	}
	snap := &job.Snapshot{Jobs: []job.Job{{
		Ref: "1", User: "ann", State: job.Running, Comment: "share:interactive",
		Request: job.GPURequest{Kind: job.Shares, Count: 70},
	}}}
	var last *rlcore.Profile
	for range 2 {
		in := &plan.Input{Snap: snap, Tracker: tracker.New()}
		d.identify(t.Context(), in)
		app := in.Apps["1"]
		if app.Key != "" || app.Profile == nil || app.Profile.Busy == nil || last != nil && last != app.Profile ||
			in.Terms["1"].MaxSlowdown != 1.3 {
			t.Fatalf("%+v, terms %+v", app, in.Terms["1"])
		}
		last = app.Profile
	}
	if len(s.read) > 0 {
		t.Errorf("scripts were read: %v", s.read)
	}
}

// A job of an application without a profile goes by what its owner says of its memory, from tick to tick by one
// profile, which jobs alike share. A job that asks for a GPU of its own doesn't.
func TestMemoryThatAnOwnerSaysIsRemembered(t *testing.T) {
	s := scripts{Mutex: new(sync.Mutex), read: map[string]int{}}
	d := &identifier{
		apps: named{}, slurm: s, log: slog.New(slog.DiscardHandler), now: time.Now,
		window: func() int { return 5 }, byRef: map[string]identified{}, profiles: map[application]*rlcore.Profile{},
	}
	says := func(ref, comment string, kind job.RequestKind) job.Job {
		return job.Job{
			Ref: ref, User: "ann", State: job.Running, TimeLimit: time.Hour, Comment: "app=new," + comment,
			Request: job.GPURequest{Kind: kind, Count: 70},
		}
	}
	snap := &job.Snapshot{Jobs: []job.Job{
		says("1", "share:memory=8G", job.Shares), says("2", "share:memory=8G", job.Shares),
		says("3", "share:memory=4G", job.Shares), says("4", "", job.Shares), says("5", "share:memory=8G", job.WholeGPU),
	}}
	var last *rlcore.Profile
	for range 3 {
		in := &plan.Input{Snap: snap, Tracker: tracker.New()}
		d.identify(t.Context(), in)
		p := in.Apps["1"].Profile
		if p == nil || p != in.Apps["2"].Profile || p == in.Apps["3"].Profile || in.Apps["4"].Profile != nil ||
			in.Apps["5"].Profile != nil ||
			last != nil && p != last || p.HeldMiB != 8192 || in.Apps["1"].Key == "" {
			t.Fatalf("%+v", in.Apps)
		}
		last = p
	}
	snap.Jobs = nil
	if d.identify(t.Context(), &plan.Input{Snap: snap, Tracker: tracker.New()}); len(d.asked) > 0 {
		t.Errorf("remembered for no job: %v", d.asked)
	}
}

// slow takes a while to name an application.
type slow struct {
	named
	now *time.Time
}

func (s slow) Identify(_ context.Context, _ *job.Job, t job.Terms, _ []byte) (string, error) {
	*s.now = s.now.Add(10 * time.Millisecond)
	return t.App, nil
}

// However many jobs come at once, a tick spends no longer on them than it may, and the next goes on.
func TestIdentifyingIsBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	d := &identifier{
		apps: slow{now: &now}, slurm: scripts{Mutex: new(sync.Mutex), read: map[string]int{}},
		log: slog.New(slog.DiscardHandler),
		now: func() time.Time { return now }, window: func() int { return 1000 }, byRef: map[string]identified{},
		profiles: map[application]*rlcore.Profile{},
		foretold: map[*rlcore.Profile]map[time.Duration]*rlcore.Profile{},
	}
	snap := &job.Snapshot{}
	for i := range 500 {
		snap.Jobs = append(snap.Jobs, job.Job{
			Ref: strconv.Itoa(i), User: "ann", State: job.Running, Comment: "app=lmp",
			Request: job.GPURequest{Kind: job.Shares, Count: 50},
		})
	}
	known, ticks := 0, 0
	for known < len(snap.Jobs) {
		began, in := now, &plan.Input{Snap: snap, Tracker: tracker.New()}
		d.identify(t.Context(), in)
		if took := now.Sub(began); took > identifyBudget+time.Second || len(in.Apps) <= known {
			t.Fatalf("%d are known after %d, a tick took %v", len(in.Apps), known, took)
		}
		known = len(in.Apps)
		ticks++
	}
	if ticks < 2 {
		t.Errorf("all in %d tick", ticks)
	}
}
