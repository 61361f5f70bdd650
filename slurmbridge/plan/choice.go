package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// fillAll decides what starts now on each GPU. A GPU whose group is refused, by the search for shares or by the guard,
// is tried again after all others. Then the group's first job may start there alone, as on plain Slurm.
func (r *planRun) fillAll() {
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

// startable lists the GPUs on which a job might start now, by free shares, most first. Among equals, nodes that are
// awake come first, then MIG instances before whole GPUs, the smallest first: a job that fits on an instance leaves the
// larger GPUs to jobs that don't.
func (r *planRun) startable() []int {
	var out []int
	for g := range r.draft.state.GPUs {
		card := &r.draft.state.GPUs[g]
		taken := r.view.closed[g] || r.view.unsettled[card.Node] || r.draft.guard.Claimed(g) != ""
		if card.FreeShares() > 0 && !taken {
			out = append(out, g)
		}
	}
	slices.SortStableFunc(out, func(a, b int) int {
		return cmp.Or(r.fillRank(a)-r.fillRank(b), cmp.Compare(r.fillSize(a), r.fillSize(b)))
	})
	return out
}

// fillRank orders GPUs by free shares, then nodes that are awake before sleeping ones.
func (r *planRun) fillRank(g int) int {
	rank := -2 * r.draft.state.GPUs[g].FreeShares()
	if r.view.gpus[g].node.Asleep {
		rank++
	}
	return rank
}

// fillSize is the memory of a MIG instance, MiB; +Inf for a whole GPU, so that these stay in Slurm's order.
func (r *planRun) fillSize(g int) float64 {
	if !r.view.gpus[g].instance {
		return math.Inf(1)
	}
	return r.draft.state.GPUs[g].Spec.MemMiB
}

// fill decides what starts on GPU g now, and what joins it, until the policy wants nothing more: some policies build a
// group job by job. alone: if a group is refused, its first job may start alone. again: the policy wants a group on an
// idle GPU, and no shares lead it there now.
func (r *planRun) fill(g int, alone bool) (again bool) {
	node := r.view.gpus[g].node.Name
	kind := job.Join
	if len(r.draft.state.GPUs[g].Running) == 0 {
		kind = job.StartNow
	} else if r.draft.starts(node, g) {
		return false // groups have exchanged the node's idle GPUs
	}
	number := int64(0) // of the group
	for dec := r.choose(g, kind); dec.Combo != 0; dec = r.choose(g, kind) {
		chosen := dec.Jobs()
		if dec.Turn && !alone && r.view.gpus[g].instance && r.draft.faster(g, &r.draft.state.Pending[chosen[0]]) {
			return true // it ends earlier there, if nothing else gets that GPU
		}
		before := r.draft.checkpoint(node)
		grown, result := r.formGroup(g, kind, number, chosen, false)
		if result != placed {
			r.draft.rollBack(before)
			first := number == 0 && kind == job.StartNow
			if first && alone && (result == refused || r.checks < 0) {
				number = r.startAlone(g, chosen[0], before)
			}
			again = first && number == 0
			break
		}
		number = grown
		r.draft.refresh(node, number)
		member := &r.draft.members(number)[0]
		if member.onTrial() {
			break
		}
		g = member.gpu
	}
	if number != 0 {
		r.draft.refresh(node, 0)
	}
	return again
}

// startAlone starts a job of the queue on GPU g with all of its shares. It returns the group's number, 0 = it isn't
// placed, and nothing has changed since the checkpoint.
func (r *planRun) startAlone(g, first int, before checkpoint) int64 {
	number, result := r.formGroup(g, job.StartNow, 0, []int{first}, true)
	if result != placed {
		r.draft.rollBack(before)
		return 0
	}
	return number
}

// choose lets the policy choose among the jobs of GPU g's window that Slurm starts there for sure. If it has none, and
// nothing else is sent to the GPU, the policy chooses among the jobs that Slurm may start.
func (r *planRun) choose(g int, kind job.GroupKind) rlcore.Decision {
	node := r.view.gpus[g].node.Name
	may := func(j *rlcore.Job) bool { return r.mayStart(j, node) }
	sure := func(j *rlcore.Job) bool { return r.queue.backfills(j, node) && may(j) }
	w := rlcore.NewWindowOf(r.window, &r.draft.state, g, r.width(g, kind), sure)
	if len(w.Jobs) == 0 && !r.draft.starts(node, g) {
		w = rlcore.NewWindowOf(w.Jobs, &r.draft.state, g, r.width(g, kind), may)
	}
	r.window = w.Jobs
	dec := r.planner.Decider.Choose(w)
	if dec.Broken {
		r.plan.Broken++
	}
	r.explain(&dec)
	return dec
}

// width is the number of waiting jobs that the decision for GPU g considers. If other GPUs of the node are idle, too,
// it is as many as fill the GPU plus one: a job's GPU follows from its place in the queue, and neighbours in the queue
// can always be led to one GPU.
func (r *planRun) width(g int, kind job.GroupKind) int {
	m := r.planner.Decider.Window()
	if kind != job.StartNow {
		return m
	}
	idle := 0
	for _, k := range r.view.pools[r.view.gpus[g].pool()] {
		if len(r.draft.state.GPUs[k].Running) == 0 && !r.view.closed[k] {
			idle++
		}
	}
	if idle < 2 {
		return m
	}
	return min(m, r.draft.guard.Members(&r.draft.state.GPUs[g].Spec)+1)
}

// mayStart reports whether a job may be sent to a node: Slurm would start it there, or Slurm doesn't say that it
// wouldn't and there is no better node. A node that is one user's at a time belongs to the first job that this plan
// sends there.
func (r *planRun) mayStart(j *rlcore.Job, node string) bool {
	if r.view.owned && r.draft.othersStart(j, node) {
		return false
	}
	if r.queue.backfills(j, node) {
		return true
	}
	return !r.queue.claims[node].planned && !r.queue.startsElsewhere(j, node, r.draft.state.GPUs)
}
