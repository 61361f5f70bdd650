package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// fillAll decides what starts now on each GPU. If a GPU's group is refused, because no shares lead it there or the
// guard doesn't allow it next to the other jobs of the node, the GPU is tried again after all others: then the first
// job may start there alone, as on plain Slurm.
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
// awake first, and MIG instances before whole GPUs, the smallest first: what fits there leaves the others to what
// doesn't.
func (r *pass) startable() []int {
	var out []int
	for g := range r.now.GPUs {
		card := &r.now.GPUs[g]
		joins := len(card.Running) == 0 || r.Join
		if card.FreeShares() > 0 && joins && !r.closed[g] && !r.unsettled[card.Node] && r.guard.Claimed(g) == "" {
			out = append(out, g)
		}
	}
	rank := func(g int) int {
		if r.gpus[g].node.Asleep {
			return 1 - 2*r.now.GPUs[g].FreeShares()
		}
		return -2 * r.now.GPUs[g].FreeShares()
	}
	size := func(g int) float64 { // whole GPUs are in Slurm's order
		if !r.gpus[g].instance {
			return math.Inf(1)
		}
		return r.now.GPUs[g].Spec.MemMiB
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Or(rank(a)-rank(b), cmp.Compare(size(a), size(b))) })
	return out
}

// faster reports whether a job is expected to take less time on an idle GPU of another kind than on GPU g, by more than
// its grace.
func (r *pass) faster(g int, j *rlcore.Job) bool {
	here := j.On(&r.now.GPUs[g])
	for k := range r.now.GPUs {
		card := &r.now.GPUs[k]
		if len(card.Running) > 0 || r.closed[k] || !j.MayUse(k) || r.guard.Claimed(k) != "" {
			continue
		}
		if there := j.On(card); here != nil && there != nil &&
			there.DurationS*(1+cmp.Or(j.Grace, r.guard.Grace, rlcore.DefaultGrace)) < here.DurationS {
			return true
		}
	}
	return false
}

// fill decides what starts on GPU g now, and what joins that, until the policy wants nothing more: some policies build
// a group job by job. alone: where a group is refused, its first job may start alone. again: the policy wants a group
// on an idle GPU that can't be led there now.
func (r *pass) fill(g int, alone bool) (again bool) {
	kind, node := job.Join, r.gpus[g].node.Name
	here := func(p placement) bool { return p.gpu == g }
	switch {
	case len(r.now.GPUs[g].Running) == 0:
		kind = job.StartNow
	case slices.ContainsFunc(r.placed[node], here):
		return false // groups have exchanged the node's idle GPUs
	}
	number := int64(0) // of the group
	for dec := r.choose(g, kind); dec.Combo != 0; dec = r.choose(g, kind) {
		if dec.Turn && !alone && r.gpus[g].instance && r.faster(g, &r.now.Pending[dec.Jobs()[0]]) {
			return true // it ends earlier there, if nothing else gets that GPU
		}
		before := r.checkpoint(node)
		grown, why := r.draft(g, kind, number, dec.Jobs(), false)
		if why != placed {
			r.rollBack(before)
			first := number == 0 && kind == job.StartNow
			if first && alone && (why == refused || r.checks < 0) {
				if number, why = r.draft(g, kind, 0, dec.Jobs()[:1], true); why != placed {
					r.rollBack(before)
					number = 0
				}
			}
			again = first && number == 0
			break
		}
		number = grown
		r.refresh(node, number)
		m := r.members(number)
		if !r.Join || m[0].tried || m[0].first {
			break
		}
		g = m[0].gpu
	}
	if number != 0 {
		r.refresh(node, 0)
	}
	return again
}

// choose lets the policy choose among the jobs of GPU g's window.
func (r *pass) choose(g int, kind job.GroupKind) rlcore.Decision {
	node := r.gpus[g].node.Name
	w := rlcore.NewWindowOf(r.window, &r.now, g, r.width(g, kind), func(j *rlcore.Job) bool { return r.mayStart(j, node) })
	r.window = w.Jobs
	dec := r.Decider.Choose(w)
	if dec.Broken {
		r.plan.Broken++
	}
	r.explain(&dec)
	return dec
}

// width is the number of waiting jobs that the decision for GPU g considers. If other GPUs of the node are idle, too,
// it is as many as fill the GPU plus one: a job's GPU follows from its place in the queue, and neighbours in the queue
// can always be led to one GPU.
func (r *pass) width(g int, kind job.GroupKind) int {
	idle := 0
	for _, k := range r.shelves[r.gpus[g].shelf()] {
		if len(r.now.GPUs[k].Running) == 0 && !r.closed[k] {
			idle++
		}
	}
	m := r.Decider.Window()
	if kind != job.StartNow || idle < 2 {
		return m
	}
	return min(m, r.guard.Members(&r.now.GPUs[g].Spec)+1)
}
