package plan

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// draft is a group of this plan. What is sent to Slurm is made of it at the end of the plan: until
// then a later group of its node may change its shares and, where it starts on an idle GPU, swap that
// for another.
type draft struct {
	group job.Group
	gpu   int              // in the State
	jobs  []rlcore.Running // the members as they will run
	spare int              // of the GPU's shares: left for a job that may join
	id    int64            // below 0; of a draft and of those that add to it the same
}

// placing is an attempt to find shares for a new group of a node with several GPUs, together with
// the groups of this plan that start there as well.
type placing struct {
	r      *pass
	node   string
	drafts []*draft // those that start now, the new one last
	newest *draft
	// idle are the GPUs of those that begin on an idle one, in ascending order.
	idle []int
	free []int // shares, by place on the node, before any of the drafts
	jobs []seat
}

// seat is a job that Slurm will consider in the next pass.
type seat struct {
	of     *draft // nil = released before
	member int
	ref    string
	gpu    int // in the State, for those released before
	shares int
}

// verdict is what came of it.
type verdict int

const (
	placed  verdict = iota
	later           // perhaps once those that are on their way have started
	refused         // not as things are on the node
)

// place finds shares for a new group on a node with several GPUs with which Slurm puts each of its
// members on its GPU, and all others of this plan on theirs. It may change the shares and GPUs of
// those.
func (r *pass) place(d *draft) verdict {
	p := r.placing(d)
	busy := len(p.jobs) > len(d.group.Members)
	why := refused
	if busy {
		why = later
	}
	safe := true
	undo := p.settle()
	for _, others := range []bool{false, true} { // are the other groups' shares to change, too?
		if others && len(p.drafts) == 1 {
			break
		}
		for _, want := range r.wishes(d) {
			requests, ok := p.number(want, others)
			if !ok {
				continue
			}
			fresh := []*draft{d}
			if others {
				fresh = p.drafts
			}
			ok, spent := r.allowed(p, requests, fresh)
			switch {
			case ok:
				p.take(requests)
				return placed
			case spent:
				undo()
				return later
			}
			safe = false
		}
	}
	undo()
	if !safe {
		return refused
	}
	return why
}

// placing gathers what a pass of Slurm will consider on the draft's node.
func (r *pass) placing(d *draft) *placing {
	node := d.group.Node
	p := &placing{r: r, node: node, newest: d}
	for _, g := range r.nodes[node] {
		card := rlcore.GPU{Running: r.present[g]}
		p.free = append(p.free, card.FreeShares())
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
	for _, o := range p.drafts {
		for i := range o.group.Members {
			p.jobs = append(p.jobs, seat{of: o, member: i, ref: o.group.Members[i].Ref})
		}
		if o.group.Kind == job.StartNow {
			p.idle = append(p.idle, o.gpu)
		}
	}
	slices.Sort(p.idle)
	slices.SortFunc(p.jobs, func(a, b seat) int { return byPriority(r.jobs[a.ref], r.jobs[b.ref]) })
	return p
}

// settle gives the groups that begin on idle GPUs these in the order of their first members: an idle
// GPU is like the other, and the first of them is the one that Slurm takes first.
func (p *placing) settle() (undo func()) {
	was := make([]int, len(p.drafts))
	for i, d := range p.drafts {
		was[i] = d.gpu
	}
	next := 0
	seen := map[*draft]bool{}
	for _, g := range p.idle {
		if p.r.State.GPUs[g].Spec != p.r.State.GPUs[p.idle[0]].Spec {
			return func() {} // they aren't
		}
	}
	for _, s := range p.jobs {
		if s.of == nil || seen[s.of] || s.of.group.Kind != job.StartNow {
			continue
		}
		seen[s.of] = true
		s.of.to(p.idle[next], p.r)
		next++
	}
	return func() {
		for i, d := range p.drafts {
			d.to(was[i], p.r)
		}
	}
}

// to sends the group to another GPU of its node.
func (d *draft) to(g int, r *pass) { d.gpu, d.group.GPU = g, r.gpus[g].index }

// wish says how large the parts of a group are to be.
type wish struct {
	spare bool // leave room for one more
	equal bool // equal parts
	need  bool // at least in proportion to the memory that each needs
	least int  // else
}

// wishes are tried in this order.
func (r *pass) wishes(d *draft) []wish {
	var out []wish
	if d.spare > 0 {
		out = append(out, wish{spare: true, equal: true})
	}
	out = append(out, wish{equal: true}, wish{need: true})
	// With the first of these nobody can meet more jobs than are in its group.
	for _, least := range []int{job.Units/(len(d.jobs)+1) + 1, 20, 10, 5, 2, 1} {
		out = append(out, wish{least: least})
	}
	return out
}

// number finds shares for the new group, and for the other ones of this plan, too, where those are to
// change.
func (p *placing) number(want wish, others bool) ([]request, bool) {
	spare := make([]int, len(p.free))
	least := map[*draft][]int{}
	for _, d := range p.drafts {
		if d != p.newest && !others {
			continue
		}
		at := p.r.gpus[d.gpu].place
		if want.spare {
			spare[at] = d.spare
		}
		least[d] = p.r.least(d, want, p.free[at]-spare[at])
	}
	requests := make([]request, len(p.jobs))
	for i, s := range p.jobs {
		switch {
		case s.of == nil:
			requests[i] = request{gpu: p.r.gpus[s.gpu].place, shares: s.shares}
		case least[s.of] == nil:
			requests[i] = request{gpu: p.r.gpus[s.of.gpu].place, shares: s.of.group.Members[s.member].Shares}
		default:
			requests[i] = request{gpu: p.r.gpus[s.of.gpu].place, least: least[s.of][s.member]}
		}
	}
	return requests, p.r.rule().number(p.free, spare, requests)
}

// rule is how Slurm chooses.
func (r *pass) rule() rule {
	if r.in.Snap.LeastLoaded {
		return leastLoaded
	}
	return firstFit
}

// least is the smallest part for each member of a group that gets the given shares in all.
func (r *pass) least(d *draft, want wish, all int) []int {
	n := len(d.group.Members)
	out := make([]int, n)
	left := all
	for i := range out {
		switch {
		case want.equal:
			out[i] = max(1, all/n)
		case want.need:
			out[i] = 1
			if mem := r.State.GPUs[d.gpu].Spec.MemMiB; d.jobs[i].Profile != nil && mem > 0 {
				out[i] = max(1, int(math.Ceil(job.Units*d.jobs[i].Profile.NeedMiB(0)/mem)))
			}
		default:
			out[i] = want.least
		}
		left -= out[i]
	}
	if want.need && left > 0 {
		for i := range out {
			out[i] += left / n
		}
	}
	return out
}

// allowed reports whether the guard allows whoever could meet on the node with these shares.
func (r *pass) allowed(p *placing, requests []request, changed []*draft) (ok, spent bool) {
	shares := map[string]int{}
	for i, s := range p.jobs {
		shares[s.ref] = requests[i].shares
	}
	var fresh []floater
	changing := map[int64]bool{}
	for _, d := range changed {
		fresh = append(fresh, d.floaters(shares)...)
		changing[d.id] = true
	}
	return r.meets(r.Decider.Guard, &r.mostLeft, p.node, fresh, r.floating(p.node, changing))
}

// floating are the jobs on their way to a node, but for those of some drafts.
func (r *pass) floating(node string, without map[int64]bool) []floater {
	out := slices.Clone(r.onWay[node])
	for _, d := range r.drafts {
		if d.group.Node == node && !without[d.id] {
			out = append(out, d.floaters(nil)...)
		}
	}
	return out
}

// floaters are the members of a draft; shares are new ones, by ref.
func (d *draft) floaters(shares map[string]int) []floater {
	out := make([]floater, len(d.jobs))
	for i := range d.jobs {
		out[i] = floater{Running: d.jobs[i], group: d.id, gpu: d.gpu}
		if s, ok := shares[d.jobs[i].ID]; ok {
			out[i].Shares = s
		}
	}
	return out
}

// take gives the members their shares.
func (p *placing) take(requests []request) {
	for i, s := range p.jobs {
		if s.of != nil {
			s.of.give(s.member, requests[i].shares)
		}
	}
}

// give gives a member its shares. Nobody can join one that has all of them.
func (d *draft) give(i, shares int) {
	m := &d.group.Members[i]
	m.Shares, d.jobs[i].Shares = shares, shares
	if len(d.jobs) == 1 && shares >= job.Units {
		m.MemMiB, d.jobs[i].MemLimitMiB = 0, 0
	}
}
