package models

import (
	"cmp"
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

// Job is one run of the mix: SubmitS since Mix.From, and how long it takes alone, s.
type Job struct {
	rlcore.Job
	SoloS float64
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
