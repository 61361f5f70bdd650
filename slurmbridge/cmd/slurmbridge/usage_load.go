package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// mostRunning bounds how many jobs that run are counted.
const mostRunning = 100_000

// pollsAgo is how long ago a poll may have been for the jobs that it showed to be taken to run.
const pollsAgo = 2 * time.Hour

// settle makes the footprints of what has ended.
func settle(ctx context.Context, st *store.Store, j *journal.Journal, now time.Time) error {
	return (&history.History{Records: st, Journal: j}).Settle(ctx, j, now)
}

// loadUsage sums up footprints and running jobs.
func loadUsage(ctx context.Context, j *journal.Journal, now time.Time, q usage.Query) (*usage.Report, error) {
	t := usage.New(q)
	if err := j.Footprints(ctx, q.From, q.To, func(list []history.Footprint) error {
		t.Add(list)
		return nil
	}); err != nil {
		return nil, err
	}
	seen, err := j.LastPoll(ctx)
	if err != nil {
		return nil, err
	}
	if now.Sub(seen) < pollsAgo {
		seen = now
	}
	running, err := j.Running(ctx, now, now, mostRunning)
	if err != nil {
		return nil, err
	}
	for i := range running {
		if r := &running[i]; r.End.IsZero() {
			r.End = seen
			t.Add([]history.Footprint{history.FootprintOf(r)})
		}
	}
	r := t.Report()
	if r.Total.Runs == 0 {
		return nil, noUsage(ctx, j, q)
	}
	return r, nil
}

// noUsage says why nothing is known.
func noUsage(ctx context.Context, j *journal.Journal, q usage.Query) error {
	of := "GPU jobs"
	switch {
	case len(q.Users) > 0:
		of += " of " + strings.Join(q.Users, ", ")
	case len(q.Accounts) > 0:
		of += " of account " + strings.Join(q.Accounts, ", ")
	}
	first, err := j.FirstFootprint(ctx)
	if err != nil {
		return err
	}
	since := "none has ended yet that the daemon or a node noted"
	if !first.IsZero() {
		since = "the first job that is known began at " + first.Local().Format(time.DateTime)
	}
	return fmt.Errorf("%w of %s from %s to %s: %s", httpapi.ErrNoUsage, of, q.From.Local().Format(time.DateTime), q.To.Local().Format(time.DateTime), since)
}
