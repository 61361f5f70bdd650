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
func settle(ctx context.Context, st *store.Store, now time.Time) error {
	used := usage.Store{DB: st.DB()}
	if err := used.TakeOver(ctx); err != nil {
		return err
	}
	return (&history.History{Records: st, Journal: journal.New(st.DB())}).Settle(ctx, used, now)
}

// loadUsage sums up footprints and running jobs.
func loadUsage(ctx context.Context, st *store.Store, now time.Time, q usage.Query) (*usage.Report, error) {
	j, used := journal.New(st.DB()), usage.Store{DB: st.DB()}
	seen, err := j.LastPoll(ctx)
	if err != nil {
		return nil, err
	}
	if now.Sub(seen) < pollsAgo {
		seen = now
	}
	runs, err := j.Running(ctx, now, now, mostRunning)
	if err != nil {
		return nil, err
	}
	var running []history.Footprint
	for i := range runs {
		if r := &runs[i]; r.End.IsZero() {
			r.End = seen
			running = append(running, history.FootprintOf(r))
		}
	}
	r, err := used.Report(ctx, q, running)
	if err == nil && r == nil {
		err = noUsage(ctx, used, q)
	}
	return r, err
}

// noUsage says why nothing is known.
func noUsage(ctx context.Context, used usage.Store, q usage.Query) error {
	of := "GPU jobs"
	switch {
	case len(q.Users) > 0:
		of += " of " + strings.Join(q.Users, ", ")
	case len(q.Accounts) > 0:
		of += " of account " + strings.Join(q.Accounts, ", ")
	}
	first, err := used.First(ctx)
	if err != nil {
		return err
	}
	since := "none has ended yet that the daemon or a node noted"
	if !first.IsZero() {
		since = "the first job that is known ended at " + first.Local().Format(time.DateTime)
	}
	return fmt.Errorf("%w of %s from %s to %s: %s", httpapi.ErrNoUsage, of, q.From.Local().Format(time.DateTime), q.To.Local().Format(time.DateTime), since)
}
