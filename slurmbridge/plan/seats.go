package plan

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// draft is a group of this plan. Until the plan is complete, a later group of the node may change its shares, or swap
// its idle GPU for another.
type draft struct {
	group job.Group
	gpu   int              // in the State
	jobs  []rlcore.Running // the members as they will run
	spare int              // of the GPU's shares: left for a job that may join
	// cpus and memMiB are what the members take of the node.
	cpus   int
	memMiB float64
	id     int64 // below 0; of a draft and of one that adds to it the same
}

// verdict is the result of an attempt to make a group.
type verdict int

const (
	placed  verdict = iota
	later           // it may be possible once the jobs on their way have started
	refused         // not as things are on the node
)

// make turns a choice into a draft, or adds it to one, and moves its jobs from the queue to the
// GPU, with one share each until seat. It makes no group that can't be sure of its GPU, or with
// members that could meet jobs that they may not share with. whole: the only job gets all shares.
func (r *pass) make(g int, kind job.GroupKind, to *draft, chosen []int, score float64, whole bool) (*draft, verdict) {
	d := r.draft(g, kind, to, chosen, score)
	card := rlcore.GPU{Running: r.seated[g]}
	free := card.FreeShares()
	switch several := len(r.nodes[d.group.Node]) > 1; {
	case free < len(d.jobs):
		return nil, refused
	case !several:
		parts := r.split(d, free)
		if slices.Min(parts) < r.leastShares() {
			return nil, later
		}
		for i, s := range parts {
			d.give(i, s)
		}
	default:
		if !whole && !r.alone(d) {
			d.spare = free - r.withRoom(d, free)
		}
		if why := r.place(d); why != placed {
			return nil, why
		}
	}
	had := draft{}
	if to == nil {
		r.drafts = append(r.drafts, d)
	} else {
		had = *to
		r.drafts[slices.Index(r.drafts, to)] = d
	}
	r.dequeue(chosen)
	r.take(r.nodes[d.group.Node], d.cpus-had.cpus, d.memMiB-had.memMiB)
	r.reseat(d.group.Node, d)
	return d, placed
}

// reseat puts the drafts' jobs on the GPUs of a node in the State. The members of open, which may still grow, get one
// share each.
func (r *pass) reseat(node string, open *draft) {
	for _, g := range r.nodes[node] {
		r.State.GPUs[g].Running = r.seated[g]
	}
	for _, d := range r.drafts {
		if d.group.Node != node {
			continue
		}
		jobs := slices.Clone(d.jobs)
		for i := range jobs {
			if d == open {
				jobs[i].Shares = 1
			}
		}
		r.State.GPUs[d.gpu].Running = slices.Concat(r.seated[d.gpu], jobs)
	}
	for _, g := range r.nodes[node] {
		r.Decider.Guard.Refresh(&r.State, g)
	}
}

// draft is the group of a choice, including the members of the earlier draft that it extends, without shares.
func (r *pass) draft(g int, kind job.GroupKind, to *draft, chosen []int, score float64) *draft {
	d := &draft{gpu: g, id: -1 - int64(len(r.drafts))}
	ref := r.gpus[g]
	d.group = job.Group{
		Kind: kind, State: job.Preparing, Node: ref.node.Name, GPU: ref.index, Decided: r.in.Snap.At, Score: score, Policy: r.Decider.Policy.Name(),
	}
	if to != nil {
		d.id, d.group.Score = to.id, to.group.Score
		d.group.Members, d.jobs = slices.Clone(to.group.Members), slices.Clone(to.jobs)
	}
	for _, at := range chosen {
		j := &r.State.Pending[at]
		x := rlcore.Running{Job: *j}
		x.Profile, x.Cards = j.On(&r.State.GPUs[g]), nil
		d.group.Members, d.jobs = append(d.group.Members, r.member(j, ref.node)), append(d.jobs, x)
	}
	// A job that starts alone on an idle GPU could start on any, but with several nodes it might take the GPU of
	// another group.
	d.group.Pinned = len(d.jobs) > 1 || kind == job.Join || len(r.in.Snap.Nodes) > 1
	card := r.State.GPUs[g]
	card.Running = r.seated[g]
	members, profiles := make([]*rlcore.Profile, 0, len(card.Running)+len(d.jobs)), make([]*rlcore.Profile, len(d.jobs))
	for i := range card.Running {
		members = append(members, card.Running[i].Profile)
	}
	for i := range d.jobs {
		profiles[i] = d.jobs[i].Profile
	}
	n := len(card.Running) + len(d.jobs)
	for i := range d.jobs {
		cpus, memMiB := d.jobs[i].Host(n)
		d.cpus, d.memMiB = d.cpus+cpus, d.memMiB+memMiB
		if m := &d.group.Members[i]; n > 1 && (d.jobs[i].CPUGrain > 0 || d.jobs[i].HostMemDivides) {
			m.WasHost = r.jobs[m.Ref].Note.Defaults
			m.Host = m.WasHost.Of(n)
		}
	}
	predicted := predict(r.Decider.Guard.Predictor, &card.Spec, append(members, profiles...))
	for i, limit := range r.Decider.Guard.MemoryLimits(&card, profiles) {
		m := &d.group.Members[i]
		r.limitMemory(m, profiles[i], limit)
		d.jobs[i].MemLimitMiB = limit
		if predicted != nil {
			m.Predicted = predicted[len(card.Running)+i].Slowdown
		}
	}
	if kind == job.StartNow && len(d.jobs) == 1 {
		r.try(d)
	}
	return d
}

// try gives a job that starts alone a part of the GPU's memory where its application takes most of a card at its start,
// or isn't known, and its owner or the site wants to see what it needs. MPS limits sharers only, so the job leaves one
// of the shares, and no job joins it. One that fails runs again with all of the memory; by the site's wish, only a job
// is tried that may be run again.
func (r *pass) try(d *draft) {
	j, m := &d.jobs[0], &d.group.Members[0]
	spec, owner, p := &r.State.GPUs[d.gpu].Spec, r.in.Terms[j.ID].TryMiB, j.Profile
	mib := cmp.Or(owner, r.TryMiB)
	switch was := r.jobs[j.ID]; {
	case mib == 0, mib >= spec.MemMiB, !spec.MemLimits, mib <= r.in.TriedMiB[rlcore.Identity{App: m.App, Owner: j.User}]:
		return
	case m.App == "", p == nil && owner == 0, p != nil && (p.HeldMiB > 0 || !p.Preallocating(spec.MemMiB)):
		return
	case j.NoShare, r.in.Shadow, r.adopted(j.ID), r.in.handwritten() && !r.RoomAnyway, owner == 0 && (!was.Requeue || tracker.Awaited(r.in.Snap, r.seats)(was)):
		return
	}
	m.Tried, m.MemMiB, m.ProcessMiB = true, int64(mib), 0
	if p != nil && p.Clients() > 1 {
		m.ProcessMiB = m.MemMiB / int64(p.Clients())
	}
	j.NoShare, j.MemLimitMiB = true, mib
}

// member is a job of the queue as a member of a new group on a node, without shares.
func (r *pass) member(j *rlcore.Job, on *job.Node) job.Member {
	m := job.Member{
		Ref: j.ID, User: j.User, App: r.in.Apps[j.ID].Key, State: job.MemberPrepared,
		WasGres: release.Requested(r.jobs[j.ID], on.Sharing), WasNodes: r.jobs[j.ID].ReqNodes, PlainEnd: tracker.Time(j.PlainEndS),
	}
	if rule := r.in.Rule(r.jobs[j.ID]); rule != nil {
		m.Sharing, m.Rule, m.Contract, m.Grace = on.Sharing, rule.String(), j.MaxSlowdown, j.Grace
	}
	if e := r.plan.Explanations[j.ID]; e != nil {
		m.ExpectedEnd = e.ExpectedEnd
	}
	return m
}

// limitMemory sets what a member, and each of its processes where it has several, may hold of the GPU's memory.
func (r *pass) limitMemory(m *job.Member, p *rlcore.Profile, limitMiB float64) {
	m.MemMiB = int64(limitMiB)
	if limitMiB > 0 && p.Clients() > 1 {
		m.ProcessMiB = int64(p.ProcessLimit(limitMiB, r.Decider.Guard.MemMargin))
	}
}

// seat is a job that Slurm considers in its next pass.
type seat struct {
	of     *draft // nil = the job was released before, or is foreign and has its turn now
	member int
	ref    string
	gpu    int // in the State; of these jobs
	shares int
}

// placing is an attempt to find shares for a new group of a node with several GPUs, together with the other groups of
// this plan that start there.
type placing struct {
	rule   rule
	drafts []*draft // that start now, the new one last
	at     map[*draft]int
	place  func(g int) int
	free   []int // shares, by place on the node, before any of the drafts
	jobs   []seat
}

// place finds shares with which Slurm puts each member of a new group, and of the plan's other groups, on its
// GPU, on a node with several GPUs. It may change the shares and GPUs of the other groups.
func (r *pass) place(d *draft) verdict {
	p := r.placing(d)
	why := refused
	if len(p.jobs) > len(d.jobs) {
		why = later
	}
	for _, others := range []bool{false, true} { // are the other groups' shares to change, too?
		for _, want := range wishes(d) {
			requests, ok := p.number(want, others)
			if !ok || p.least(requests) < r.leastShares() {
				continue
			}
			fresh, rest := p.floaters(requests, others)
			ok, spent := r.meets(r.Decider.Guard, &r.mostLeft, d.group.Node, fresh, append(rest, r.onWay[d.group.Node]...))
			switch {
			case ok:
				p.take(requests, r)
				return placed
			case spent:
				return later
			}
			why = refused
		}
		if len(p.drafts) == 1 {
			break
		}
	}
	return why
}

// placing gathers the jobs that Slurm considers on the draft's node. Groups that start on idle GPUs of one kind get
// them in the order of their first members, since Slurm takes the first GPU first.
func (r *pass) placing(d *draft) *placing {
	node := d.group.Node
	p := &placing{at: map[*draft]int{}, place: func(g int) int { return r.gpus[g].place }}
	if r.in.Snap.LeastLoaded {
		p.rule = leastLoaded
	}
	for _, g := range r.nodes[node] {
		card := rlcore.GPU{Running: r.present[g]}
		p.free = append(p.free, card.FreeShares())
		if foreign := r.Decider.Guard.Claimed(g); foreign != "" {
			p.jobs = append(p.jobs, seat{ref: foreign, gpu: g, shares: job.Units})
		}
	}
	for _, o := range r.drafts {
		if o.group.Node == node && o.id != d.id {
			p.drafts = append(p.drafts, o)
		}
	}
	for _, f := range r.onWay[node] {
		p.jobs = append(p.jobs, seat{ref: f.ID, gpu: f.gpu, shares: f.Shares})
	}
	p.drafts = append(p.drafts, d)
	var idle []int
	for _, o := range p.drafts {
		p.at[o] = o.gpu
		for i := range o.jobs {
			p.jobs = append(p.jobs, seat{of: o, member: i, ref: o.jobs[i].ID})
		}
		if o.group.Kind == job.StartNow {
			idle = append(idle, o.gpu)
		}
	}
	slices.Sort(idle)
	slices.SortFunc(p.jobs, func(a, b seat) int { return ByPriority(r.jobs[a.ref], r.jobs[b.ref]) })
	if slices.ContainsFunc(idle, func(g int) bool { return r.State.GPUs[g].Spec != r.State.GPUs[idle[0]].Spec }) {
		return p
	}
	seen := map[*draft]bool{}
	for _, s := range p.jobs {
		if s.of != nil && !seen[s.of] && s.of.group.Kind == job.StartNow {
			p.at[s.of] = idle[len(seen)]
			seen[s.of] = true
		}
	}
	return p
}

// wish is how large the parts of a group are to be.
type wish struct {
	spare int // shares left for a job that may join
	equal bool
	least int // where they aren't equal
}

// wishes are tried in this order. With more than 100 ÷ (members + 1) shares each, no more jobs than the group's own fit
// on a GPU.
func wishes(d *draft) []wish {
	out := []wish{{spare: d.spare, equal: true}, {equal: true}}
	for _, least := range []int{job.Units/(len(d.jobs)+1) + 1, 20, 10, 5, 2, 1} {
		out = append(out, wish{least: least})
	}
	if d.spare == 0 {
		return out[1:]
	}
	return out
}

// number finds shares for the new group; if others is set, for all groups of this plan.
func (p *placing) number(want wish, others bool) ([]request, bool) {
	spare := make([]int, len(p.free))
	requests := make([]request, len(p.jobs))
	newest := p.drafts[len(p.drafts)-1]
	for i, s := range p.jobs {
		if s.of == nil {
			requests[i] = request{gpu: p.place(s.gpu), shares: s.shares}
			continue
		}
		q := request{gpu: p.place(p.at[s.of]), least: want.least}
		switch {
		case s.of != newest && !others:
			q.shares = s.of.jobs[s.member].Shares
		default:
			if want.spare > 0 {
				spare[q.gpu] = s.of.spare
			}
			if want.equal {
				q.least = max(1, (p.free[q.gpu]-spare[q.gpu])/len(s.of.jobs))
			}
		}
		requests[i] = q
	}
	return requests, p.rule.number(p.free, spare, requests)
}

// floaters splits the drafts' members with these shares into fresh ones, with new shares, and the rest.
func (p *placing) floaters(requests []request, others bool) (fresh, rest []floater) {
	newest := p.drafts[len(p.drafts)-1]
	for i, s := range p.jobs {
		if s.of == nil {
			continue
		}
		f := floater{Running: s.of.jobs[s.member], group: s.of.id, gpu: p.at[s.of]}
		if f.Shares = requests[i].shares; others || s.of == newest {
			fresh = append(fresh, f)
		} else {
			rest = append(rest, f)
		}
	}
	return fresh, rest
}

// least is the smallest number of shares that a draft's member gets.
func (p *placing) least(requests []request) int {
	least := job.Units
	for i, s := range p.jobs {
		if s.of != nil {
			least = min(least, requests[i].shares)
		}
	}
	return least
}

// take commits the GPUs of the drafts and the shares of their members.
func (p *placing) take(requests []request, r *pass) {
	for d, g := range p.at {
		d.gpu, d.group.GPU = g, r.gpus[g].index
	}
	for i, s := range p.jobs {
		if s.of != nil {
			s.of.give(s.member, requests[i].shares)
		}
	}
}

// give sets the shares of a member. No job can join one with all shares.
func (d *draft) give(i, shares int) {
	m := &d.group.Members[i]
	m.Shares, d.jobs[i].Shares = shares, shares
	if len(d.jobs) == 1 && shares >= job.Units {
		m.Tried, m.MemMiB, m.ProcessMiB, d.jobs[i].MemLimitMiB = false, 0, 0, 0
	}
}

// withRoom returns the number of free shares for the draft's members if one more job is to find room: equal parts, one
// of them left over. All of them where no job could join: the GPU serves no more, or a member doesn't share or has no
// profile.
func (r *pass) withRoom(d *draft, free int) int {
	n := len(d.jobs)
	if d.group.Members[0].Tried {
		return free - 1
	}
	if !r.leavesRoom(r.in) || len(r.seated[d.gpu])+n >= r.Decider.Guard.Members(&r.State.GPUs[d.gpu].Spec) || free < n+1 {
		return free
	}
	for i := range d.jobs {
		if d.jobs[i].NoShare || d.jobs[i].Profile == nil {
			return free
		}
	}
	return free / (n + 1) * n
}

// split divides the free shares equally among the draft's members on a node with one GPU. Where jobs with hand-written shares
// come to cards that serve one user, each member gets one share, and the longest one the rest: the freed shares are
// then too few for such a job, which the MPS server wouldn't serve. Before Volta shares limit nothing else.
func (r *pass) split(d *draft, free int) []int {
	n, longest := len(d.jobs), 0
	out := make([]int, n)
	if !r.in.handwritten() || !r.State.GPUs[d.gpu].Spec.SameUser {
		free = r.withRoom(d, free)
		for i := range out { // all of them: no other job finds room
			out[i] = (free + n - 1 - i) / n
		}
		return out
	}
	for i := range d.jobs {
		out[i] = 1
		if p, q := d.jobs[i].Profile, d.jobs[longest].Profile; p != nil && q != nil && p.DurationS > q.DurationS {
			longest = i
		}
	}
	out[longest] = free - (n - 1)
	return out
}
