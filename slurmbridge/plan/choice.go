package plan

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// fillAll decides what starts now on each GPU. If a GPU's group is refused, because no shares lead
// it there or the guard doesn't allow it next to the other jobs of the node, the GPU is tried again
// after all others: then the first job may start there alone, as on plain Slurm.
func (r *pass) fillAll() {
	var again []int
	for _, g := range r.startable() {
		if r.fill(g, false) {
			again = append(again, g)
		}
	}
	for _, g := range again {
		r.fill(g, true)
	}
}

// startable lists the GPUs on which a job might start now, by free shares, most first; of equals the nodes that are
// awake first.
func (r *pass) startable() []int {
	var out []int
	for g := range r.State.GPUs {
		card := &r.State.GPUs[g]
		if card.FreeShares() > 0 && (len(card.Running) == 0 || r.Join) && !r.closed[g] && !r.unsettled[card.Node] && r.Decider.Guard.Claimed(g) == "" {
			out = append(out, g)
		}
	}
	rank := func(g int) int {
		if r.gpus[g].node.Asleep {
			return 1 - 2*r.State.GPUs[g].FreeShares()
		}
		return -2 * r.State.GPUs[g].FreeShares()
	}
	slices.SortStableFunc(out, func(a, b int) int { return rank(a) - rank(b) })
	return out
}

// fill decides what starts on GPU g now, and what joins that, until the policy wants nothing more: some policies build
// a group job by job. alone: where a group is refused, its first job may start alone. again: the policy wants a group
// on an idle GPU that can't be led there now.
func (r *pass) fill(g int, alone bool) (again bool) {
	kind := job.Join
	switch {
	case len(r.State.GPUs[g].Running) == 0:
		kind = job.StartNow
	case slices.ContainsFunc(r.drafts, func(d *draft) bool { return d.gpu == g }):
		return false // groups have exchanged the node's idle GPUs
	}
	var d *draft
	defer func() {
		if d != nil {
			r.reseat(d.group.Node, nil)
		}
	}()
	for dec := r.choose(g, kind); dec.Combo != 0; dec = r.choose(g, kind) {
		more, why := r.make(g, kind, d, dec.Jobs(), dec.Score, false)
		if why != placed {
			if d == nil && kind == job.StartNow && alone && (why == refused || r.mostLeft < 0) {
				d, _ = r.make(g, kind, nil, dec.Jobs()[:1], dec.Score, true)
			}
			return d == nil && kind == job.StartNow
		}
		if d, g = more, more.gpu; !r.Join || d.group.Members[0].Tried {
			break
		}
	}
	return false
}

// choose lets the policy choose among the jobs of GPU g's window.
func (r *pass) choose(g int, kind job.GroupKind) rlcore.Decision {
	w := rlcore.NewWindow(r.window, &r.State, g, r.width(g, kind))
	r.window = w.Jobs
	dec := r.Decider.Choose(w)
	if dec.Broken {
		r.plan.Broken++
	}
	r.explain(&dec)
	return dec
}

// width is the number of waiting jobs that the decision for GPU g considers. If other GPUs of the
// node are idle, too, it is as many as fill the GPU plus one: a job's GPU follows from its place in
// the queue, and neighbours in the queue can always be led to one GPU.
func (r *pass) width(g int, kind job.GroupKind) int {
	idle := 0
	for _, k := range r.nodes[r.gpus[g].node.Name] {
		if len(r.State.GPUs[k].Running) == 0 && !r.closed[k] {
			idle++
		}
	}
	m := r.Decider.Window()
	if kind != job.StartNow || idle < 2 {
		return m
	}
	return min(m, r.Decider.Guard.Members(&r.State.GPUs[g].Spec)+1)
}
