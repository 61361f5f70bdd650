package plan

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// turnSoonS is how soon a job's turn must come, s, for keepTurns to ungate it in addition to the next one: GPUs may become
// free at about the same time.
const turnSoonS = 5

// keepTurns ungates the jobs at the head of the queue if a job would start too late if all foreign
// jobs went first. Foreign jobs do: when a GPU becomes free, Slurm starts the first job of its own
// queue at once, before the bridge can release another.
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
