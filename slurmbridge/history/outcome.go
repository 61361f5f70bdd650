package history

import (
	"context"
	"iter"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// Outcome is what was concluded from one run: what it says of the jobs that it shared its GPU with, and what the bridge
// made of that.
type Outcome struct {
	// SoloS is how long the application takes alone, 0 = not known. Slowdown is the run's time over that; 0 = it says
	// nothing: the record isn't complete, nothing is known, or the application's runs differ too much in length. Then it
	// is only given where the contract was broken, over the time of a long run.
	SoloS    float64 `json:"solo_s,omitempty"`
	Slowdown float64 `json:"slowdown,omitempty"`
	// BelievedS is how much solo work a run that shared did as predicted, s, and LengthS how long it would have taken
	// alone by that and by its application's other runs; 0 = not known.
	BelievedS float64 `json:"believed_s,omitempty"`
	LengthS   float64 `json:"length_s,omitempty"`
	// Contract is the slowdown its owner, or the site, allowed; 0 = any. Broken says that the run took longer than even a
	// long run of the application's may (rlcore.Profile.LongS).
	Contract float64 `json:"contract,omitempty"`
	Broken   bool    `json:"broken,omitempty"`
	// HeldS is how much longer the bridge kept it waiting than allowed, s: next to an idle GPU for
	// longer than max_delay, or behind a gate after its lease.
	HeldS float64 `json:"held_s,omitempty"`
	// Learned: the run became part of its application's profile. Cut: it was ended before its own end, by its owner, say,
	// so that its length is known from below only.
	Learned bool `json:"learned,omitempty"`
	Cut     bool `json:"cut,omitempty"`
	// Lessons is what it teaches of sharing, of each company that it had.
	Lessons []interference.Lesson `json:"lessons,omitempty"`
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

// Runs are the runs that have ended, with their outcomes and what these teach.
type Runs interface {
	// Unjudged returns runs without an outcome, oldest first, some at a time.
	Unjudged(ctx context.Context) ([]Run, error)
	// Last returns the last judged run of a job whose record came before the one of that number; nil = there is none.
	Last(ctx context.Context, ref string, before int64) (*Run, error)
	// Store writes at once a run's outcome, what it teaches, and the standing of its application; with it the run before
	// of the job, where that is excused. Where the outcome is Learned the run becomes part of its application's profile.
	Store(ctx context.Context, r *Run, s *interference.Standing, before *Run) error
	// Amend writes a change of an outcome that was stored.
	Amend(ctx context.Context, r *Run) error
	// Recall has a model learn what runs have taught since the given time.
	Recall(ctx context.Context, m *interference.Model, since time.Time) error
	// Runs are the runs that a filter selects.
	Runs(ctx context.Context, f Filter) iter.Seq2[Run, error]
}

// Teach changes the standing of a run's application by the run's outcome.
func (r *Run) Teach(s *interference.Standing) {
	o := r.Outcome
	well, alone := r.State() == "COMPLETED", !r.Shared()
	var others []rlcore.Identity
	for i := range r.CoRunners {
		others = append(others, r.CoRunners[i].identity())
	}
	switch {
	case o.Broken && !r.WithoutMPS:
		s.Doubt(others, r.End)
	case len(o.Lessons) > 0 && o.Contract > 0:
		s.Reassure(others, r.End)
	}
	if o.Broken && r.Rule() != "" && r.End.After(s.Slower) {
		s.Slower = r.End
	}
	for _, other := range o.Blamed {
		s.Accuse(other, r.End)
	}
	// Each of the jobs that may have broken an MPS server shows first, after a day, that it ends well alone.
	switch {
	case o.Fault:
		s.Alone = r.End
	case alone && well:
		s.LetShare(r.End)
	}
	s.NoMPS = s.NoMPS || o.NoMPS
	s.Served = s.Served || o.MPS && well && r.App != ""
	s.TriedMiB = max(s.TriedMiB, float64(o.TriedMiB))
	switch {
	case o.TriedMiB > 0:
	case alone && Failed(r.State()) && r.App != "":
		s.FailsAlone = true
	case alone && well:
		s.FailsAlone = false
	}
}

// Excuse notes that the run's repetition failed alone, too, and removes its blame from the applications beside it.
func (r *Run) Excuse(s *interference.Standing) {
	r.Outcome.Excused = true
	for _, other := range r.Outcome.Blamed {
		s.Forgive(other, r.End)
	}
}
