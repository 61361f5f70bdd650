package history

import (
	"context"
	"iter"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// Outcome is what was concluded from one run: how it ended, what it says of the jobs that it shared its GPU
// with, and what the bridge made of that. The interference model is what all outcomes taught.
type Outcome struct {
	Run     int64  `json:"run"` // the number of its record
	Ref     string `json:"ref"`
	User    string `json:"user"`
	Account string `json:"account,omitempty"`
	App     string `json:"app,omitempty"`
	Node    string `json:"node"`
	// Submit is zero where no poll saw the job run.
	Submit time.Time `json:"submit,omitzero"`
	Start  time.Time `json:"start"`
	End    time.Time `json:"end"`
	// State is Slurm's word for how the job ended, "" = Slurm had forgotten it.
	State string `json:"state,omitempty"`
	// With lists the jobs that were on the GPU for some of the run, by ref, and Others their applications, in that order.
	With   []string          `json:"with,omitempty"`
	Others []rlcore.Identity `json:"others,omitempty"`
	// SoloS is how long the application takes alone, 0 = not known. Slowdown is the run's time over that; 0 = it says
	// nothing: the record isn't complete, nothing is known, or the application's runs differ too much in length. Then it
	// is only given where the contract was broken, over the time of a long run.
	SoloS    float64 `json:"solo_s,omitempty"`
	Slowdown float64 `json:"slowdown,omitempty"`
	// BelievedS is how much solo work a run that shared did as predicted, s, LengthS how long it would have taken alone by
	// that and by its application's other runs, and LimitS its owner's time limit, s; 0 = not known, or none.
	BelievedS float64 `json:"believed_s,omitempty"`
	LengthS   float64 `json:"length_s,omitempty"`
	LimitS    float64 `json:"limit_s,omitempty"`
	// Predicted is the slowdown predicted when its group was decided, 0 = none was.
	Predicted float64 `json:"predicted,omitempty"`
	// Contract is the slowdown its owner, or the site, allowed; 0 = any. Broken says that the run took longer than even a
	// long run of the application's may (rlcore.Profile.LongS).
	Contract float64 `json:"contract,omitempty"`
	Broken   bool    `json:"broken,omitempty"`
	// WithoutMPS: it shared its GPU without MPS, so that its slowdown says nothing of its co-runners.
	WithoutMPS bool `json:"without_mps,omitempty"`
	// Rule is the site's by which the job was adopted and put into a group, "" = it wasn't.
	Rule string `json:"rule,omitempty"`
	// PlainEnd is when plain Slurm would have ended the job, zero = not known. In shadow mode plain Slurm
	// did end it, and there is nothing to compare.
	PlainEnd time.Time `json:"plain_end,omitzero"`
	// LentS is what was added to its time limit because sharing had slowed it, s.
	LentS float64 `json:"lent_s,omitempty"`
	// HeldS is how much longer the bridge kept it waiting than allowed, s: next to an idle GPU for
	// longer than max_delay, or behind a gate after its lease.
	HeldS float64 `json:"held_s,omitempty"`
	// Learned: the run became part of its application's profile. Cut: it was ended before its own end, by its owner, say,
	// so that its length is known from below only.
	Learned bool `json:"learned,omitempty"`
	Cut     bool `json:"cut,omitempty"`
	// Lesson is what it teaches of sharing, nil = nothing.
	Lesson *interference.Lesson `json:"lesson,omitempty"`
	Suspicion
	// Again: it was requeued to run alone.
	Again bool `json:"again,omitempty"`
	// MPS: it had a part of a GPU's shares, and computed through MPS. Unserved: it failed soon at its application's first
	// such run. NoMPS: the run after that, without MPS, ended well: the application stays alone.
	MPS      bool `json:"mps,omitempty"`
	Unserved bool `json:"unserved,omitempty"`
	NoMPS    bool `json:"no_mps,omitempty"`
	// TriedMiB is the device memory that it was to make do with, MiB, and failed; 0 = it wasn't, or did not.
	TriedMiB int64 `json:"tried_mib,omitempty"`
	// Cleared: it failed alone, too, so sharing was not the reason. Excused says so of the run before, which failed while
	// sharing.
	Cleared bool `json:"cleared,omitempty"`
	Excused bool `json:"excused,omitempty"`
}

// Suspicion is why sharing may be the reason that a run ended badly.
type Suspicion struct {
	// Suspect says it in words; "" = sharing isn't the reason, or the run did not fail or run out of time.
	Suspect string `json:"suspect,omitempty"`
	// Ours: for sharing's reason, not the job's own: the MPS server failed, or memory or time were short.
	Ours bool `json:"ours,omitempty"`
	// Fault: it failed with the MPS server that it shared, and its own process may have broken it.
	Fault bool `json:"fault,omitempty"`
	// Blamed are the applications that were there when it failed, or while its time ran out.
	Blamed []rlcore.Identity `json:"blamed,omitempty"`
}

// Shared reports whether any other job was on the job's GPU.
func (o *Outcome) Shared() bool { return len(o.With) > 0 }

// Told is the outcome of a run, with what the run held and used.
type Told struct {
	Outcome
	Used Footprint `json:"used,omitzero"`
}

// Told joins the run's outcome and footprint for its owner. The run must have been judged.
func (r *Run) Told() Told { return Told{*r.Outcome, r.Footprint()} }

// Outcomes are the outcomes of those of the runs that have one.
func Outcomes(runs []Run) []*Outcome {
	var out []*Outcome
	for i := range runs {
		if runs[i].Outcome != nil {
			out = append(out, runs[i].Outcome)
		}
	}
	return out
}

// Runs are the runs that have ended, and their outcomes.
type Runs interface {
	// Unjudged returns runs without an outcome, oldest first, some at a time.
	Unjudged(ctx context.Context) ([]Run, error)
	// Store writes an outcome down. Where it is Learned the run becomes part of its application's profile.
	Store(ctx context.Context, o *Outcome) error
	// Runs are the runs that a filter selects.
	Runs(ctx context.Context, f Filter) iter.Seq2[Run, error]
}

// Beliefs predict slowdowns, and learn.
type Beliefs interface {
	rlcore.Predictor
	Lesson(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdown, believed float64) (interference.Lesson, bool)
	Take(l *interference.Lesson)
	Doubt(victim rlcore.Identity, others []rlcore.Identity)
	Reassure(victim rlcore.Identity, others []rlcore.Identity)
	Forbid(a, b rlcore.Identity)
	Forgive(a, b rlcore.Identity)
	KeepAlone(of rlcore.Identity, at time.Time)
	LetShare(of rlcore.Identity, at time.Time)
}

// Teach lets beliefs learn from an outcome.
func (o *Outcome) Teach(b Beliefs) {
	if o.Lesson != nil {
		b.Take(o.Lesson)
	}
	switch {
	case o.Broken && !o.WithoutMPS:
		b.Doubt(o.identity(), o.Others)
	case o.Lesson != nil && o.Contract > 0:
		b.Reassure(o.identity(), o.Others)
	}
	for _, other := range o.Blamed {
		if !o.Excused {
			b.Forbid(o.identity(), other)
		}
	}
	// Each of the jobs that may have broken an MPS server shows first, after a day, that it ends well alone.
	switch {
	case o.Fault:
		b.KeepAlone(o.identity(), o.End)
	case !o.Shared() && o.State == "COMPLETED":
		b.LetShare(o.identity(), o.End)
	}
}

// identity is the application that ran.
func (o *Outcome) identity() rlcore.Identity { return rlcore.Identity{App: o.App, Owner: o.User} }

// Forgive takes back what a failed run was blamed on, before Excused says so.
func (o *Outcome) Forgive(b Beliefs) {
	for _, other := range o.Blamed {
		b.Forgive(o.identity(), other)
	}
}
