// Package plan decides what is to change: from a poll, the tracker and the profiles to a job.Plan. It does no I/O, and
// the same input gives the same plan.
//
// Planner.Plan builds a view of the cluster (the State that the simulator fills too), has the decider choose for one
// GPU after the other, and lets package release turn the chosen groups into changes.
package plan

import (
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurmlimit"
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
	// Shadow plans without a gate: every pending job that requests a whole GPU's shares counts as waiting for the bridge.
	Shadow bool
	// Apps holds the application and profile of each identified job, by ref. The plan leaves out jobs without an entry.
	Apps map[string]job.App
	// Touched holds the jobs that repairs are about to change. The plan leaves them out: the poll is no longer true of
	// them.
	Touched map[string]bool
	// Bounds are what operators have set, without MaxTime where time limits stay as they are; nil = unknown.
	Bounds *job.Bounds
	// Terms by ref.
	Terms map[string]job.Terms
	// Models holds the model of each GPU; see job.NameModels.
	Models map[job.GPUAddr]string
	// NoLimits holds the nodes whose driver is too old to limit the memory of MPS clients, also on cards that could.
	NoLimits map[string]bool
	// Adopt says which jobs of a whole GPU may share; nil = none. While its rules are in shadow, an active bridge's plan
	// only notes which jobs they match.
	Adopt *adopt.Policy
	// Standing says what is known of a user's application beside its profile; nil = nothing.
	Standing func(of rlcore.Identity) interference.Standing
	// RetryAlone: a job that fails for having shared, or under MPS, runs again alone.
	RetryAlone bool
	Specs      Specs
	Tracker    *tracker.Tracker
}

// Specs describes a GPU type of gres.conf; false = unknown, which keeps groups off it.
type Specs func(gpuType string) (rlcore.GPUSpec, bool)

// OfType describes a GPU type; an unknown one has one job at a time.
func (c Specs) OfType(typ string) rlcore.GPUSpec {
	if c != nil {
		if spec, known := c(typ); known {
			return spec
		}
	}
	return rlcore.GPUSpec{Model: typ, SameUser: true, MaxClients: 1}
}

// Of describes a GPU of a type and of the model that records name, "" = none has: only that says which card an instance
// is a part of.
func (c Specs) Of(typ, model string) rlcore.GPUSpec {
	is, ok := job.InstanceOf(typ)
	if of, named := job.InstanceOf(model); !ok || !named || is.Parent != "" || is.Profile != of.Profile {
		return c.OfType(typ)
	}
	spec := c.OfType(model)
	spec.Model = typ
	return spec
}

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
	if is, _ := slurmlimit.Reason(j.Reason); is && in.Shadow {
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

// Profile is what is known of a running job's application on its GPU.
func (in *Input) Profile(j *job.Job) *rlcore.Profile {
	app, model := in.Apps[j.Ref], ""
	if len(j.GPUs) > 0 {
		model = in.Models[job.GPUAddr{Node: j.Nodes, GPU: j.GPUs[0]}]
	}
	return app.On(model)
}

// Rule returns the rule by which a job that has its own request is adopted, nil = it isn't.
func (in *Input) Rule(j *job.Job) *adopt.Rule {
	if in.Adopt == nil || !in.Shadow && !in.Adopt.Active {
		return nil
	}
	return in.match(j)
}

// standing is the standing of a job's application.
func (in *Input) standing(j *job.Job) interference.Standing {
	if in.Standing == nil {
		return interference.Standing{}
	}
	return in.Standing(rlcore.Identity{App: in.Apps[j.Ref].Key, Owner: j.User})
}

// match returns the rule that matches a job which has its own request, whether rules are in shadow or not; nil = none
// does.
func (in *Input) match(j *job.Job) *adopt.Rule {
	if in.Adopt == nil || in.Snap.GivesUsedGPUs || in.Terms[j.Ref].NoShare {
		return nil
	}
	r := in.Adopt.Of(j)
	if r == nil || in.Tracker.Stops.Stopped(r, in.Snap.At) {
		return nil
	}
	return r
}

// handwrittenFor is how long groups leave no room after the last job with shares written by hand: such a job starts
// next to any other, unchecked.
const handwrittenFor = 7 * 24 * time.Hour

// handwritten reports whether jobs with shares written by hand have been seen lately.
func (in *Input) handwritten() bool {
	return in.Snap.At.Sub(in.Tracker.Handwritten) <= handwrittenFor
}
