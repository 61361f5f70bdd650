package history

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Harm is a kind of harm: what sharing, or waiting for it, cost a job against plain Slurm. The values are
// labels of a metric.
type Harm string

// The kinds of harm.
const (
	HarmTimeout  Harm = "timeout"  // ended at its time limit; alone it would have ended before
	HarmDeadline Harm = "deadline" // ended at its owner's --deadline; alone it would have ended before
	HarmOOM      Harm = "oom"      // failed next to others, and well alone: out of memory most of all
	HarmContract Harm = "contract" // ran slower than its contract allows
	HarmLate     Harm = "late"     // ended well after plain Slurm would have ended it
	HarmHeld     Harm = "held"     // kept waiting by the bridge for longer than it may
	HarmLost     Harm = "lost"     // gone from the queue while the bridge had changed it, unknown to Slurm
)

// Harms are all kinds, the gravest first.
func Harms() []Harm {
	return []Harm{HarmLost, HarmOOM, HarmTimeout, HarmDeadline, HarmHeld, HarmLate, HarmContract}
}

// lateBy is by what part of its own solo time a job must end after its plain end to be late.
const lateBy = 0.1

// Harm lists the kinds of harm that the run came to, the gravest first; nil = none, or it isn't judged. A job that is
// lost has no run.
func (r *Run) Harm() (out []Harm) {
	o := r.Outcome
	if o == nil {
		return nil
	}
	suspect := o.Suspect != "" && !o.Excused
	late, _ := r.Late()
	came := map[Harm]bool{
		HarmTimeout:  suspect && r.State() == "TIMEOUT",
		HarmDeadline: suspect && r.State() == "DEADLINE",
		HarmOOM:      suspect && !ranOutOfTime(r.State()),
		HarmHeld:     o.HeldS > 0,
		HarmLate:     late > lateBy,
		HarmContract: o.Broken,
	}
	for _, kind := range Harms() {
		if came[kind] {
			out = append(out, kind)
		}
	}
	return out
}

// Late returns by how many of its own solo times a run that came to its end ended after its plain end, 0
// where it ended before; false: the plain end isn't known, or the run has none or isn't judged.
func (r *Run) Late() (ratio float64, ok bool) {
	plainEnd := r.Ending.PlainEnd
	if r.Outcome == nil || plainEnd.IsZero() || !ranToEnd(r.State()) {
		return 0, false
	}
	solo := r.DurationS()
	if r.Shared() {
		solo = cmp.Or(r.Outcome.LengthS, r.Outcome.SoloS)
	}
	if !(solo > 0) {
		return 0, false
	}
	return max(0, r.End.Sub(plainEnd).Seconds()/solo), true
}

// Turn is how runs ended against plain Slurm.
type Turn struct {
	Jobs  int     `json:"jobs"`  // whose plain end is known
	Late  int     `json:"late"`  // that ended after it by more than a tenth of their solo time
	Worst float64 `json:"worst"` // the most that one ended after it, in its own solo times
	Of    string  `json:"of,omitempty"`
	// Timed counts the jobs with a known submission; MeanS is the mean time from there to the end,
	// s, and PlainS what it would have been on plain Slurm.
	Timed  int     `json:"timed"`
	MeanS  float64 `json:"mean_turnaround_s"`
	PlainS float64 `json:"plain_turnaround_s"`
}

// Turnaround returns the time from a run's submission to its end, and to the end that it would have had on
// plain Slurm, s; false: one of them isn't known.
func (r *Run) Turnaround() (s, plain float64, ok bool) {
	if _, ok := r.Late(); !ok || r.Submit.IsZero() || r.Submit.After(r.Start) {
		return 0, 0, false
	}
	return r.End.Sub(r.Submit).Seconds(), r.Ending.PlainEnd.Sub(r.Submit).Seconds(), true
}

// CountTurn counts how runs ended against plain Slurm.
func CountTurn(runs []Run) Turn {
	var t Turn
	for i := range runs {
		r := &runs[i]
		ratio, ok := r.Late()
		if !ok {
			continue
		}
		if t.Jobs++; ratio > lateBy {
			t.Late++
		}
		if ratio > t.Worst {
			t.Worst, t.Of = ratio, r.Ref
		}
		if s, plain, ok := r.Turnaround(); ok {
			t.Timed++
			t.MeanS += (s - t.MeanS) / float64(t.Timed)
			t.PlainS += (plain - t.PlainS) / float64(t.Timed)
		}
	}
	return t
}

// Saved is the part of plain Slurm's mean turnaround that was saved, below 0 where it was longer.
func (t Turn) Saved() float64 {
	if !(t.PlainS > 0) {
		return 0
	}
	return 1 - t.MeanS/t.PlainS
}

// String says it in words.
func (t Turn) String() string {
	if t.Jobs == 0 {
		return "not known"
	}
	s := ""
	if t.Timed > 0 {
		change := "saved"
		if t.Saved() < 0 {
			change = "more"
		}
		s = fmt.Sprintf("%s from submission to end on average, about %s on plain Slurm, %.0f %% %s; ", job.Span(t.MeanS/3600),
			job.Span(t.PlainS/3600), 100*math.Abs(t.Saved()), change)
	}
	s += fmt.Sprintf("%d of %s ended later than on plain Slurm by more than a tenth of their time alone", t.Late,
		job.Count(t.Jobs, "job"))
	if t.Worst >= 0.005 {
		s += fmt.Sprintf(", at worst by %.2f times it (job %s)", t.Worst, t.Of)
	}
	return s
}

// Harmed counts the jobs that came to harm.
type Harmed struct {
	Jobs  int          `json:"jobs"`
	Kinds map[Harm]int `json:"kinds"` // a job may count for several
}

// CountHarm counts the harm of runs. Jobs that were lost have no run.
func CountHarm(runs []Run) Harmed {
	h := Harmed{Kinds: map[Harm]int{}}
	for i := range runs {
		kinds := runs[i].Harm()
		if len(kinds) > 0 {
			h.Jobs++
		}
		for _, k := range kinds {
			h.Kinds[k]++
		}
	}
	return h
}

// String is the count in words, "none" or "2 jobs (1 timeout, 2 late)".
func (h Harmed) String() string {
	if h.Jobs == 0 {
		return "none"
	}
	return fmt.Sprintf("%s (%s)", job.Count(h.Jobs, "job"), h.List())
}

// List is the kinds with their numbers, "1 timeout, 2 late".
func (h Harmed) List() string {
	var kinds []string
	for _, k := range Harms() {
		if n := h.Kinds[k]; n > 0 {
			kinds = append(kinds, fmt.Sprintf("%d %s", n, k))
		}
	}
	return strings.Join(kinds, ", ")
}
