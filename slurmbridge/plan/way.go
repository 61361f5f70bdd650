package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Of jobs that are late by more than enoughLateS, which a start takes anyway, the first mostWays have a group
// taken out of their way in one plan.
const (
	enoughLateS = 10
	mostWays    = 20
)

// makeWay takes groups that follow on a GPU back into the queue where they are in the way of a job that goes
// before one of their members and would be late for them: it came, or rose in priority, after they had been
// made, or it follows itself where those that run take longer than was expected. What follows is decided anew then,
// with that job.
func (r *pass) makeWay() {
	for range mostWays {
		ways, last := r.ways()
		if last == nil {
			return
		}
		g, own := r.wayOfOne(ways, last), -1
		if g < 0 {
			g, own = r.wayOfFollower(ways)
		}
		if g < 0 {
			return
		}
		r.next.dissolve(r.next.on(g))
		r.next.dissolve(r.next.on(own))
	}
}

// wayOfOne returns the GPU whose followers are in the way of a job of the queue; −1 = none is. Nothing is
// promised to one that is at a limit, so it isn't late.
func (r *pass) wayOfOne(all []way, last *job.Job) int {
	guard := r.Decider.Guard
	var alone [1]rlcore.Running
	var by []float64
	for i, startS := range guard.Starts(nil, &r.State) {
		x := &r.State.Pending[i]
		if byPriority(r.jobs[x.ID], last) > 0 {
			break // and so do all that come after it
		}
		alone[0].Job = *x
		by = guard.LatestStarts(by, &r.State, &rlcore.GPUSpec{}, alone[:])
		if startS > by[0]+enoughLateS {
			if g := r.inTheWay(all, x, startS); g >= 0 {
				return g
			}
		}
	}
	return -1
}

// wayOfFollower returns the GPU whose followers are in the way of a job that follows on another one, own; −1 =
// none is.
func (r *pass) wayOfFollower(all []way) (g, own int) {
	guard := r.Decider.Guard
	for _, w := range all {
		_, jobs := r.following(w.gpu)
		free := guard.FreeInS(&r.State, w.gpu)
		for i, by := range guard.LatestStarts(nil, &r.State, &r.State.GPUs[w.gpu].Spec, jobs) {
			if free <= by+enoughLateS {
				continue
			}
			if g := r.inTheWay(all, &jobs[i].Job, w.freeS); g >= 0 {
				return g, w.gpu
			}
		}
	}
	return -1, -1
}

// way is a GPU that others follow on.
type way struct {
	gpu   int
	freeS float64  // of those that run, s from now; +Inf = they ought to have ended
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
		if w.freeS <= 0 {
			w.freeS = math.Inf(1)
		}
		for _, j := range r.next.waiting(group) {
			w.last = lastOf(w.last, r.jobs[j.ID])
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
