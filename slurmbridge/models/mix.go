package models

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Rules are the settings that decisions keep to.
type Rules struct {
	// Objective is what networks learn and are judged by; "" = the turnaround.
	Objective   policy.Objective
	Window      int
	MaxGroup    int
	MemMargin   float64
	MaxDelayS   float64
	MaxSlowdown float64
	Grace       float64
	Trust       float64
}

// aim is the objective.
func (r *Rules) aim() policy.Objective { return cmp.Or(r.Objective, policy.Turnaround) }

// guard makes a guard that keeps to the rules.
func (r *Rules) guard(p rlcore.Predictor) *rlcore.Guard {
	return &rlcore.Guard{
		Predictor: p, MemMargin: r.MemMargin, MaxMembers: r.MaxGroup,
		MaxDelayS: r.MaxDelayS, MaxSlowdown: r.MaxSlowdown, Grace: r.Grace, Trust: r.Trust,
	}
}

// Job is one run of the mix.
type Job struct {
	User    string
	Profile int     // in Mix.Profiles; -1 = nothing is known of its application
	ArriveS float64 // since Mix.From
	SoloS   float64 // how long it takes alone
	// The owner's terms.
	NoShare     bool
	MaxSlowdown float64
	Array       string
	ArrayOnly   bool
}

// Slice is some GPUs of one kind with the jobs that really ran on them, in the
// order of their arrival: a small cluster as busy as the site is.
type Slice struct {
	Card rlcore.GPUSpec
	GPUs int
	Jobs []Job
	// Split is the first job that training doesn't see.
	Split int
}

// Mix is what a site ran in some days, with what was believed of its applications
// and of slowdowns at their end.
type Mix struct {
	From     time.Time
	Split    time.Time
	To       time.Time
	Rules    Rules
	Slices   []Slice
	Profiles []*rlcore.Profile
	Outcomes []history.Outcome // that teach something
	Guessed  int
	LeftOut  map[string]int
}

// Sizes counts the runs before and after the split.
func (m *Mix) Sizes() (learn, held int) {
	for i := range m.Slices {
		learn += m.Slices[i].Split
		held += len(m.Slices[i].Jobs) - m.Slices[i].Split
	}
	return learn, held
}

// validate checks that a mix can be played.
func (m *Mix) validate() error {
	if m.Rules.Window < 1 || m.Rules.Window > rlcore.MaxWindow {
		return fmt.Errorf("a window of %d, not 1 to %d", m.Rules.Window, rlcore.MaxWindow)
	}
	for _, p := range m.Profiles {
		if p == nil {
			return errors.New("a profile is missing")
		}
		if err := p.Validate(); err != nil {
			return err
		}
	}
	positive := func(v float64) bool { return v > 0 && !math.IsInf(v, 0) }
	for i := range m.Slices {
		s := &m.Slices[i]
		if s.GPUs < 1 || s.GPUs > sliceGPUs || !positive(s.Card.MemMiB) || s.Split < 0 || s.Split > len(s.Jobs) {
			return fmt.Errorf("slice %d: %d GPUs of %v MiB, split at %d of %d", i, s.GPUs, s.Card.MemMiB, s.Split, len(s.Jobs))
		}
		last := math.Inf(-1)
		for k := range s.Jobs {
			j := &s.Jobs[k]
			if !positive(j.SoloS) || !(j.ArriveS >= last) || math.IsInf(j.ArriveS, 0) || j.Profile < -1 || j.Profile >= len(m.Profiles) {
				return fmt.Errorf("slice %d, job %d can't be", i, k)
			}
			last = j.ArriveS
		}
	}
	return nil
}
