package plan

import (
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

// Planner turns an input into a plan. It is not safe for concurrent use: the decider keeps scratch.
type Planner struct {
	Decider    *rlcore.Decider
	Partitions job.PartitionFilter
	// Join lets pending jobs join a GPU on which running jobs left shares free.
	Join bool
	// Room leaves a share of the GPU free for a later join, unless a job with shares written by hand was seen within a
	// week. RoomAnyway: even then.
	Room, RoomAnyway bool
	// TryMiB is the device memory that one run of a preallocating application is to make do with where its owner doesn't
	// say, MiB; 0 = none is tried.
	TryMiB float64
	// DivideHost: the members of a group divide the cores and the memory that they have by default.
	DivideHost bool
	// Wanted is the configured policy; the decider's own is another after a fall-back.
	Wanted string
	// Objective is what decisions keep small, as configured; it is shown.
	Objective string
}

// leavesRoom reports whether groups leave shares free for a later join.
func (p *Planner) leavesRoom(in *Input) bool {
	return p.Room && policy.Shares(p.Decider.Policy) && (p.RoomAnyway || in.Snap.At.Sub(in.Tracker.Handwritten) > handwrittenFor)
}

// handwritten reports whether jobs with shares written by hand have been seen lately.
func (in *Input) handwritten() bool {
	return in.Tracker.HandwrittenSeen && in.Snap.At.Sub(in.Tracker.Handwritten) <= handwrittenFor
}

// handwrittenFor is how long groups leave no room after the last job with shares written by hand: such a job starts
// next to any other, unchecked.
const handwrittenFor = 7 * 24 * time.Hour

// Window is the number of waiting jobs that a decision considers.
func (p *Planner) Window() int { return p.Decider.Window() }

// Plan makes one pass through its stages: queue, promise, choice and seats, changes, explanation. Without a gate no
// group is made: nothing could hold the members back while the group is prepared.
func (p *Planner) Plan(in *Input) *job.Plan {
	v := newView(in, &p.Partitions, p.DivideHost)
	r := &pass{
		Planner: p, view: v, in: in, mostLeft: mostMeetings,
		plan: &job.Plan{
			At: in.Snap.At, Explanations: map[string]*job.Explanation{}, Unstarted: v.unstarted,
			Running: &rlcore.State{NowS: v.State.NowS, GPUs: slices.Clone(v.State.GPUs)},
			Idle:    map[string]bool{}, Limited: v.limited, Starts: map[string]time.Time{},
			Unfit: v.unfit, NotAdopted: v.notAdopted, InCompany: map[string]bool{}, Order: map[string]int{},
		},
	}
	r.plan.Plain = v.promise()
	p.Decider.Guard.Begin(&v.State)
	mayGroup := in.Gate != "" && !in.Unproved || in.Shadow
	if mayGroup {
		r.fillAll()
	}
	r.makeAll()
	p.Decider.Guard.Begin(&v.State) // of the jobs that are left
	if mayGroup {
		r.keepTurns()
	}
	r.noteWaiting()
	r.plan.Repairs = slices.Concat(r.plan.Repairs, v.gate, v.ungate)
	return r.plan
}

// pass is one call of Plan.
type pass struct {
	*Planner
	*view
	in     *Input
	plan   *job.Plan
	drafts []*draft
	window []int
	ends   []float64 // storage of explain
	// mostLeft is the number of sets of jobs that the guard may still check; see meets.
	mostLeft int
}

// makeAll turns the drafts into changes.
func (r *pass) makeAll() {
	var refs []string
	for _, d := range r.drafts {
		if r.alone(d) {
			r.letGo(r.jobs[d.group.Members[0].Ref], job.UnfitNoPartner, "")
			continue
		}
		r.plan.Groups = append(r.plan.Groups, release.Make(&d.group, r.jobs, r.gpus[d.gpu].node.Sharing))
		for _, ref := range d.group.Refs() {
			if e := r.plan.Explanations[ref]; e != nil {
				e.Status = startsNow(r.gpus[d.gpu])
			}
		}
		if len(r.nodes[d.group.Node]) > 1 {
			refs = append(refs, d.group.Refs()...)
		}
	}
	// Slurm considers the members on nodes with several GPUs in this order.
	slices.SortFunc(refs, func(a, b string) int { return ByPriority(r.jobs[a], r.jobs[b]) })
	for i, ref := range refs {
		r.plan.Order[ref] = i
	}
}
