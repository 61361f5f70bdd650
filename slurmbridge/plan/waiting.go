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

// turnSoonS is how soon a GPU must be expected to be free to count as one that may be free at any moment, s.
const turnSoonS = 5

// releaseForTurns puts jobs at the head of the queue into Slurm's own that would start too late after all foreign jobs,
// be overtaken, or lack cores: when a GPU becomes free, Slurm starts the first job of its queue at once, before the
// bridge can release another. GPUs that may be free at any moment may be so together: there is a job for each.
//
// An interactive session waits there from the beginning, as a job of a whole GPU does.
func (r *planRun) releaseForTurns() {
	pending := r.draft.state.Pending
	last := len(pending) - 1 // foreign job
	for last >= 0 && !pending[last].Foreign {
		last--
	}
	var free []int                    // GPUs that may be free at any moment and have no job yet
	next := map[int]bool{}            // by GPU: its next job is known
	seen := map[*rlcore.GPUSet]bool{} // sets with their GPUs in next
	none := map[*rlcore.GPUSet]bool{} // sets without a GPU in free
	for g := range r.draft.state.GPUs {
		unknown := func(x rlcore.Running) bool { return x.Profile == nil }
		if r.draft.guard.FreeInS(g) <= turnSoonS || slices.ContainsFunc(r.draft.state.GPUs[g].Running, unknown) {
			free = append(free, g)
		}
	}
	for i := range pending {
		j := &pending[i]
		if j.WholeGPUs() > 1 { // backfill starts other jobs in front of it
			continue
		}
		atHead := false
		for g := 0; g < len(r.draft.state.GPUs) && !seen[j.GPUs]; g++ {
			if j.MayUse(g) && !next[g] {
				atHead = true
				next[g] = true
			}
		}
		seen[j.GPUs] = true
		if !none[j.GPUs] {
			k := slices.IndexFunc(free, j.MayUse)
			if none[j.GPUs] = k < 0; k >= 0 {
				atHead = true
				free = slices.Delete(free, k, k+1)
			}
		}
		loses := func() bool { return i < last && j.StartS() > 0 && (j.LosesTurn() || r.isOvertaken(j)) }
		if !j.Foreign && (isSession(j) || atHead && (r.lacksHost(j) || loses())) {
			r.releaseForTurn(j)
		}
	}
}

// isOvertaken reports whether Slurm's backfill would start a job in front of one of several GPUs: behind the gate, jobs
// behind it are started in its place.
func (r *planRun) isOvertaken(j *rlcore.Job) bool {
	for node, claim := range r.queue.claims {
		before := j.LimitS > 0 && j.LimitS <= claim.fromS && !math.IsInf(claim.fromS, 1)
		if before && ByPriority(claim.by, r.view.jobs[j.ID]) < 0 && slices.ContainsFunc(r.view.nodes[node], j.MayUse) {
			return true
		}
	}
	return false
}

// isSession reports whether a job is an interactive session.
func isSession(j *rlcore.Job) bool { return j.Profile != nil && j.Profile.Busy != nil }

// lacksHost reports whether plain Slurm would have a job on a GPU by now, and none of the job's nodes has enough free
// cores or memory. Slurm saves up cores and memory for the first job of its own queue only; a job behind the gate loses
// them to others.
func (r *planRun) lacksHost(j *rlcore.Job) bool {
	if j.PlainSlot == nil || j.PlainSlot.StartS > r.draft.state.NowS {
		return false
	}
	lacks := false
	cpus, memMiB := j.Host(1)
	for g := range j.GPUs.Of(len(r.draft.state.GPUs)) {
		card := &r.draft.state.GPUs[g]
		if lacks = cpus > card.FreeCPUs || memMiB > card.FreeHostMemMiB; !lacks {
			break
		}
	}
	return lacks
}

// noteReleased notes the jobs that wait where they were sent, though Slurm would start them elsewhere, or says by now
// that it keeps the node for another job.
func (r *planRun) noteReleased() {
	for ref := range r.view.starting {
		m := r.view.membership[ref]
		if m.Member.State != job.MemberWaiting {
			continue
		}
		own := *r.view.jobs[ref]
		j := r.view.convert(&own)
		own.ReqNodes = m.Member.WasNodes
		own.Request = text.ParseRequest(text.TRES{PerNode: m.Member.WasGres})
		j.GPUs = r.view.reach(&own, r.queue.closedFor(&own), r.queue.wanted(&own)).gpus
		node := m.Group.Node
		r.plan.Idle[ref] = r.queue.startsElsewhere(&j, node, r.draft.state.GPUs)
		r.plan.PassedOver[ref] = r.queue.claims[node].planned && !r.queue.backfills(&j, node)
	}
}

// noteWaiting records when the remaining jobs are expected to start: each on GPUs of its own, in order of priority;
// sharing may start them sooner. It ungates jobs that may preempt others, that the bridge alone has delayed for too
// long, or that the gate would hold past their deadline if the bridge died now.
func (r *planRun) noteWaiting() {
	idle := r.onAnyGPU(func(_ *job.Job, g int) bool { return r.isIdle(g, false) })
	spare := r.onAnyGPU(func(_ *job.Job, g int) bool { return r.isIdle(g, false) && r.draft.guard.Spare(g) })
	preempts := r.onAnyGPU(r.preempts)
	var planned []int // idle GPUs of nodes that Slurm keeps for a job
	for g := range r.draft.state.GPUs {
		if r.isIdle(g, true) {
			planned = append(planned, g)
		}
	}
	limited := r.queue.limited
	for _, j := range slices.Concat(r.draft.state.Pending, r.queue.withheld) {
		if j.Foreign {
			continue
		}
		own := r.view.jobs[j.ID]
		if j.DeadlineS > 0 && j.DeadlineS-j.LimitS-r.draft.state.NowS < r.in.HoldS {
			r.queue.ungate(own, job.UngatedDeadline, "")
		}
		closed := r.queue.closedTo[j.ID]
		switch {
		case limited[j.ID] != "":
			continue
		case j.StartS() > 0 && closed != "":
			limited[j.ID] = closed
			continue
		case j.StartS() < math.MaxFloat64:
			r.plan.Starts[j.ID] = tracker.Time(r.draft.state.NowS + j.StartS())
		}
		hasIdle := idle(&j)
		fills := false // it would start before a job that Slurm keeps a node for
		if !hasIdle {
			var keeper string
			fills, keeper = r.backfillsOn(&j, planned)
			hasIdle = fills
			if !hasIdle && keeper != "" { // plain Slurm would keep it waiting, too
				limited[j.ID] = fmt.Sprintf("Slurm keeps %s for job %s, and starts a job of lower priority there only if its "+
					"time limit ends before", keeper, r.queue.claims[keeper].by.Ref)
			}
		}
		delayed := hasIdle && (j.StartS() <= 0 || fills || spare(&j)) // by the bridge alone
		if delayed {
			r.plan.Idle[j.ID] = true
		}
		switch {
		case r.in.Shadow:
		case delayed && r.waitsTooLong(&j):
			r.queue.ungate(own, job.UngatedDelay, "")
		case !hasIdle && preempts(&j):
			r.queue.ungate(own, job.UngatedPreempts, "")
		case !hasIdle && r.view.isDrawn(own):
			r.queue.ungate(own, job.UngatedDrawn, "")
		}
	}
}

// isIdle reports whether a GPU is idle, on a node that Slurm plans to give to a job, or on another one.
func (r *planRun) isIdle(g int, planned bool) bool {
	card := &r.draft.state.GPUs[g]
	return len(card.Running) == 0 && r.queue.claims[card.Node].planned == planned
}

// preempts reports whether a job may preempt one that runs on a GPU.
func (r *planRun) preempts(j *job.Job, g int) bool {
	return slices.ContainsFunc(r.draft.state.GPUs[g].Running, func(x rlcore.Running) bool {
		return r.in.Snap.Ranks.Preempts(j, r.view.jobs[x.ID])
	})
}

// backfillsOn reports whether Slurm would start a job now on one of the GPUs, and else the node of the last one, "" =
// the job may use none of them.
func (r *planRun) backfillsOn(j *rlcore.Job, gpus []int) (starts bool, node string) {
	for _, g := range gpus {
		name := r.draft.state.GPUs[g].Node
		if name == node || !j.MayUse(g) {
			continue
		}
		node = name
		if r.queue.backfills(j, node) {
			return true, node
		}
	}
	return false, node
}

// onAnyGPU returns a function that reports whether a GPU which a job may use fulfils a condition that is the same for
// all jobs of the same partitions.
func (r *planRun) onAnyGPU(is func(j *job.Job, g int) bool) func(j *rlcore.Job) bool {
	type key struct {
		gpus      *rlcore.GPUSet
		partition string
	}
	known := map[key]bool{}
	return func(j *rlcore.Job) bool {
		own := r.view.jobs[j.ID]
		return once(known, key{j.GPUs, own.Partition}, func() bool {
			for g := range j.GPUs.Of(len(r.draft.state.GPUs)) {
				if is(own, g) {
					return true
				}
			}
			return false
		})
	}
}

// A sharer that keeps its turn waits in Slurm's own queue, and any GPU may be the next that becomes free. It must not
// start beside a running job, so it asks for more than 100 minus the smallest number of shares that any sharer holds.
// While it waits, other jobs get at least as many shares as don't fit next to it. The rest of its GPU is for jobs that
// join it.

// turnShares bounds the shares of such a job. Groups of three equal parts are possible while it waits for its turn.
const (
	leastTurnShares = 70
	mostTurnShares  = job.Units - 1
)

// turnShares returns the shares with which a job can start only on an empty GPU; false = no such number leaves room for
// others.
func (d *draft) turnShares() (int, bool) {
	shares := leastTurnShares
	for i := range d.view.in.Snap.Jobs {
		j := &d.view.in.Snap.Jobs[i]
		if j.State == job.Pending || j.Request.Kind != job.Shares || j.Request.Count >= job.Units {
			continue
		}
		holds := j.Request.Count
		if d.view.waitsForTurn(j.Ref) {
			holds = job.Units - holds // of a job that joins it
		}
		shares = max(shares, job.Units+1-holds)
	}
	for _, g := range d.view.in.Tracker.Groups {
		if g.Kind == job.Turn {
			continue
		}
		for i := range g.Members {
			m := &g.Members[i]
			if m.State.Final() || m.Shares >= job.Units {
				continue
			}
			shares = max(shares, job.Units+1-m.Shares)
		}
	}
	for _, all := range d.placed {
		for i := range all {
			shares = max(shares, job.Units+1-all[i].Shares)
		}
	}
	return shares, shares <= mostTurnShares
}

// releaseForTurn lets a job wait in Slurm's queue with shares that leave room for others on its GPU. A job that may not
// share is ungated, and so is one for which there are no such shares.
func (r *planRun) releaseForTurn(j *rlcore.Job) {
	shares, ok := r.draft.turnShares()
	shareable := r.leavesRoom() && !j.NoShare && j.Profile != nil && len(r.view.nodes) > 0
	if !ok || !shareable || r.view.adopted(j.ID) && !r.hasPartner(j) {
		r.queue.ungate(r.view.jobs[j.ID], job.UngatedTurn, "")
		return
	}
	g := 0
	for g < len(r.draft.state.GPUs)-1 && !j.MayUse(g) {
		g++
	}
	card := rlcore.GPU{Spec: r.draft.state.GPUs[g].Spec}
	on := r.view.gpus[g].node
	p := placement{Running: rlcore.Running{Job: *j, Shares: shares}, gpu: g}
	p.MemLimitMiB = r.draft.guard.MemoryLimits(&card, []*rlcore.Profile{j.Profile})[0]
	m := r.member(&p, on)
	m.Predicted = 1
	m.GPUType = r.view.onlyType(j, on.Sharing)
	group := job.Group{
		Kind: job.Turn, State: job.Preparing, Decided: r.in.Snap.At, Policy: r.planner.Decider.Policy.Name(),
		Members: []job.Member{m},
	}
	r.plan.Groups = append(r.plan.Groups, release.Make(&group, r.view.jobs, on.Sharing))
}

// hasPartner reports whether one of the next jobs of the queue may join an adopted job that keeps its turn with shares.
// If the job asks for a type of GPU, no other type may be in reach: Slurm could give it shares of any type.
func (r *planRun) hasPartner(j *rlcore.Job) bool {
	own := r.view.jobs[j.ID]
	n := len(r.view.gpus)
	if r.view.reach(own, "", ownType(own)).gpus.Len(n) < r.view.reach(own, "", "").gpus.Len(n) {
		return false
	}
	left := r.planner.Decider.Window()
	for i := range r.draft.state.Pending {
		p := &r.draft.state.Pending[i]
		if p.Foreign || p.ID == j.ID {
			continue
		}
		left--
		if left < 0 {
			break
		}
		for g := range j.GPUs.Of(n) {
			if !p.MayUse(g) {
				continue
			}
			pair := []rlcore.Running{{Job: *j}, {Job: *p}}
			if r.draft.guard.Together(&r.draft.state.GPUs[g].Spec, pair, r.draft.state.NowS) == rlcore.Allowed {
				return true
			}
			break
		}
	}
	return false
}

// waitsTooLong reports whether the bridge has delayed a job up to the limit.
func (r *planRun) waitsTooLong(j *rlcore.Job) bool {
	most := r.draft.guard.DelayLimitS()
	if r.in.Adopt != nil && r.view.adopted(j.ID) {
		most = min(most, r.in.Adopt.Delay.Seconds())
	}
	return j.DelayedS >= most
}
