package plan

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// turnSoonS is how soon a further job's turn must come for keepTurns to take it along, s: GPUs may become free together.
const turnSoonS = 5

// keepTurns puts the jobs at the head of the queue into Slurm's own if a job would start too late after all foreign jobs:
// when a GPU becomes free, Slurm starts the first job of its queue at once, before the bridge can release another.
func (r *pass) keepTurns() {
	loses := func(j rlcore.Job) bool { return !j.Foreign && j.LosesTurn() }
	if r.in.Shadow || !slices.ContainsFunc(r.State.Pending, loses) {
		return
	}
	next := map[int]bool{} // by GPU: its next job is known
	for i := range r.State.Pending {
		j := &r.State.Pending[i]
		soon := j.StartS() <= turnSoonS
		for g := 0; len(next) < len(r.State.GPUs) && g < len(r.State.GPUs); g++ {
			if j.MayUse(g) && !next[g] {
				soon, next[g] = true, true
			}
		}
		if !j.Foreign && soon && j.StartS() > 0 {
			r.keepTurn(j)
		}
	}
}

// noteWaiting records when the remaining jobs are expected to start: each on GPUs of its own, in order of priority;
// sharing may start them sooner. It ungates jobs that may preempt others, that the bridge alone has delayed for too long,
// or that Slurm would cancel for their deadline if the bridge died now and the gate held them.
func (r *pass) noteWaiting() {
	idle := func(g int) bool { return len(r.State.GPUs[g].Running) == 0 }
	for _, j := range slices.Concat(r.State.Pending, r.withheld) {
		if j.Foreign {
			continue
		}
		if j.DeadlineS > 0 && j.DeadlineS-j.LimitS-r.State.NowS < r.in.HoldS {
			r.letGo(r.jobs[j.ID], job.UnfitDeadline, "")
		}
		switch why := r.closedTo[j.ID]; {
		case r.limited[j.ID] != "":
			continue
		case j.StartS() > 0 && why != "":
			r.limited[j.ID] = why
			continue
		case j.StartS() < math.MaxFloat64:
			r.plan.Starts[j.ID] = tracker.Time(r.State.NowS + j.StartS())
		}
		if idles := r.anyGPU(&j, idle); !idles || j.StartS() > 0 { // it isn't the bridge that keeps it waiting
			if !idles && !r.in.Shadow && r.preempts(&j) {
				r.letGo(r.jobs[j.ID], job.UnfitPreempts, "")
			}
			continue
		}
		r.plan.Idle[j.ID] = true
		if j.DelayedS >= r.Decider.Guard.DelayLimitS() && !r.in.Shadow {
			r.letGo(r.jobs[j.ID], job.UnfitDelay, "")
		}
	}
}

// preempts reports whether Slurm may preempt a job for it that runs on a GPU that it may use.
func (r *pass) preempts(j *rlcore.Job) bool {
	lower := func(x rlcore.Running) bool { return r.in.Snap.Ranks.Preempts(r.jobs[j.ID], r.jobs[x.ID]) }
	return r.anyGPU(j, func(g int) bool { return slices.ContainsFunc(r.State.GPUs[g].Running, lower) })
}

// anyGPU reports whether a GPU that the job may use fulfils a condition.
func (r *pass) anyGPU(j *rlcore.Job, is func(g int) bool) bool {
	for g := range r.State.GPUs {
		if is(g) && j.MayUse(g) {
			return true
		}
	}
	return false
}
