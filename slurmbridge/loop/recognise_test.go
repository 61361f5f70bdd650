package loop

import (
	"context"
	"log/slog"
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

func (named) Profile(context.Context, string, string) (*rlcore.Profile, error) { return nil, nil }

// What a job with a GPU of its own runs is found out once, and no plan hears of it; jobs that wait, and those with
// several GPUs, are no business of ours.
func TestJobsWithAGPUOfTheirOwnAreRecognised(t *testing.T) {
	s := scripts{Mutex: new(sync.Mutex), read: map[string]int{}}
	d := &identifier{apps: named{}, slurm: s, log: slog.New(slog.DiscardHandler), now: time.Now, window: func() int { return 5 }, byRef: map[string]identified{}, profiles: map[application]*rlcore.Profile{}}
	whole := func(ref string, state job.JobState, gpus int) job.Job {
		return job.Job{Ref: ref, User: "ann", State: state, Request: job.GPURequest{Kind: job.WholeGPU, Count: gpus}}
	}
	snap := &job.Snapshot{Jobs: []job.Job{whole("1", job.Running, 1), whole("2", job.Pending, 1), whole("3", job.Running, 4)}}
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
