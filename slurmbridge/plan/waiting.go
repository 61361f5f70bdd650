package plan

import (
	"fmt"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// turnSoonS is how soon a further job's turn must come for keepTurns to take it along, s: GPUs may become free
// together.
const turnSoonS = 5

// keepTurns puts the jobs at the head of the queue into Slurm's own if a job would start too late after all foreign
// jobs: when a GPU becomes free, Slurm starts the first job of its queue at once, before the bridge can release
// another.
//
// An interactive session waits there from the beginning, as a job of a whole GPU does.
func (r *pass) keepTurns() {
	session := func(j *rlcore.Job) bool { return j.Profile != nil && j.Profile.Busy != nil }
	for i := range r.now.Pending {
		if j := &r.now.Pending[i]; !r.Shadow && !j.Foreign && session(j) {
			r.keepTurn(j)
		}
	}
	loses := func(j rlcore.Job) bool { return !j.Foreign && j.LosesTurn() }
	if r.Shadow || !slices.ContainsFunc(r.now.Pending, loses) {
		return
	}
	next := map[int]bool{} // by GPU: its next job is known
	for i := range r.now.Pending {
		j := &r.now.Pending[i]
		soon := j.StartS() <= turnSoonS
		for g := 0; len(next) < len(r.now.GPUs) && g < len(r.now.GPUs); g++ {
			if j.MayUse(g) && !next[g] {
				soon, next[g] = true, true
			}
		}
		if !j.Foreign && !session(j) && soon && j.StartS() > 0 {
			r.keepTurn(j)
		}
	}
}

// noteReleased notes the jobs that wait where they were sent, though Slurm would start them elsewhere, or says by now
// that it keeps the node from them.
func (r *pass) noteReleased() {
	for ref := range r.starting {
		seat, was := r.seats[ref], *r.jobs[ref]
		if seat.Member.State != job.MemberWaiting {
			continue
		}
		j, node := r.convert(&was), seat.Group.Node
		was.ReqNodes = seat.Member.WasNodes
		was.Request = text.ParseRequest(text.TRES{PerNode: seat.Member.WasGres})
		j.GPUs = r.reach(&was, r.closedFor(&was), r.wanted(&was)).gpus
		r.plan.Idle[ref] = r.startsElsewhere(&j, node, r.now.GPUs)
		r.plan.PassedOver[ref] = r.kept[node].planned && !r.backfills(&j, node)
	}
}

// noteWaiting records when the remaining jobs are expected to start: each on GPUs of its own, in order of priority;
// sharing may start them sooner. It ungates jobs that may preempt others, that the bridge alone has delayed for too
// long, or that Slurm would cancel for their deadline if the bridge died now and the gate held them.
func (r *pass) noteWaiting() {
	isIdle := func(g int) bool { return len(r.now.GPUs[g].Running) == 0 && !r.kept[r.now.GPUs[g].Node].planned }
	idle := r.onAnyGPU(func(_ *job.Job, g int) bool { return isIdle(g) })
	spare := r.onAnyGPU(func(_ *job.Job, g int) bool { return isIdle(g) && r.guard.Spare(g) })
	var planned []int
	for g := range r.now.GPUs {
		if len(r.now.GPUs[g].Running) == 0 && r.kept[r.now.GPUs[g].Node].planned {
			planned = append(planned, g)
		}
	}
	preempts := r.onAnyGPU(func(j *job.Job, g int) bool {
		lower := func(x rlcore.Running) bool { return r.Snap.Ranks.Preempts(j, r.jobs[x.ID]) }
		return slices.ContainsFunc(r.now.GPUs[g].Running, lower)
	})
	for _, j := range slices.Concat(r.now.Pending, r.withheld) {
		if j.Foreign {
			continue
		}
		if j.DeadlineS > 0 && j.DeadlineS-j.LimitS-r.now.NowS < r.HoldS {
			r.ungate(r.jobs[j.ID], job.UngatedDeadline, "")
		}
		switch why := r.closedTo[j.ID]; {
		case r.limited[j.ID] != "":
			continue
		case j.StartS() > 0 && why != "":
			r.limited[j.ID] = why
			continue
		case j.StartS() < math.MaxFloat64:
			r.plan.Starts[j.ID] = tracker.Time(r.now.NowS + j.StartS())
		}
		idles, keeper := idle(&j), ""
		for _, g := range planned {
			name := r.now.GPUs[g].Node
			if idles || name == keeper || !j.MayUse(g) {
				continue
			}
			idles, keeper = r.backfills(&j, name), name
		}
		if !idles && keeper != "" { // plain Slurm would keep it waiting, too
			r.limited[j.ID] = fmt.Sprintf("Slurm keeps %s for job %s, and starts a job of lower priority there only if its "+
				"time limit ends before", keeper, r.kept[keeper].by.Ref)
		}
		if !idles || j.StartS() > 0 && !spare(&j) { // it isn't the bridge that keeps it waiting
			switch own := r.jobs[j.ID]; {
			case idles || r.Shadow:
			case preempts(&j):
				r.ungate(own, job.UngatedPreempts, "")
			case r.isDrawn(own):
				r.ungate(own, job.UngatedDrawn, "")
			}
			continue
		}
		r.plan.Idle[j.ID] = true
		if r.waitsTooLong(&j) && !r.Shadow {
			r.ungate(r.jobs[j.ID], job.UngatedDelay, "")
		}
	}
}

// isDrawn reports whether Slurm may start a job on a node that a magnetic reservation keeps from the bridge.
func (r *pass) isDrawn(j *job.Job) bool {
	if r.Bounds == nil {
		return false
	}
	return slices.ContainsFunc(r.Bounds.Reservations, func(v job.Reservation) bool {
		if !v.Draws(j, r.Snap.At) {
			return false
		}
		may := mayRun(j)
		return slices.ContainsFunc(r.Snap.Nodes, func(n job.Node) bool { return n.Reserved && v.Holds(n.Name) && may(&n) })
	})
}

// onAnyGPU returns what reports whether a GPU that a job may use fulfils a condition, which is the same for all jobs of
// the same partitions.
func (r *pass) onAnyGPU(is func(j *job.Job, g int) bool) func(j *rlcore.Job) bool {
	type key struct {
		gpus      *rlcore.GPUSet
		partition string
	}
	known := map[key]bool{}
	return func(j *rlcore.Job) bool {
		own := r.jobs[j.ID]
		return once(known, key{j.GPUs, own.Partition}, func() bool {
			for g := range j.GPUs.Of(len(r.now.GPUs)) {
				if is(own, g) {
					return true
				}
			}
			return false
		})
	}
}

// A job that is to keep its turn among jobs that don't share waits in Slurm's own queue, and any GPU may be the next
// that becomes free. It requests so many shares that it fits on no GPU with another job, whichever end: more than 100
// less the smallest number that a sharer holds. While it waits, no job gets fewer than fit next to it. What it leaves
// of its GPU is for jobs that join it.

// turnShares bounds the shares of such a job. Groups of three equal parts are possible while it waits for its turn.
const (
	leastTurnShares = 70
	mostTurnShares  = job.Units - 1
)

// turnShares returns the shares with which a job can start on an empty GPU alone; false = there is no such number with
// room for others.
func (r *pass) turnShares() (int, bool) {
	shares := leastTurnShares
	see := func(ref string, holds int) {
		if r.keepsTurn(ref) {
			holds = job.Units - holds // of a job that joins it
		}
		shares = max(shares, job.Units+1-holds)
	}
	for i := range r.Snap.Jobs {
		if j := &r.Snap.Jobs[i]; j.State != job.Pending && j.Request.Kind == job.Shares && j.Request.Count < job.Units {
			see(j.Ref, j.Request.Count)
		}
	}
	for _, g := range r.Tracker.Groups {
		for i := range g.Members {
			if m := &g.Members[i]; !m.State.Final() && g.Kind != job.Turn && m.Shares < job.Units {
				see(m.Ref, m.Shares)
			}
		}
	}
	for _, all := range r.placed {
		for i := range all {
			see("", all[i].Shares)
		}
	}
	return shares, shares <= mostTurnShares
}

// leastShares is the smallest number of shares that fits on no GPU next to a job that waits for its turn.
func (p *poll) leastShares() int {
	least := 1
	for _, g := range p.Tracker.Groups {
		for i := range g.Members {
			m := &g.Members[i]
			if g.Kind == job.Turn && !m.State.Final() && m.State != job.MemberRunning {
				least = max(least, job.Units+1-m.Shares)
			}
		}
	}
	return least
}

// keepTurn lets a job wait in Slurm's queue, with room on its GPU for others if it may share and there are shares for
// that; else it is ungated.
func (r *pass) keepTurn(j *rlcore.Job) {
	shares, ok := r.turnShares()
	shareable := r.Join && r.leavesRoom() && !j.NoShare && j.Profile != nil && len(r.nodes) > 0
	if !ok || !shareable || r.adopted(j.ID) && !r.hasPartner(j) {
		r.ungate(r.jobs[j.ID], job.UngatedTurn, "")
		return
	}
	g := 0
	for g < len(r.now.GPUs)-1 && !j.MayUse(g) {
		g++
	}
	card, on := rlcore.GPU{Spec: r.now.GPUs[g].Spec}, r.gpus[g].node
	p := placement{Running: rlcore.Running{Job: *j, Shares: shares}, gpu: g}
	p.MemLimitMiB = r.guard.MemoryLimits(&card, []*rlcore.Profile{j.Profile})[0]
	m := r.member(&p, on)
	m.Predicted, m.GPUType = 1, r.onlyType(j, on.Sharing)
	group := job.Group{
		Kind: job.Turn, State: job.Preparing, Decided: r.Snap.At, Policy: r.Decider.Policy.Name(), Members: []job.Member{m},
	}
	r.plan.Groups = append(r.plan.Groups, release.Make(&group, r.jobs, on.Sharing))
}

// onlyType returns the type that all GPUs which a job may use have, where some GPUs are MIG instances: it starts on any
// of these, and not on one that is too small for it. "" = any type.
func (r *pass) onlyType(j *rlcore.Job, sharing job.Sharing) string {
	if !r.mig || sharing != job.Shard {
		return ""
	}
	typ, first := "", true
	for g := range j.GPUs.Of(len(r.now.GPUs)) {
		own := r.gpus[g].node.Card(r.gpus[g].index).Type
		if !first && own != typ {
			return ""
		}
		typ, first = own, false
	}
	return typ
}

// hasPartner reports whether one of the next jobs of the queue may join an adopted job that keeps its turn with shares.
// One that asks for a type of GPU must find no other: it could be given shares of any.
func (r *pass) hasPartner(j *rlcore.Job) bool {
	own, n := r.jobs[j.ID], len(r.gpus)
	if r.reach(own, "", ownType(own)).gpus.Len(n) < r.reach(own, "", "").gpus.Len(n) {
		return false
	}
	left := r.Decider.Window()
	for i := range r.now.Pending {
		p := &r.now.Pending[i]
		if p.Foreign || p.ID == j.ID {
			continue
		}
		if left--; left < 0 {
			break
		}
		for g := range j.GPUs.Of(n) {
			if !p.MayUse(g) {
				continue
			}
			pair := []rlcore.Running{{Job: *j}, {Job: *p}}
			if r.guard.Together(&r.now.GPUs[g].Spec, pair, r.now.NowS) == rlcore.Allowed {
				return true
			}
			break
		}
	}
	return false
}

// waitsTooLong reports whether a job has waited next to an idle GPU for as long as it may.
func (r *pass) waitsTooLong(j *rlcore.Job) bool {
	most := r.guard.DelayLimitS()
	if r.Adopt != nil && r.adopted(j.ID) {
		most = min(most, r.Adopt.Delay.Seconds())
	}
	return j.DelayedS >= most
}
