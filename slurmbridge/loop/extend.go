package loop

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/extend"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

const (
	// lendMargin is how long before its limit a job must be expected to end, or it gets more time: polls are
	// no further apart then, and Slurm may be slow to answer.
	lendMargin = time.Minute
	// pollNearLimit is the longest time between two polls while a sharing job comes near its limit.
	pollNearLimit = lendMargin / 2
)

// extend returns the changes that give running jobs back what sharing has cost them, where they would miss
// their time limits for it. The poll after shows whether Slurm has done it.
func (b *Bridge) extend(ctx context.Context, in *plan.Input) []job.Change {
	b.nearLimit = false
	if !b.ExtendLimit || b.acting() != job.Active {
		return nil
	}
	memberships := b.tracker.Memberships()
	ours := grouped(in, memberships)
	var out []job.Change
	for i := range in.Snap.Jobs {
		j := &in.Snap.Jobs[i]
		at, ok := onOneGPU(j)
		if !ok || j.Request.Kind != job.Shares || !ours[at] {
			continue
		}
		c, ok := b.claim(in, j)
		if !ok {
			continue
		}
		cost, end := c.CostS()
		b.nearLimit = b.nearLimit || end+(b.PollEvery+lendMargin).Seconds() > j.TimeLimit.Seconds()
		by := c.Raise(lendMargin)
		if by <= 0 {
			continue
		}
		if in.Bounds == nil {
			return nil
		}
		limit := min(j.TimeLimit+by, extend.Latest(j, in.Snap.At, c.RunS, in.Bounds))
		if limit <= j.TimeLimit {
			if b.tracker.NoteNoRoom(j, in.Snap.At) {
				b.Log.Warn("job may miss its time limit for sharing, and MaxTime, a reservation or its deadline leave no room",
					"job", j.Ref, "limit", j.TimeLimit)
			}
			continue
		}
		b.tracker.Lend(j, limit, in.Snap.At)
		m := memberships[j.Ref].Member
		if m != nil {
			m.OwnLimit = c.Own
		}
		out = append(out, job.Change{
			Step:   job.StepExtend,
			Why:    fmt.Sprintf("sharing costs it %s", time.Duration(cost*float64(time.Second)).Round(time.Second)),
			Update: job.Update{Jobs: []string{j.Ref}, TimeLimit: limit},
			Was:    map[string]string{j.Ref: "TimeLimit=" + j.TimeLimit.String()},
		})
	}
	if len(out) > 0 {
		// A bridge that ended after the update would take the raised limit for the job's own. That is the lesser harm if the
		// journal can't be written: without more time the jobs end at their limits.
		b.logged(b.Journal.SaveTracker(ctx, b.tracker))
	}
	return out
}

// boundsLast is how long the operators' bounds are used before they are read again.
const boundsLast = time.Minute

// readBounds reads the operators' bounds, once a minute while jobs share, and at each poll while jobs wait for one of
// them; nil = not known. It ends the limits that operators have lifted.
func (b *Bridge) readBounds(ctx context.Context, snap *job.Snapshot) *job.Bounds {
	closed := b.tracker.Limits.ByOperator()
	needed := closed || slices.ContainsFunc(snap.Jobs, func(j job.Job) bool { return j.Request.Kind == job.Shares })
	switch {
	case b.acting() != job.Active || !needed:
		return nil
	case b.bounds != nil && !closed && snap.At.Sub(b.boundsAt) < boundsLast:
		return b.bounds
	}
	read, err := b.Slurm.Bounds(ctx)
	b.complain("time limits are not raised; each poll tries again", err)
	if err != nil {
		b.bounds = nil
		return nil
	}
	b.tracker.Limits.Reopen(read, snap.At)
	bounds := *read
	switch {
	case !b.ExtendLimit:
		bounds.MaxTime = nil
	case b.PastMaxTime:
		bounds.MaxTime = make(map[string]time.Duration, len(read.MaxTime))
		for p := range read.MaxTime {
			bounds.MaxTime[p] = 0
		}
	}
	b.bounds = &bounds
	b.boundsAt = snap.At
	return b.bounds
}

// grouped returns the GPUs on which jobs of the bridge's groups run.
func grouped(in *plan.Input, memberships map[string]tracker.Membership) map[job.GPUAddr]bool {
	out := map[job.GPUAddr]bool{}
	for i := range in.Snap.Jobs {
		j := &in.Snap.Jobs[i]
		at, ok := onOneGPU(j)
		if ok && memberships[j.Ref].Group != nil {
			out[at] = true
		}
	}
	return out
}

// onOneGPU returns the GPU of a running job that has exactly one, else false.
func onOneGPU(j *job.Job) (at job.GPUAddr, ok bool) {
	if j.State != job.Running || len(j.GPUs) != 1 {
		return at, false
	}
	return job.GPUAddr{Node: j.Nodes, GPU: j.GPUs[0]}, true
}

// claim describes a running job for package extend. It returns false if too little is known of the job or its limit may
// not be raised.
func (b *Bridge) claim(in *plan.Input, j *job.Job) (c extend.Claim, ok bool) {
	p := b.tracker.Done[j.Ref]
	profile := in.Profile(j)
	own, ok := b.tracker.Lendable(j, in.Snap.At)
	if p == nil || profile != nil && profile.Busy != nil || j.TimeLimit == 0 || !ok {
		return c, false
	}
	if profile != nil && profile.Asked { // nothing of it is measured
		profile = nil
	}
	return extend.Claim{
		Progress: p.Progress, Profile: profile, Limit: j.TimeLimit, Own: own,
		Contract: cmp.Or(in.Terms[j.Ref].MaxSlowdown, b.Planner.Decider.Guard.MaxSlowdown),
	}, true
}
