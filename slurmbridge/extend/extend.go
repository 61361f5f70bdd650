// Package extend decides which running jobs get time back that sharing has cost them: pure.
//
// Slurm ends a job at its time limit, even if sharing slowed it. On plain Slurm a job with a limit of L does up to L of
// solo work. A job that would miss its limit because it shares is therefore given the time that sharing has cost it and
// is expected to cost it: it ends after as much solo work as on plain Slurm.
package extend

import (
	"math"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Claim describes a running job that may get a higher time limit. Seconds are of its run, without
// the time in which it was suspended.
type Claim struct {
	job.Progress
	// Profile is its application's, nil = not known: the job may run to its limit.
	Profile *rlcore.Profile
	// Limit is its time limit, Own what that was before anything was lent; 0 = none.
	Limit, Own time.Duration
	// Contract is the slowdown that it allows, 0 = any.
	Contract float64
}

// CostS is what sharing has cost the job and is expected to cost it, s, and EndS when it is expected to end,
// s of its run.
//
// An application whose runs all take the same time, less than its own limit, and that runs on was slowed more than
// predicted: the longer, the less of the predicted work is believed. One whose runs differ, or that runs to its limit
// alone, shows nothing by running on. In any case the job did what an equal part of the GPU allows: one that hangs is
// ended as well, after no more solo work than its own limit.
func (c *Claim) CostS() (costS, endS float64) {
	own, slow := c.Own.Seconds(), max(c.Slow, 1)
	done := c.DoneS
	if c.Profile != nil && c.Profile.DurationS < own {
		done = c.Profile.Believed(done)
	}
	done = min(max(done, c.LeastS), c.RunS)
	left := max(0, own-done)
	if c.Profile != nil {
		left = c.Profile.Left(done, own)
	}
	return c.RunS - done + left*(slow-1), c.RunS + left*slow
}

// Raise is by how much the job's limit is to be raised, in whole minutes: where it is expected to end less
// than margin before its limit, or after it, by all that sharing costs it, less what it was lent already.
func (c *Claim) Raise(margin time.Duration) time.Duration {
	if c.Limit <= 0 || c.Own <= 0 {
		return 0
	}
	cost, end := c.CostS()
	if !(end+margin.Seconds() > c.Limit.Seconds()) {
		return 0
	}
	limit := c.Own + minutes(math.Ceil(cost/60-1e-6))
	if c.Contract >= 1 {
		limit = min(limit, minutes(math.Floor(c.Own.Minutes()*c.Contract)))
	}
	return max(0, limit-c.Limit).Truncate(time.Minute)
}

// longest is more than any time limit, in minutes.
const longest = 1 << 24

func minutes(n float64) time.Duration { return time.Duration(min(n, longest)) * time.Minute }

// Latest is the latest time limit, in whole minutes, that Slurm's own bounds leave a job that has run for
// runS seconds by now, or that would start now: its partitions' MaxTime, the reservations on its node (of a pending job
// on any), its owner's deadline. It is below the present limit where that is too long already.
func Latest(j *job.Job, now time.Time, runS float64, b *job.Bounds) time.Duration {
	latest := time.Duration(longest) * time.Minute
	for _, p := range j.Partitions() {
		switch most, known := b.MaxTime[p]; {
		case !known:
			return 0
		case most > 0:
			latest = min(latest, most)
		}
	}
	until := func(t time.Time) { latest = min(latest, time.Duration(runS*float64(time.Second))+t.Sub(now)) }
	if !j.Deadline.IsZero() {
		until(j.Deadline)
	}
	for i := range b.Reservations {
		switch r := &b.Reservations[i]; {
		case r.Name == j.Reservation:
			until(r.End)
		case (j.Nodes == "" || r.Holds(j.Nodes)) && (r.End.IsZero() || r.End.After(now)):
			until(r.Start)
		}
	}
	return max(0, latest).Truncate(time.Minute)
}
