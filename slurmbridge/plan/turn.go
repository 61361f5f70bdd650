package plan

import (
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

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
	if !ok || !r.Join || !r.leavesRoom(r.in) || j.NoShare || j.Profile == nil || len(r.nodes) == 0 {
		r.letGo(r.jobs[j.ID], job.UnfitTurn, "")
		return
	}
	g := 0
	for g < len(r.State.GPUs)-1 && !j.MayUse(g) {
		g++
	}
	card := rlcore.GPU{Spec: r.State.GPUs[g].Spec}
	m := job.Member{
		Ref: j.ID, User: j.User, App: r.in.Apps[j.ID].Key, State: job.MemberPrepared, Shares: shares, Predicted: 1,
		WasGres: release.WholeGPU(r.gpus[g].node.Sharing), WasNodes: r.jobs[j.ID].ReqNodes, PlainEnd: tracker.Time(j.PlainEndS),
	}
	limit := r.Decider.Guard.MemoryLimits(&card, []*rlcore.Profile{j.Profile})[0]
	m.MemMiB, m.ProcessMiB = int64(limit), r.processLimit(j.Profile, limit)
	if e := r.plan.Explanations[j.ID]; e != nil {
		m.ExpectedEnd = e.ExpectedEnd
	}
	group := job.Group{Kind: job.Turn, State: job.Preparing, Decided: r.in.Snap.At, Policy: r.Decider.Policy.Name(), Members: []job.Member{m}}
	r.plan.Groups = append(r.plan.Groups, release.Make(&group, r.jobs, r.gpus[g].node.Sharing))
}
