// Package history knows the runs of jobs that have ended: what a node recorded of a run, what polls showed
// of it and what Slurm said of its end are joined here, once. The receipt, learning and the
// replay of a site's own runs all read the same Run.
package history

import (
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Run is one run of a job. Its times are by the controller's clock: the node's times, corrected by the offset of its
// clock, if it sent a record, otherwise the times that polls showed. The table run keeps it as JSON.
type Run struct {
	row  int64         // in the table; 0 = it has none yet
	used sql.NullInt64 // Footprint.ended of the footprint that it has; NULL = it has none

	ID        int64    `json:"id,omitempty"`    // of the first of its nodes' records that came; 0 = none has
	Nodes     []string `json:"nodes,omitempty"` // that sent a record
	Ref       string   `json:"ref"`
	Task      int64    `json:"task,omitempty"` // an array task's own job number; 0 = it is none, or no poll showed it run
	User      string   `json:"user"`
	Account   string   `json:"account,omitempty"`
	Partition string   `json:"partition,omitempty"`
	App       string   `json:"app,omitempty"`
	Mode      job.Mode `json:"mode,omitempty"` // of the controller; "" = no poll showed the run

	Terms       job.Terms `json:"terms,omitzero"`
	QOS         string    `json:"qos,omitempty"` // "" = none, or no poll showed the run
	Reservation string    `json:"reservation,omitempty"`
	Deadline    time.Time `json:"deadline,omitzero"` // its owner's, zero = none
	// Ready is since when the job waited for nothing but its turn; zero = no poll showed it waiting.
	Submit time.Time `json:"submit,omitzero"`
	Ready  time.Time `json:"ready,omitzero"`
	// Start is zero for a run that no poll and no record showed running, End for one that still runs.
	Start time.Time `json:"start,omitzero"`
	End   time.Time `json:"end,omitzero"`
	// Allotted is the start that Slurm gives, in whole seconds; zero = no poll showed it. The node's, Start, follows
	// once the prolog runs.
	Allotted  time.Time `json:"allotted,omitzero"`
	Node      string    `json:"node,omitempty"`
	GPUs      []int     `json:"gpus,omitempty"`       // indexes on the node, in gres.conf's order
	WholeGPUs int       `json:"whole_gpus,omitempty"` // that the job requested; 0 = a share of one
	Shares    int       `json:"shares,omitempty"`     // of a GPU, of 100; 0 = whole GPUs, or not known
	Decided   Decision  `json:"decided,omitzero"`     // zero = it started without one
	// Profile is what is known of the application, for a run to be judged without this run; nil = nothing.
	Profile *rlcore.Profile `json:"-"`

	// What only a record holds.
	Devices    []gpuprof.GPU `json:"devices,omitempty"`
	PeakMemMiB float64       `json:"peak_mem_mib,omitempty"` // the most memory in use on its GPUs
	Complete   bool          `json:"complete,omitempty"`     // the record has all that a profile is made from
	MPSFault   bool          `json:"mps_fault,omitempty"`    // the MPS server that the job used failed
	Faulted    bool          `json:"faulted,omitempty"`      // by the fault of one of the job's own processes
	// it shared its GPU without MPS, which says nothing of sharing
	WithoutMPS bool          `json:"without_mps,omitempty"`
	Host       *gpuprof.Host `json:"host,omitempty"` // what it used of its node; nil = not known
	// what it did with its GPUs, for its footprint; nil = not known
	Use *Use `json:"use,omitempty"`

	// Ending is what polls saw of its end. CoRunners and Outcome are there once the run is judged.
	Ending    Ending     `json:"ending,omitzero"`
	CoRunners []CoRunner `json:"co_runners,omitempty"`
	Outcome   *Outcome   `json:"outcome,omitempty"`
}

// RunState is how far a job has come in its run, and what polls have shown of it on the way.
type RunState struct {
	job.Progress
	Start time.Time `json:"start,omitzero"` // as Slurm reports it; zero = no poll has shown it running
	// LimitS is its time limit, s, 0 = none, including LentS that were added because sharing had slowed it.
	LimitS   float64   `json:"limit_s,omitempty"`
	LentS    float64   `json:"lent_s,omitempty"`
	Deadline time.Time `json:"deadline,omitzero"` // its owner's (--deadline), zero = none
	// DelayedS is how long the bridge alone kept it waiting although a GPU was idle, s, and PastLeaseS how long it waited
	// behind a gate after its lease. UnstartedS is how long Slurm left it pending at last while enough GPUs were idle.
	DelayedS   float64 `json:"delayed_s,omitempty"`
	PastLeaseS float64 `json:"past_lease_s,omitempty"`
	UnstartedS float64 `json:"unstarted_s,omitempty"`
	// Suspended: a poll showed it suspended, so that it took longer than its work does.
	Suspended bool `json:"suspended,omitempty"`
	// Node and GPUs are where it runs, as far as Slurm has said so.
	Node string `json:"node,omitempty"`
	GPUs []int  `json:"gpus,omitempty"`
}

// Advance adds the time until a poll. A suspended job doesn't run. What a clock that was ahead has added goes again: no
// job has run for longer than since its start.
func (s *RunState) Advance(at time.Time, runs bool) {
	dt := at.Sub(s.At).Seconds()
	if most := at.Sub(s.Start).Seconds(); dt < 0 && s.RunS > most {
		dt = max(0, most) - s.RunS
	} else if !runs || dt < 0 {
		dt = 0
	}
	s.RunS += dt
	s.DoneS = max(0, s.DoneS+dt/max(s.Slow, 1))
	s.LeastS = max(0, s.LeastS+dt/max(s.Worst, s.Slow, 1))
	s.At = at
}

// known reports whether polls have shown the job running.
func (s *RunState) known() bool { return !s.Start.IsZero() }

// leastS is how much solo work the job did at the least in runS seconds.
func (s *RunState) leastS(runS float64) float64 {
	return s.LeastS + max(0, runS-s.RunS)/max(s.Worst, s.Slow, 1)
}

// Ending is a run's end, written when a poll no longer shows the run.
type Ending struct {
	RunState // as of the last poll that showed it
	// How is what Slurm says of the end. State "" = Slurm has not said, or had forgotten the job.
	How job.Description `json:"how,omitzero"`
	// PlainEnd is when plain Slurm would have ended the job; zero = it isn't known, or plain Slurm did end it.
	PlainEnd time.Time `json:"plain_end,omitzero"`
	// Member is the job as a member of the group in which it ran; nil = in none.
	Member *job.Member `json:"member,omitempty"`
}

// written reports whether there is an ending.
func (e *Ending) written() bool { return e.known() || e.Member != nil || e.How.State != "" }

// State is Slurm's word for how the job ended, "" = it is not known.
func (r *Run) State() string { return r.Ending.How.State }

// Predicted is the slowdown predicted when the group was decided in which it ran, 0 = none was.
func (r *Run) Predicted() float64 {
	if m := r.Ending.Member; m != nil {
		return m.Predicted
	}
	return 0
}

// Rule is the site's rule by which the job was adopted and put into a group, "" = it wasn't.
func (r *Run) Rule() string {
	if m := r.Ending.Member; m != nil {
		return m.Rule
	}
	return ""
}

// OwnLimitS is its owner's time limit, s; 0 = none, or not known.
func (r *Run) OwnLimitS() float64 { return max(0, r.Ending.LimitS-r.Ending.LentS) }

// doneS is how much solo work the run was believed to do, s; 0 = not known.
func (r *Run) doneS() float64 {
	e := &r.Ending
	if !e.known() {
		return 0
	}
	return e.DoneS + max(0, r.DurationS()-e.At.Sub(e.Start).Seconds())/max(e.Slow, 1)
}

// Shared reports whether any other job was on the job's GPU. It isn't known of a run that was not judged.
func (r *Run) Shared() bool { return len(r.CoRunners) > 0 }

// With lists the jobs that were on the GPU for some of the run, by ref.
func (r *Run) With() []string {
	var refs []string
	for i := range r.CoRunners {
		refs = append(refs, r.CoRunners[i].Ref)
	}
	return refs
}

// Identity is the application that ran, and its owner.
func (r *Run) Identity() rlcore.Identity { return rlcore.Identity{App: r.App, Owner: r.User} }

// CoRunner is another job that was on the GPU for a part of a run.
type CoRunner struct {
	Ref     string          `json:"ref"`
	App     string          `json:"app,omitempty"`
	Owner   string          `json:"owner,omitempty"`  // its user
	Profile *rlcore.Profile `json:"-"`                // nil = nothing is known of the application
	FromS   float64         `json:"from_s,omitempty"` // when it was there, s from the run's start
	ToS     float64         `json:"to_s,omitempty"`
	AtEnd   bool            `json:"at_end,omitempty"`  // it was still there when the run ended
	Faulted bool            `json:"faulted,omitempty"` // one of its processes broke the MPS server that they shared
	// How is as far as Slurm, or what was concluded of its run, says how it ended.
	How job.Description `json:"how,omitzero"`
}

// brokenBy is the co-runner whose process broke the MPS server that they shared; nil = none is known.
func (r *Run) brokenBy() *CoRunner {
	for i := range r.CoRunners {
		if c := &r.CoRunners[i]; c.Faulted {
			return c
		}
	}
	return nil
}

// identity is its application.
func (c *CoRunner) identity() rlcore.Identity { return rlcore.Identity{App: c.App, Owner: c.Owner} }

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

// CardMemMiB is the memory of its GPU, MiB; 0 = not known.
func (r *Run) CardMemMiB() float64 {
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
	case o == nil || !r.Shared():
		return took, Measured
	case o.Suspect != "":
		return 0, Lost
	case o.LengthS > 0:
		return o.LengthS, ByProfile
	case o.Slowdown > 0 && o.SoloS > 0:
		return o.SoloS, ByProfile
	case r.Predicted() >= 1:
		return took / r.Predicted(), BySlowdown // it was cut short
	}
	// Nothing was predicted: it is assumed to have done the least, one of n sharers' part.
	return took / float64(1+len(r.CoRunners)), BySlowdown
}

// Decision is what was decided of a run before it started; in mode shadow it was intended, the last one is the nearest
// to what would have happened.
type Decision struct {
	Group     int64   `json:"group,omitempty"` // its number; 0 = it was intended
	Policy    string  `json:"policy,omitempty"`
	Rule      string  `json:"rule,omitempty"`      // the site's by which the job was adopted
	Predicted float64 `json:"predicted,omitempty"` // slowdown; 0 = none was
	Beside    bool    `json:"beside,omitempty"`    // another job was to be on the GPU with it
}

// VetoCount is how often the guard gave one reason.
type VetoCount struct {
	Reason string `json:"reason"`
	Jobs   int    `json:"jobs"`
	Looks  int    `json:"polls,omitempty"` // polls, summed over the jobs: each poll counts once a job
	// WaitH is what it cost, hours: how long jobs waited that were the first that it alone kept from a GPU with room that
	// got none. A job counts under each such reason, so reasons don't add up.
	WaitH float64 `json:"waited_h"`
}
