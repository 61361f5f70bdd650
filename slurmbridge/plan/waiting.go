package plan

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// turnSoonS is how soon a job's turn must come, s, for keepTurns to ungate it: about a poll and the ends of some jobs.
const turnSoonS = 60

// keepTurns ungates the jobs whose turn is near and that have a foreign job behind them: when a GPU becomes free, Slurm
// starts the first job of its own queue at once, before the bridge can release another.
func (r *pass) keepTurns() {
	last, next := map[int]int{}, map[int]bool{} // by GPU: the last foreign job that may use it; its next job is known
	for i := range r.State.Pending {
		for g := range r.State.GPUs {
			if j := &r.State.Pending[i]; j.Foreign && j.MayUse(g) {
				last[g] = i
			}
		}
	}
	for i := 0; len(last) > 0 && !r.in.Shadow && i < len(r.State.Pending); i++ {
		j := &r.State.Pending[i]
		first, overtaken := false, false
		for g := range r.State.GPUs {
			if j.MayUse(g) {
				overtaken, first, next[g] = overtaken || last[g] > i, first || !next[g], true
			}
		}
		if !j.Foreign && overtaken && j.StartS() > 0 && (first || j.StartS() <= turnSoonS) {
			r.letGo(r.jobs[j.ID], job.UnfitTurn, "")
		}
	}
}

// noteWaiting records when the remaining jobs are expected to start: each on GPUs of its own, in order of priority;
// sharing may start them sooner. It ungates jobs that the bridge alone has delayed for too long, and jobs that Slurm
// might cancel behind the gate: it cancels a job once the limit doesn't fit before the deadline, and if the bridge died
// now, the gate would hold the job past that.
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
		if j.StartS() > 0 || !r.anyGPU(&j, idle) {
			continue // it isn't the bridge that keeps it waiting
		}
		r.plan.Idle[j.ID] = true
		if j.DelayedS >= r.Decider.Guard.DelayLimitS() && !r.in.Shadow {
			r.letGo(r.jobs[j.ID], job.UnfitDelay, "")
		}
	}
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
