package plan

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/limit"
)

// Of jobs that are late by more than enoughLateS, which a start takes anyway, the first mostWays have a group
// taken out of their way in one plan.
const (
	enoughLateS = 10
	mostWays    = 20
)

// makeWay takes groups that follow on a GPU back into the queue where they are in the way of a job that goes
// before one of their members and would be late for them: it came, or rose in priority, after they had been
// made. What follows is decided anew then, with that job.
func (r *pass) makeWay() {
	limited := map[string]bool{}
	r.walkLimits(nil, "", func(at int, by *limit.Limit) bool {
		limited[r.State.Pending[at].ID] = by != nil
		return true
	})
	guard := r.Decider.Guard
	var starts []float64
	for range mostWays {
		ways, last := r.ways()
		if last == nil {
			return
		}
		starts = guard.Starts(starts, &r.State)
		g := -1
		for i := 0; i < len(starts) && g < 0; i++ {
			x := &r.State.Pending[i]
			if byPriority(r.jobs[x.ID], last) > 0 {
				break // and so do all that come after it
			}
			if !limited[x.ID] && starts[i] > guard.LatestStartS(&r.State, x, 1)+enoughLateS {
				g = r.inTheWay(ways, x, starts[i])
			}
		}
		if g < 0 {
			return
		}
		r.next.dissolve(r.next.on(g))
	}
}

// way is a GPU that others follow on.
type way struct {
	gpu   int
	freeS float64  // of those that run, s from now
	last  *job.Job // the member that Slurm would consider last
}

// ways returns the busy GPUs that others follow on, those that are free first before the others, and the last
// of all their members; nil = there are none.
func (r *pass) ways() (all []way, last *job.Job) {
	for g, group := range r.next.byGPU {
		if len(r.State.GPUs[g].Running) == 0 {
			continue // they start any moment now
		}
		w := way{gpu: g, freeS: r.Decider.Guard.FreeInS(&r.State, g)}
		for _, ref := range group.Refs() {
			if _, waits := r.next.aside[ref]; waits {
				w.last = lastOf(w.last, r.jobs[ref])
			}
		}
		if w.last != nil {
			all, last = append(all, w), lastOf(last, w.last)
		}
	}
	slices.SortFunc(all, func(a, b way) int { return cmp.Or(cmp.Compare(a.freeS, b.freeS), a.gpu-b.gpu) })
	return all, last
}

// lastOf returns which of two jobs Slurm would consider later; a may be nil.
func lastOf(a, b *job.Job) *job.Job {
	if a == nil || byPriority(b, a) > 0 {
		return b
	}
	return a
}

// inTheWay returns the GPU on which a job could start before the given time but for those that follow there;
// −1 = none.
func (r *pass) inTheWay(all []way, x *rlcore.Job, startS float64) int {
	for _, w := range all {
		if w.freeS+enoughLateS >= startS {
			break
		}
		if x.MayUse(w.gpu) && byPriority(r.jobs[x.ID], w.last) < 0 {
			return w.gpu
		}
	}
	return -1
}
