package plan

import (
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// ungroupable returns why the bridge can't group a waiting job; "" = it can.
func (q *queue) ungroupable(j *job.Job) job.Ungated {
	switch {
	case j.TooLong:
		return job.UngatedTooLong
	case j.Expedited:
		return job.UngatedExpedited
	case j.HetID != 0:
		return job.UngatedHet
	case j.Request.Kind == job.WholeGPU:
		if why := q.view.unadoptable(j); why != "" {
			return why
		}
	case j.Request.Kind != job.Shares || j.Request.Count != job.Units:
		return job.UngatedShares
	}
	switch {
	case j.NumNodes > 1:
		return job.UngatedNodes
	case j.Features != "":
		return job.UngatedFeatures
	case j.Prefers != "":
		return job.UngatedPrefers
	case j.Reservation != "":
		return job.UngatedReservation
	case q.in.Snap.TakesNodes(j):
		return job.UngatedWholeNodes
	case j.Exclusive != "" && !q.view.oneUser(j):
		return job.UngatedExclusive
	case strings.ContainsAny(j.ReqNodes, ",["):
		return job.UngatedNodeList
	case j.Dependency.Or:
		return job.UngatedAlternatives
	case !q.managed.Covers(j.Partition):
		return job.UngatedPartition
	case !q.view.fitsNode(j):
		return job.UngatedSize
	case q.managed.MeetsWholeGPUs(q.in.Snap, j):
		return job.UngatedRelease
	}
	return ""
}

// fitsNode reports whether an empty node is large enough for the job. If none is, Slurm may still spread its tasks over
// several.
func (v *clusterView) fitsNode(j *job.Job) bool {
	partitions := j.Partitions()
	return slices.ContainsFunc(v.in.Snap.Nodes, func(n job.Node) bool {
		return n.CPUs >= j.CPUs && n.MemMiB >= j.HostMemMiB && n.Serves(partitions)
	})
}

// An adopted job waits behind the gate with its own request for one GPU. It goes through the stages of a plan like any
// sharer. It requests shares only as a member of a group of several or to keep its turn; otherwise it is ungated
// unchanged.

// adopted reports whether a pending job is one of a whole GPU, which shares by a rule of the site only.
func (v *clusterView) adopted(ref string) bool {
	j := v.jobs[ref]
	return j != nil && j.Request.Kind == job.WholeGPU
}

// unadoptable returns why a job of a whole GPU that is behind the gate isn't grouped, "" = it may be.
func (v *clusterView) unadoptable(j *job.Job) job.Ungated {
	if v.in.Rule(j) == nil {
		return job.UngatedNoRule
	}
	if why := v.neverAdopted(j); why != "" {
		return why
	}
	switch app, identified := v.in.Apps[j.Ref]; {
	case !identified && v.in.Snap.At.Sub(j.Submit) < v.in.Adopt.Delay:
		return "" // a later tick sees to it
	case app.Profile == nil || app.Profile.Runs == 0:
		return job.UngatedUnknown
	case !adopt.Leaves(app.Profile, v.in.largestMiB()):
		return job.UngatedFull
	case adopt.Bars(v.in.standing(j).Slower, v.in.Snap.At):
		return job.UngatedBroken
	}
	return ""
}

// whyNotAdopted returns why a job of Slurm's queue that a rule matches has its own GPU, "" = no rule matches it.
func (v *clusterView) whyNotAdopted(j *job.Job) job.Ungated {
	if v.in.match(j) == nil {
		return ""
	}
	if why := v.neverAdopted(j); why != "" || v.in.Rule(j) != nil {
		return why
	}
	return job.UngatedRuleInShadow
}

// neverAdopted returns why a job that a rule matches is never adopted, "" = it may be.
func (v *clusterView) neverAdopted(j *job.Job) job.Ungated {
	for _, partition := range append(j.Partitions(), job.AllPartitions) {
		if _, has := v.in.Snap.PerGPU[partition]; has {
			return job.UngatedPerGPU // Slurm refuses to replace its request
		}
	}
	for _, partition := range j.Partitions() {
		if slices.Contains(v.in.Snap.Unbilled, partition) {
			return job.UngatedUnbilled
		}
	}
	switch {
	case !j.Deadline.IsZero():
		return job.UngatedPromised
	case v.mayHaveUnshared(j):
		return job.UngatedUnshared // it could start on that GPU while it waits for co-runners
	}
	return ""
}

// mayHaveUnshared reports whether Slurm might start a job of one whole GPU on one without shares.
func (v *clusterView) mayHaveUnshared(j *job.Job) bool {
	typ := ownType(j)
	return once(v.unshared, demand{partition: j.Partition, nodes: j.ReqNodes, typ: typ}, func() bool {
		only, partitions := text.ExpandHosts(j.ReqNodes), j.Partitions()
		return slices.ContainsFunc(v.in.Snap.Nodes, func(n job.Node) bool {
			if !n.Up || !n.Serves(partitions) || j.ReqNodes != "" && !only[n.Name] {
				return false
			}
			for g := range n.GPUs {
				if c := n.GPU(g); (n.Units == 0 || c.Units < job.Units) && (typ == "" || typ == c.Type) {
					return true
				}
			}
			return false
		})
	})
}

// largestMiB is the memory of the largest GPU, MiB.
func (in *Input) largestMiB() float64 {
	most := 0.0
	for i := range in.Snap.Nodes {
		n := &in.Snap.Nodes[i]
		for g := range n.GPUs {
			most = max(most, in.Specs.OfType(n.GPU(g).Type).MemMiB)
		}
	}
	return most
}
