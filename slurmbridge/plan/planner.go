package plan

import (
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
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

// handwrittenFor is how long groups leave no room after the last job with shares written by hand: such a job starts
// next to any other, unchecked.
const handwrittenFor = 7 * 24 * time.Hour

// Window is the number of waiting jobs that a decision considers.
func (p *Planner) Window() int { return p.Decider.Window() }

// leavesRoom reports whether groups leave shares free for a later join.
func (r *pass) leavesRoom() bool {
	return r.Room && policy.Shares(r.Decider.Policy) &&
		(r.RoomAnyway || r.Snap.At.Sub(r.Tracker.Handwritten) > handwrittenFor)
}

// handwritten reports whether jobs with shares written by hand have been seen lately.
func (r *pass) handwritten() bool {
	return r.Tracker.HandwrittenSeen && r.Snap.At.Sub(r.Tracker.Handwritten) <= handwrittenFor
}

// Plan makes one pass through its stages: poll and queue, plain Slurm's schedule, choice and seats, changes,
// explanation. Without a gate no group is made: nothing could hold the members back while the group is prepared.
func (p *Planner) Plan(in *Input) *job.Plan {
	q := newQueue(newPoll(in), &p.Partitions, p.DivideHost)
	plain := q.schedulePlain()
	r := &pass{Planner: p, queue: q, statement: newStatement(q.poll, q.waiting, p.Decider.Guard), checks: mostChecks}
	r.plan = &job.Plan{
		At: in.Snap.At, Plain: plain, Running: &q.State, Unstarted: q.unstarted, Limited: q.limited,
		Ungated: q.reasons, NotAdopted: q.notAdopted, Explanations: map[string]*job.Explanation{}, Idle: map[string]bool{},
		PassedOver: map[string]bool{}, Starts: map[string]time.Time{}, InCompany: map[string]bool{}, Order: map[string]int{},
	}
	r.guard.Begin(&r.now)
	mayGroup := in.Gate != "" && !in.Unproved || in.Shadow
	if mayGroup {
		r.fillAll()
	}
	r.makeGroups()
	r.guard.Begin(&r.now) // of the jobs that are left
	if mayGroup {
		r.keepTurns()
	}
	r.noteWaiting()
	r.noteReleased()
	r.plan.Repairs = slices.Concat(r.plan.Repairs, q.gate, q.ungated)
	return r.plan
}

// pass is one call of Plan.
type pass struct {
	*Planner
	*queue
	*statement
	plan   *job.Plan
	window []int     // storage of choose
	ends   []float64 // storage of explain
	checks int       // that are left; see meets
}

// makeGroups turns the groups into changes.
func (r *pass) makeGroups() {
	var refs []string
	for i, of := range r.groups {
		number := -1 - int64(i)
		members := r.members(number)
		if r.alone(number) {
			r.ungate(r.jobs[members[0].ID], job.UngatedNoPartner, "")
			continue
		}
		on := r.gpus[members[0].gpu]
		g := job.Group{
			Kind: of.kind, State: job.Preparing, Node: on.node.Name, GPU: on.index, Decided: r.Snap.At,
			Policy: r.Decider.Policy.Name(), Members: r.membersOf(members),
			// A job that starts alone on an idle GPU could start on any, but with several nodes it might take the GPU of another
			// group.
			Pinned: len(members) > 1 || of.kind == job.Join || len(r.Snap.Nodes) > 1,
		}
		r.plan.Groups = append(r.plan.Groups, release.Make(&g, r.jobs, on.node.Sharing))
		for _, ref := range g.Refs() {
			if e := r.plan.Explanations[ref]; e != nil {
				e.Status = startsNow(on)
			}
		}
		if len(r.nodes[of.node]) > 1 {
			refs = append(refs, g.Refs()...)
		}
	}
	// Slurm considers the members on nodes with several GPUs in this order.
	slices.SortFunc(refs, func(a, b string) int { return ByPriority(r.jobs[a], r.jobs[b]) })
	for i, ref := range refs {
		r.plan.Order[ref] = i
	}
}

// membersOf returns the members of a group as they are written down.
func (r *pass) membersOf(group []placement) []job.Member {
	card := &r.State.GPUs[group[0].gpu]
	n := len(card.Running) + len(group)
	var all []*rlcore.Profile
	for i := range card.Running {
		all = append(all, card.Running[i].Profile)
	}
	predicted := predict(r.guard.Predictor, &card.Spec, append(all, profilesOf(group)...))
	var out []job.Member
	for i := range group {
		p := &group[i]
		m := r.member(p, r.gpus[p.gpu].node)
		if n > 1 && (p.CPUGrain > 0 || p.HostMemDivides) {
			m.WasHost = r.jobs[p.ID].Note.Defaults
			m.Host = m.WasHost.Of(n)
		}
		if predicted != nil {
			m.Predicted = predicted[len(card.Running)+i].Slowdown
		}
		out = append(out, m)
	}
	return out
}

// member is a placement as a member of a new group on a node.
func (r *pass) member(p *placement, on *job.Node) job.Member {
	was := r.jobs[p.ID]
	m := job.Member{
		Ref: p.ID, User: p.User, App: r.Apps[p.ID].Key, State: job.MemberPrepared, Shares: p.Shares,
		WasGres: release.Requested(was, on.Sharing), WasNodes: was.ReqNodes, PlainEnd: tracker.Time(p.PlainEndS),
		GPUType: r.gpus[p.gpu].typ, Tried: p.tried, First: p.first, MemMiB: int64(p.MemLimitMiB),
	}
	if rule := r.Rule(was); rule != nil {
		m.Sharing, m.Rule, m.Contract, m.Grace = on.Sharing, rule.String(), p.MaxSlowdown, p.Grace
	}
	if e := r.plan.Explanations[p.ID]; e != nil {
		m.ExpectedEnd = e.ExpectedEnd
	}
	if prof := p.Profile; prof != nil && m.MemMiB > 0 && prof.Clients() > 1 { // each of its processes
		m.ProcessMiB = int64(prof.ProcessLimit(p.MemLimitMiB, r.guard.MemMargin))
		if p.tried {
			m.ProcessMiB = m.MemMiB / int64(prof.Clients())
		}
	}
	return m
}

// predict predicts the slowdowns of all members of a GPU; nil where a profile is unknown.
func predict(p rlcore.Predictor, spec *rlcore.GPUSpec, members []*rlcore.Profile) []rlcore.Prediction {
	if p == nil || slices.Contains(members, nil) {
		return nil
	}
	out := make([]rlcore.Prediction, len(members))
	if out[0].Slowdown = 1; len(members) > 1 {
		p.Predict(out, spec, members)
	}
	return out
}
