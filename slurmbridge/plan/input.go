// Package plan decides what is to change: from a poll, the tracker and the profiles to a job.Plan. It does no I/O, and
// the same input gives the same plan.
//
// Planner.Plan builds a view of the cluster (the State that the simulator fills too), has the decider choose for one
// GPU after the other, and lets package release turn the chosen groups into changes.
package plan

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/extend"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/limit"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// Input is everything that a plan is made from.
type Input struct {
	Snap *job.Snapshot
	// Gate is the job that waiting jobs depend on; "" = there is none.
	Gate string
	// Unproved: Slurm has not yet shown the gate as it is; no group is made.
	Unproved bool
	// HoldS is how long the gate would hold a job if the bridge died now, s.
	HoldS float64
	// Shadow plans without a gate: every pending job that requests a whole GPU's shares counts as
	// waiting for the bridge.
	Shadow bool
	// Apps holds the application and profile of each identified job, by ref. The plan leaves out jobs without an entry.
	Apps map[string]job.App
	// Touched holds the jobs that repairs are about to change. The plan leaves them out: the poll is no longer true of
	// them.
	Touched map[string]bool
	// Bounds limit how far time limits may be raised; nil = unknown, or limits stay as they are.
	Bounds *job.Bounds
	// Terms by ref; jobs without an entry have none.
	Terms map[string]job.Terms
	// Models holds the model of each GPU; see job.NameCards.
	Models map[job.GPUAddr]string
	// Adopt says which jobs of a whole GPU may share; nil = none. While its rules are in shadow, an active bridge's plan
	// only notes which jobs they match.
	Adopt *adopt.Policy
	// Bans keep out applications and rules that went wrong.
	Bans *adopt.Bans
	// TriedMiB is the most device memory that a run of an application was tried with and failed, MiB.
	TriedMiB map[rlcore.Identity]float64
	Card     Card
	Tracker  *tracker.Tracker

	// grains holds, by partition, a node of each kind that allocates several CPUs at a time.
	grains map[string][]*job.Node
	// unshared says, by partition, nodes and type, whether a job may have a GPU without shares.
	unshared map[[3]string]bool
	// members holds the members of all groups, by ref.
	members map[string]*job.Member
}

// Card describes a GPU type of gres.conf; false = unknown, which keeps groups off it.
type Card func(gpuType string) (rlcore.GPUSpec, bool)

// WaitsForBridge reports whether the bridge is among the things that the job waits for.
func (in *Input) WaitsForBridge(j *job.Job) bool {
	return in.Shadow || release.Behind(in.Snap.Gates, j)
}

// waitsOnly reports whether the bridge is the only thing that the job waits for.
func (in *Input) waitsOnly(j *job.Job) bool {
	if in.Shadow {
		return len(j.Dependency.List) == 0
	}
	return release.OnlyBehind(in.Snap.Gates, j)
}

// WaitsBesides returns what a job waits for in addition to the bridge, "" = nothing.
func (in *Input) WaitsBesides(j *job.Job) string {
	if !in.waitsOnly(j) {
		return "its own dependency " + j.Dependency.Without(in.Snap.Gates)
	}
	if why := in.notYet(j); why != "" {
		return why
	}
	if is, _ := limit.Reason(j.Reason); is && in.Shadow {
		return "Slurm's limit " + j.Reason
	}
	return ""
}

// notYet returns why Slurm would not start the job even on idle GPUs, "" = it would.
func (in *Input) notYet(j *job.Job) string {
	switch {
	case j.Priority == 0:
		return "it is held"
	case j.Reason == "BeginTime" || !j.Eligible.IsZero() && j.Eligible.After(in.Snap.At):
		return "its begin time"
	}
	return ""
}

// unmanageable returns why the bridge can't group a waiting job; "" = it can.
func (in *Input) unmanageable(j *job.Job, managed *job.PartitionFilter) job.Unfit {
	switch {
	case j.TooLong:
		return job.UnfitTooLong
	case j.Expedited:
		return job.UnfitExpedited
	case j.HetID != 0:
		return job.UnfitHet
	case j.Request.Kind == job.WholeGPU:
		if why := in.unadoptable(j); why != "" {
			return why
		}
	case j.Request.Kind != job.Shares || j.Request.Count != job.Units:
		return job.UnfitShares
	}
	switch {
	case j.NumNodes > 1:
		return job.UnfitNodes
	case j.Features != "":
		return job.UnfitFeatures
	case j.Reservation != "":
		return job.UnfitReservation
	case j.Exclusive:
		return job.UnfitExclusive
	case strings.ContainsAny(j.ReqNodes, ",["):
		return job.UnfitNodeList
	case j.Dependency.Or:
		return job.UnfitAlternatives
	case !managed.Covers(j.Partition):
		return job.UnfitPartition
	case !in.fitsNode(j):
		return job.UnfitSize
	case managed.MeetsWholeGPUs(in.Snap, j):
		return job.UnfitRelease
	}
	return ""
}

// fitsNode reports whether an empty node is large enough for the job. If none is, Slurm may still spread its tasks over
// several.
func (in *Input) fitsNode(j *job.Job) bool {
	parts := strings.Split(j.Partition, ",")
	for i := range in.Snap.Nodes {
		if n := &in.Snap.Nodes[i]; n.CPUs >= j.CPUs && n.MemMiB >= j.HostMemMiB && n.Serves(parts) {
			return true
		}
	}
	return false
}

// takes returns the CPUs and the memory that Slurm allocates to a pending job, the most on any node that the job may
// use.
func (in *Input) takes(j *job.Job) (cpus int, memMiB float64) {
	kinds, known := in.grains[j.Partition]
	if !known {
		for i := range in.Snap.Nodes {
			n := &in.Snap.Nodes[i]
			alike := func(o *job.Node) bool {
				return n.CPUsPerAlloc == o.CPUsPerAlloc && n.TaskPerCore == o.TaskPerCore && n.CPUs == o.CPUs
			}
			if n.CPUsPerAlloc > 1 && !slices.ContainsFunc(kinds, alike) && n.Serves(j.Partitions()) {
				kinds = append(kinds, n)
			}
		}
		in.grains[j.Partition] = kinds
	}
	cpus, memMiB = j.CPUs, j.HostMemMiB
	for _, n := range kinds {
		if n.CPUs >= j.CPUs {
			cpus, memMiB = max(cpus, n.Allocates(j.CPUs)), max(memMiB, n.Takes(j))
		}
	}
	return cpus, memMiB
}

// Profile is what is known of a running job's application on its GPU.
func (in *Input) Profile(j *job.Job) *rlcore.Profile {
	app, model := in.Apps[j.Ref], ""
	if len(j.GPUs) > 0 {
		model = in.Models[job.GPUAddr{Node: j.Nodes, GPU: j.GPUs[0]}]
	}
	return app.On(model)
}

// rlJob converts a job to the decider's type.
func (in *Input) rlJob(j *job.Job) rlcore.Job {
	t := in.Terms[j.Ref]
	out := rlcore.Job{
		ID: j.Ref, User: j.User, Profile: in.Apps[j.Ref].Profile,
		SubmitS: tracker.Seconds(j.Submit), LimitS: j.TimeLimit.Seconds(),
		Priority: float64(j.Priority), MaxSlowdown: t.MaxSlowdown, NoShare: t.NoShare,
		CPUs: j.CPUs, HostMemMiB: j.HostMemMiB, ArrayOnly: t.ArrayOnly,
		Rank: in.Snap.Ranks.Of(j),
	}
	if j.State == job.Pending { // for running jobs Slurm reports the allocation
		out.CPUs, out.HostMemMiB = in.takes(j)
	}
	in.contract(j, &out)
	if !j.Deadline.IsZero() {
		out.DeadlineS = tracker.Seconds(j.Deadline)
	}
	out.LimitFixed = j.TimeLimit > 0 && in.limitFixed(j, t.MaxSlowdown)
	if j.ArrayID != 0 {
		out.Array = strconv.FormatInt(j.ArrayID, 10)
	}
	if w := in.Tracker.Waits[j.Ref]; w != nil {
		out.DelayedS = w.DelayedS
	}
	return out
}

// mostExtended is the slowdown for which a limit must leave room where no contract is set.
const mostExtended = rlcore.DefaultMaxSlowdown

// limitFixed reports whether the time that sharing costs can't be given back: MaxTime or a reservation leaves no room,
// or the owner has lowered the limit.
func (in *Input) limitFixed(j *job.Job, contract float64) bool {
	if in.Bounds == nil {
		return true
	}
	own, runS := j.TimeLimit, 0.0
	if l := in.Tracker.Loans[j.Ref]; l != nil {
		if l.Closed {
			return true
		}
		own = min(own, l.Own)
	}
	if !j.Start.IsZero() {
		runS = in.Snap.At.Sub(j.Start).Seconds()
	}
	needs := time.Duration(float64(own) * cmp.Or(contract, mostExtended))
	return extend.Latest(j, in.Snap.At, runS, in.Bounds) < needs.Truncate(time.Minute)
}
