// Package history knows the runs of jobs that have ended: what a node recorded of a run, what polls showed
// of it and what Slurm said of its end are joined here, once. The receipt, retraining, learning and the
// replay of a site's own runs all read the same Run.
package history

import (
	"fmt"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Run is one run of a job that has ended. Its times are by the controller's clock: the node's
// times, corrected by the offset of its clock, if it sent a record, otherwise the times that polls
// showed.
type Run struct {
	ID                                 int64 // of the node's record, ascending in the order the records came; 0 = there is none
	Ref, User, Account, Partition, App string
	Mode                               job.Mode // of the controller; "" = no poll showed the run
	Terms                              job.Terms
	// Ready is since when the job waited for nothing but its turn; zero = no poll showed it waiting.
	Submit, Ready time.Time
	// Start is zero for a run that no poll and no record showed running, End for one that still
	// runs.
	Start, End time.Time
	// Allotted is the start that Slurm gives, in whole seconds; zero = no poll showed it. The node's, Start, follows
	// once the prolog runs.
	Allotted  time.Time
	Node      string
	GPUs      []int // indexes on the node, in gres.conf's order
	WholeGPUs int   // that the job requested; 0 = a share of one
	Shares    int   // of a GPU, of 100; 0 = whole GPUs, or not known
	Group     int64 // 0 = of no group
	// Profile is what is known of the application, for a run to be judged without this run; nil = nothing.
	Profile *rlcore.Profile

	// What only a record holds.
	Devices    []gpuprof.GPU
	PeakMemMiB float64 // the most memory in use on its GPUs
	Complete   bool    // the record has all that a profile is made from
	MPSFault   bool    // the MPS server that the job used failed
	Use        *Use    // what it did with its GPUs, for its footprint; nil = not known
	// CoRunners is there for a run to be judged; afterwards Outcome.With names them.
	CoRunners []CoRunner

	// Outcome is nil where the run was not judged.
	Outcome *Outcome
}

// CoRunner is another job that was on the GPU for a part of a run.
type CoRunner struct {
	Ref, App string
	Owner    string          // its user
	Profile  *rlcore.Profile // nil = nothing is known of the application
	OverlapS float64         // how long both were there, s
	AtEnd    bool            // it was still there when the run ended
}

// DurationS is how long the run took, s.
func (r *Run) DurationS() float64 { return r.End.Sub(r.Start).Seconds() }

// Took reports whether start and end of the run are known and in order.
func (r *Run) Took() bool { return !r.Start.IsZero() && r.End.After(r.Start) }

// Shown reports whether polls showed the run.
func (r *Run) Shown() bool { return r.Mode != "" }

// GPUNames are names that are the same for the same GPU.
func (r *Run) GPUNames() []string {
	out := make([]string, len(r.GPUs))
	for i, g := range r.GPUs {
		out[i] = fmt.Sprintf("%s/%d", r.Node, g)
	}
	return out
}

// cardMemMiB is the memory of its GPU, MiB; 0 = not known.
func (r *Run) cardMemMiB() float64 {
	most := 0.0
	for i := range r.Devices {
		most = max(most, r.Devices[i].MemMiB)
	}
	return most
}

// Job is the job as a decision sees it.
func (r *Run) Job() rlcore.Job {
	j := rlcore.Job{
		User: r.User, Profile: r.Profile,
		NoShare: r.WholeGPUs > 0 || r.Terms.NoShare, MaxSlowdown: r.Terms.MaxSlowdown, ArrayOnly: r.Terms.ArrayOnly,
	}
	if array, _, ok := strings.Cut(r.Ref, "_"); ok {
		j.Array = array
	}
	return j
}

// Basis is how the time that a run takes alone is known.
type Basis int

// The ways to know it, the surest first.
const (
	Measured   Basis = iota // it ran alone
	ByProfile               // its application's profile says so
	BySlowdown              // its time divided by the predicted slowdown, or by the number of sharers
	Lost                    // not at all: it failed, and sharing may be the reason
)

// Solo is how long the run would have taken alone, s; 0 where that is Lost.
func (r *Run) Solo() (seconds float64, basis Basis) {
	took := r.DurationS()
	o := r.Outcome
	switch {
	case o == nil || !o.Shared():
		return took, Measured
	case o.Suspect != "":
		return 0, Lost
	case o.Slowdown > 0 && o.SoloS > 0:
		return o.SoloS, ByProfile
	case o.Predicted >= 1:
		return took / o.Predicted, BySlowdown // it was cut short
	}
	// Nothing was predicted: it is assumed to have done the least, one of n sharers' part.
	return took / float64(1+len(o.With)), BySlowdown
}

// Intended is a group that would have been made in shadow mode.
type Intended struct {
	At time.Time `json:"at"`
	job.Group
	// Running lists the jobs on the GPU that the group would have joined.
	Running []string `json:"beside,omitempty"`
}

// Refused is how often the guard gave one reason.
type Refused struct {
	Reason string `json:"reason"`
	Jobs   int    `json:"jobs"`
	Looks  int    `json:"looks"` // polls, summed over the jobs: each poll counts once a job
}
