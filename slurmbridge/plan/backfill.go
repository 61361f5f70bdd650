package plan

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Slurm keeps nodes for a waiting job: a job of lower priority starts there only if its time limit ends before the
// waiting job's expected start. Slurm's backfill foretells that start by the limits of the jobs that run, and keeps
// whole nodes. Where the guard, which knows how long jobs really take, sees room, Slurm would leave a released job
// pending.

// kept says for which foreign job Slurm keeps a node, and from when that job is expected to need it, s from now; +Inf =
// never.
type kept struct {
	by      *job.Job
	fromS   float64
	planned bool // Slurm says so
}

// keptNodes returns the nodes that Slurm keeps for foreign jobs. Once its backfill has planned, Slurm names these
// nodes. Before, it may keep each node that could once have as many GPUs as a job of several asks for.
func (q *queue) keptNodes() map[string]kept {
	planned := slices.ContainsFunc(q.Snap.Nodes, func(n job.Node) bool { return n.Planned })
	free := map[string]bool{} // nodes that no job is known to wait for
	for name, gpus := range q.nodes {
		if !planned || q.gpus[gpus[0]].node.Planned {
			free[name] = true
		}
	}
	type want struct {
		gpus           *rlcore.GPUSet
		nodes, perNode int
	}
	wants := map[want]bool{}
	out := map[string]kept{}
	for i := range q.waiting {
		f := &q.waiting[i]
		if len(free) == 0 {
			break
		}
		w := want{f.GPUs, f.Nodes, f.PerNode}
		if !f.Foreign || !planned && f.PerNode*f.Nodes < 2 || wants[w] { // the first of its kind has taken all
			continue
		}
		wants[w] = true
		starts := map[string]float64{}
		for name := range q.nodes {
			if !free[name] && f.Nodes == 1 {
				continue
			}
			if at, fits := q.fitsFrom(f, name); fits {
				starts[name] = at
			}
		}
		if len(starts) < f.Nodes {
			continue
		}
		all := make([]float64, 0, len(starts))
		for _, at := range starts {
			all = append(all, at)
		}
		slices.Sort(all)
		for name, at := range starts {
			if free[name] {
				out[name] = kept{q.jobs[f.ID], max(at, all[f.Nodes-1]), planned}
				delete(free, name)
			}
		}
	}
	return out
}

// fitsFrom returns when a node has as many GPUs as a foreign job takes of it, by the limits of the jobs that run there.
func (q *queue) fitsFrom(f *rlcore.Job, node string) (fromS float64, fits bool) {
	var ends []float64
	for _, g := range q.nodes[node] {
		if !f.MayUse(g) {
			continue
		}
		end := 0.0
		for i := range q.present[g] {
			x := &q.present[g][i]
			end = max(end, cmp.Or(x.LimitS, math.Inf(1))-x.ElapsedS)
		}
		ends = append(ends, end)
	}
	if len(ends) < f.PerNode {
		return 0, false
	}
	slices.Sort(ends)
	return ends[f.PerNode-1], true
}

// backfills reports whether Slurm would start a released job on a node now, as far as is known: no job that Slurm keeps
// the node for is in the way.
func (q *queue) backfills(j *rlcore.Job, node string) bool {
	k, is := q.kept[node]
	return !is || j.LimitS > 0 && j.LimitS <= k.fromS || ByPriority(q.jobs[j.ID], k.by) < 0
}

// mayStart reports whether a job may be sent to a node: Slurm would start it there, or Slurm doesn't say that it
// wouldn't and there is no better node. A node that is one user's at a time is that of the first job that this plan
// sends there.
func (r *pass) mayStart(j *rlcore.Job, node string) bool {
	apart := func(p placement) bool {
		return p.User != j.User && (r.oneUser(r.jobs[p.ID]) || r.oneUser(r.jobs[j.ID]))
	}
	if r.owned && slices.ContainsFunc(r.placed[node], apart) {
		return false
	}
	return r.backfills(j, node) || !r.kept[node].planned && !r.startsElsewhere(j, node, r.now.GPUs)
}

// startsElsewhere reports whether Slurm would start a job now on an idle GPU of another node.
func (q *queue) startsElsewhere(j *rlcore.Job, node string, gpus []rlcore.GPU) bool {
	for g := range gpus {
		card := &gpus[g]
		if card.Node != node && len(card.Running) == 0 && !q.closed[g] && j.MayUse(g) && q.backfills(j, card.Node) {
			return true
		}
	}
	return false
}

// keepOff takes the nodes that Slurm keeps from the jobs that it would start elsewhere now: plain Slurm does that, too.
func (q *queue) keepOff() {
	q.kept = q.keptNodes()
	keeps := map[string]bool{} // by ref: Slurm keeps nodes for it
	for _, k := range q.kept {
		keeps[k.by.Ref] = true
	}
	// What is true of all jobs of these GPUs and this limit that come after so many of the jobs that nodes are kept for.
	type alike struct {
		gpus   *rlcore.GPUSet
		limitS float64
		after  int
	}
	off, after := map[alike]string{}, 0
	for i := range q.waiting {
		j := &q.waiting[i]
		if keeps[j.ID] {
			after++
		}
		if j.Foreign {
			continue
		}
		nodes := once(off, alike{j.GPUs, j.LimitS, after}, func() string { return q.offFor(j) })
		if nodes == "" {
			continue
		}
		own, app := q.jobs[j.ID], q.Apps[j.ID]
		q.fitting(q.reach(own, nodes+","+q.closedFor(own), q.wanted(own)), app).know(j, app)
	}
}

// offFor lists the nodes that Slurm keeps from a job which it would start elsewhere now, separated by commas.
func (q *queue) offFor(j *rlcore.Job) string {
	var off []string
	for name := range q.kept {
		if !q.backfills(j, name) {
			off = append(off, name)
		}
	}
	if off == nil || !q.startsElsewhere(j, "", q.State.GPUs) {
		return ""
	}
	slices.Sort(off)
	return strings.Join(off, ",")
}
