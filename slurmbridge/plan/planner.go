package plan

import (
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Planner turns an input into a plan. It is not safe for concurrent use: the decider keeps scratch.
type Planner struct {
	Decider    *rlcore.Decider
	Partitions job.PartitionFilter
	// TryMiB is the device memory that one run of a preallocating application gets if its owner names no size, MiB; 0 =
	// the site tries none.
	TryMiB float64
	// Wanted is the configured policy; the decider's own is another after a fall-back.
	Wanted string
}

// Window is the number of waiting jobs that a decision considers.
func (p *Planner) Window() int { return p.Decider.Window() }

// planRun is one call of Plan. Each part is made from the parts above it and knows nothing of those below; draft and
// plan are the only ones that change once groups are chosen, and queue by what it ungates.
type planRun struct {
	planner *Planner
	in      *Input
	view    *clusterView
	queue   *queue
	draft   *draft
	plan    *job.Plan

	window []int     // storage of choose
	ends   []float64 // storage of explain
	checks int       // that are left of mostChecks
}

// Plan goes through the stages: view and queue, plain Slurm's schedule, choice and shares, changes, explanation.
// Without a gate it makes no group: nothing could hold the members back while the group is prepared.
func (p *Planner) Plan(in *Input) *job.Plan {
	view := newView(in)
	q := newQueue(view, &p.Partitions)
	alone := q.scheduleAlone()
	guard := p.Decider.Guard
	r := &planRun{
		planner: p, in: in, view: view, queue: q, draft: newDraft(view, q.waiting, guard), checks: mostChecks,
		plan: &job.Plan{
			At: in.Snap.At, Plain: alone, Running: &view.state, Unstarted: q.unstarted, Limited: q.limited,
			Ungated: q.reasons, NotAdopted: q.notAdopted, Explanations: map[string]*job.Explanation{},
			Idle: map[string]bool{}, PassedOver: map[string]bool{}, Starts: map[string]time.Time{},
			InCompany: map[string]bool{}, Order: map[string]int{},
		},
	}
	mayGroup := in.Gate != "" && !in.Unproved || in.Shadow
	guard.Begin(&r.draft.state)
	if mayGroup {
		r.fillAll()
	}
	r.makeGroups()
	guard.Begin(&r.draft.state) // of the jobs that are left
	if mayGroup && !in.Shadow {
		r.releaseForTurns()
	}
	r.noteWaiting()
	r.noteReleased()
	r.plan.Repairs = slices.Concat(r.plan.Repairs, q.gate, q.ungated)
	return r.plan
}
