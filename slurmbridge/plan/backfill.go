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

// nodeClaim says for which foreign job Slurm keeps a node, and from when that job is expected to need it, s from now;
// +Inf = never.
type nodeClaim struct {
	by      *job.Job
	fromS   float64
	planned bool // Slurm says so
}

// nodeClaims returns the nodes that Slurm keeps for foreign jobs. Once its backfill has planned, Slurm names these
// nodes. Before, it may keep each node that has enough GPUs for a job of several.
func (q *queue) nodeClaims() map[string]nodeClaim {
	planned := slices.ContainsFunc(q.in.Snap.Nodes, func(n job.Node) bool { return n.Planned })
	free := map[string]bool{} // nodes that no job is known to wait for
	for name, gpus := range q.view.nodes {
		if !planned || q.view.gpus[gpus[0]].node.Planned {
			free[name] = true
		}
	}
	type want struct {
		gpus           *rlcore.GPUSet
		nodes, perNode int
	}
	wants := map[want]bool{}
	out := map[string]nodeClaim{}
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
		for name := range q.view.nodes {
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
				out[name] = nodeClaim{q.view.jobs[f.ID], max(at, all[f.Nodes-1]), planned}
				delete(free, name)
			}
		}
	}
	return out
}

// fitsFrom returns when a node has as many GPUs as a foreign job takes of it, by the limits of the jobs that run there.
func (q *queue) fitsFrom(f *rlcore.Job, node string) (fromS float64, fits bool) {
	var ends []float64
	for _, g := range q.view.nodes[node] {
		if !f.MayUse(g) {
			continue
		}
		end := 0.0
		for i := range q.view.present[g] {
			x := &q.view.present[g][i]
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

// backfills reports whether Slurm would start a released job on a node now: no job that Slurm is known to keep the node
// for comes first.
func (q *queue) backfills(j *rlcore.Job, node string) bool {
	k, is := q.claims[node]
	return !is || j.LimitS > 0 && j.LimitS <= k.fromS || ByPriority(q.view.jobs[j.ID], k.by) < 0
}

// startsElsewhere reports whether Slurm would start a job now on an idle GPU of another node.
func (q *queue) startsElsewhere(j *rlcore.Job, node string, gpus []rlcore.GPU) bool {
	for g := range gpus {
		card := &gpus[g]
		if card.Node != node && len(card.Running) == 0 && !q.view.closed[g] && j.MayUse(g) && q.backfills(j, card.Node) {
			return true
		}
	}
	return false
}

// avoids lists the nodes that Slurm keeps from a job which it would start elsewhere now, separated by commas.
func (q *queue) avoids(j *rlcore.Job) string {
	var out []string
	for name := range q.claims {
		if !q.backfills(j, name) {
			out = append(out, name)
		}
	}
	if out == nil || !q.startsElsewhere(j, "", q.view.state.GPUs) {
		return ""
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}
