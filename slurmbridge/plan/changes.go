package plan

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// makeGroups turns the draft's groups into changes.
func (r *planRun) makeGroups() {
	var refs []string // members on nodes with several GPUs
	for i, drafted := range r.draft.groups {
		number := -1 - int64(i)
		members := r.draft.members(number)
		if r.draft.alone(number) {
			r.queue.ungate(r.view.jobs[members[0].ID], job.UngatedNoPartner, "")
			continue
		}
		on := r.view.gpus[members[0].gpu]
		g := job.Group{
			Kind: drafted.kind, State: job.Preparing, Node: on.node.Name, GPU: on.index, Decided: r.in.Snap.At,
			Policy: r.planner.Decider.Policy.Name(), Members: r.membersOf(members),
			// A job that starts alone on an idle GPU could start on any, but with several nodes it might take the GPU of another
			// group.
			Pinned: len(members) > 1 || drafted.kind == job.Join || len(r.in.Snap.Nodes) > 1,
		}
		r.plan.Groups = append(r.plan.Groups, release.Make(&g, r.view.jobs, on.node.Sharing))
		for _, ref := range g.Refs() {
			if e := r.plan.Explanations[ref]; e != nil {
				e.Status = startsNow(on)
			}
		}
		if len(r.view.nodes[drafted.node]) > 1 {
			refs = append(refs, g.Refs()...)
		}
	}
	// Slurm considers them in this order.
	slices.SortFunc(refs, func(a, b string) int { return ByPriority(r.view.jobs[a], r.view.jobs[b]) })
	for i, ref := range refs {
		r.plan.Order[ref] = i
	}
}

// membersOf returns the members of a group as they are written down.
func (r *planRun) membersOf(group []placement) []job.Member {
	card := &r.view.state.GPUs[group[0].gpu]
	var profiles []*rlcore.Profile
	for i := range card.Running {
		profiles = append(profiles, card.Running[i].Profile)
	}
	profiles = append(profiles, profilesOf(group)...)
	predicted := predict(r.draft.guard.Predictor, &card.Spec, profiles)
	var out []job.Member
	for i := range group {
		p := &group[i]
		m := r.member(p, r.view.gpus[p.gpu].node)
		if len(profiles) > 1 && (p.CPUGrain > 0 || p.HostMemDivides) {
			m.WasHost = r.view.jobs[p.ID].Note.Defaults
			m.Host = m.WasHost.Of(len(profiles))
		}
		if predicted != nil {
			m.Predicted = predicted[len(card.Running)+i].Slowdown
		}
		out = append(out, m)
	}
	return out
}

// member is a placement as a member of a new group on a node.
func (r *planRun) member(p *placement, on *job.Node) job.Member {
	own := r.view.jobs[p.ID]
	m := job.Member{
		Ref: p.ID, User: p.User, App: r.in.Apps[p.ID].Key, State: job.MemberPrepared, Shares: p.Shares,
		WasGres: release.Requested(own, on.Sharing), WasNodes: own.ReqNodes, PlainEnd: tracker.Time(p.PlainEndS),
		GPUType: r.view.gpus[p.gpu].typ, Tried: p.tried, First: p.first, MemMiB: int64(p.MemLimitMiB),
	}
	if rule := r.in.Rule(own); rule != nil {
		m.Sharing = on.Sharing
		m.Rule = rule.String()
		m.Contract = p.MaxSlowdown
		m.Grace = p.Grace
	}
	if e := r.plan.Explanations[p.ID]; e != nil {
		m.ExpectedEnd = e.ExpectedEnd
	}
	if prof := p.Profile; prof != nil && m.MemMiB > 0 && prof.Clients() > 1 { // each of its processes
		m.ProcessMiB = int64(prof.ProcessLimit(p.MemLimitMiB, r.draft.guard.MemMargin))
		if p.tried {
			m.ProcessMiB = m.MemMiB / int64(prof.Clients())
		}
	}
	return m
}
