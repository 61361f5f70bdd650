package plan

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// turnSoonS is how soon a further job's turn must come for keepTurns to take it along, s: GPUs may become free together.
const turnSoonS = 5

// keepTurns puts the jobs at the head of the queue into Slurm's own if a job would start too late after all foreign jobs:
// when a GPU becomes free, Slurm starts the first job of its queue at once, before the bridge can release another.
//
// An interactive session waits there from the beginning, as a job of a whole GPU does.
func (r *pass) keepTurns() {
	session := func(j *rlcore.Job) bool { return j.Profile != nil && j.Profile.Busy != nil }
	for i := range r.State.Pending {
		if j := &r.State.Pending[i]; !r.in.Shadow && !j.Foreign && session(j) {
			r.keepTurn(j)
		}
	}
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
		if !j.Foreign && !session(j) && soon && j.StartS() > 0 {
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
		if r.waitsTooLong(&j) && !r.in.Shadow {
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

// A job that is to keep its turn among jobs that don't share waits in Slurm's own queue, and any GPU may be the next that
// becomes free. It requests so many shares that it fits on no GPU with another job, whichever end: more than 100 less the
// smallest number that a sharer holds. While it waits, no job gets fewer than fit next to it. What it leaves of its GPU is
// for jobs that join it.

// turnShares bounds the shares of such a job. Groups of three equal parts are possible while it waits for its turn.
const (
	leastTurnShares = 70
	mostTurnShares  = job.Units - 1
)

// turnShares returns the shares with which a job can start on an empty GPU alone; false = there is no such number with room
// for others.
func (r *pass) turnShares() (int, bool) {
	shares := leastTurnShares
	see := func(ref string, holds int) {
		if r.turns(ref) {
			holds = job.Units - holds // of a job that joins it
		}
		shares = max(shares, job.Units+1-holds)
	}
	for i := range r.in.Snap.Jobs {
		if j := &r.in.Snap.Jobs[i]; j.State != job.Pending && j.Request.Kind == job.Shares && j.Request.Count < job.Units {
			see(j.Ref, j.Request.Count)
		}
	}
	for _, g := range r.in.Tracker.Groups {
		for i := range g.Members {
			if m := &g.Members[i]; !m.State.Final() && g.Kind != job.Turn && m.Shares < job.Units {
				see(m.Ref, m.Shares)
			}
		}
	}
	for _, d := range r.drafts {
		for i := range d.group.Members {
			see("", d.group.Members[i].Shares)
		}
	}
	return shares, shares <= mostTurnShares
}

// turns reports whether a job was released to keep its turn.
func (v *view) turns(ref string) bool {
	seat := v.seats[ref]
	return seat.Group != nil && seat.Group.Kind == job.Turn
}

// leastShares is the smallest number of shares that fits on no GPU next to a job that waits for its turn.
func (v *view) leastShares() int {
	least := 1
	for _, g := range v.in.Tracker.Groups {
		for i := range g.Members {
			m := &g.Members[i]
			if g.Kind == job.Turn && !m.State.Final() && m.State != job.MemberRunning {
				least = max(least, job.Units+1-m.Shares)
			}
		}
	}
	return least
}

// keepTurn lets a job wait in Slurm's queue, with room on its GPU for others if it may share and there are shares for that;
// else it is ungated.
func (r *pass) keepTurn(j *rlcore.Job) {
	shares, ok := r.turnShares()
	if !ok || r.adopted(j.ID) && !r.hasPartner(j) || !r.Join || !r.leavesRoom(r.in) || j.NoShare || j.Profile == nil || len(r.nodes) == 0 {
		r.letGo(r.jobs[j.ID], job.UnfitTurn, "")
		return
	}
	g := 0
	for g < len(r.State.GPUs)-1 && !j.MayUse(g) {
		g++
	}
	card := rlcore.GPU{Spec: r.State.GPUs[g].Spec}
	m := r.member(j, r.gpus[g].node)
	m.Shares, m.Predicted = shares, 1
	r.limitMemory(&m, j.Profile, r.Decider.Guard.MemoryLimits(&card, []*rlcore.Profile{j.Profile})[0])
	group := job.Group{Kind: job.Turn, State: job.Preparing, Decided: r.in.Snap.At, Policy: r.Decider.Policy.Name(), Members: []job.Member{m}}
	r.plan.Groups = append(r.plan.Groups, release.Make(&group, r.jobs, r.gpus[g].node.Sharing))
}
