// Package usage sums up what GPUs were used for in some time: by user, account, partition, application, node or job,
// the GPU-hours that jobs held, how much of that they computed or did nothing, and what sharing saved or cost them.
// A Store keeps the footprints of runs as rows and sums them up. What can't be known is absent, never 0.
package usage

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// By is what runs are summed up by.
type By string

// The ways to sum up.
const (
	User        By = "user"
	Account     By = "account"
	Partition   By = "partition"
	Application By = "application"
	Node        By = "node"
	Job         By = "job"
)

// Ways lists them.
func Ways() []By { return []By{User, Account, Partition, Application, Node, Job} }

// ErrBy marks a way to sum up that there isn't.
var ErrBy = errors.New("it takes user, account, partition, application, node or job")

// ParseBy reads a way to sum up.
func ParseBy(text string) (By, error) {
	if by := By(text); slices.Contains(Ways(), by) {
		return by, nil
	}
	return "", fmt.Errorf("%.40q: %w", text, ErrBy)
}

// Query selects and groups runs.
type Query struct {
	From, To time.Time // runs count by the part of their time in [From, To)
	By       By
	// Users and Accounts restrict it to theirs; nil = all.
	Users, Accounts []string
	// Weights are by how much a partition charges; nil = not wanted.
	Weights map[string]Weights
}

// Weights are a partition's TRESBillingWeights of GPUs: for a whole one, and for each of 100 shares of one.
type Weights struct{ GPU, Share float64 }

// Line is the sum over some runs. Hours are GPU-hours; nil = not known of any of them.
type Line struct {
	Name string `json:"name"`
	Runs int    `json:"runs"` // that were on a GPU in this time
	// Held counts shares of a GPU as parts of one, as accounting does. Unheld are runs for which it
	// isn't known what they held: they count nowhere else.
	Held   float64 `json:"held_h"`
	Unheld int     `json:"runs_not_known,omitempty"`
	// Computed is utilisation over time; ComputedOf is of how many hours held it is known, and ComputedSplit how
	// much of it is a part, by profiles, of what several jobs on one GPU did together.
	Computed      *float64 `json:"computed_h,omitempty"`
	ComputedOf    float64  `json:"computed_known_of_h"`
	ComputedSplit float64  `json:"computed_by_profile_h,omitempty"`
	// MemoryMean and MemoryPeak are parts of the cards' memory.
	MemoryMean *float64 `json:"memory_mean,omitempty"`
	MemoryPeak *float64 `json:"memory_peak,omitempty"`
	// Idle: nothing was computed, or for less than 1 % of the time, for longer than ten minutes.
	Idle   *float64 `json:"idle_h,omitempty"`
	IdleOf float64  `json:"idle_known_of_h"`
	Shared *float64 `json:"shared_h,omitempty"` // with another job on the GPU
	// WaitSaved is by how much less runs waited than on plain Slurm, and TimeLost by how much longer they ran for
	// having shared, h: jobs', not GPUs'.
	WaitSaved *float64             `json:"wait_saved_h,omitempty"`
	TimeLost  *float64             `json:"time_lost_h,omitempty"`
	Harm      map[history.Harm]int `json:"harm,omitempty"` // runs by kind; nil = none is judged
	Energy    *float64             `json:"energy_kwh,omitempty"`
	EnergyOf  float64              `json:"energy_known_of_h"`
	Charged   *float64             `json:"charged_h,omitempty"` // GPU-hours as billing weighs them
}

// Report is what GPUs were used for.
type Report struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	By    By        `json:"by"`
	Total Line      `json:"total"`
	Lines []Line    `json:"lines"`                // those that held most first
	More  int       `json:"more_lines,omitempty"` // that were left out
	// Owners are the users of the jobs, if lines are jobs.
	Owners map[string]string `json:"owners,omitempty"`
	// Notes say how figures came about, and what is missing.
	Notes []string `json:"notes"`
}

// hours of a sum of hundredths of a GPU by ms, and of ms.
const (
	gpuHour = 3600 * 1000 * job.Units
	hour    = 3600 * 1000
)

// known returns a sum in a unit; nil where it is known of nothing.
func known(sum, of, unit float64) *float64 {
	if !(of > 0) {
		return nil
	}
	v := sum / unit
	return &v
}

func (l *line) line() Line {
	s := &l.sums
	out := Line{
		Name: l.name, Runs: int(s[runs]), Held: s[held] / gpuHour, Unheld: int(s[unheld]),
		Computed: known(s[computed], s[computedOf], gpuHour), ComputedOf: s[computedOf] / gpuHour, ComputedSplit: s[split] / gpuHour,
		MemoryMean: known(s[memory], s[memoryOf], s[memoryOf]), MemoryPeak: known(s[peak], s[memoryOf], 1),
		Idle: known(s[idle], s[idleOf], gpuHour), IdleOf: s[idleOf] / gpuHour, Shared: known(s[sharing], s[sharingOf], gpuHour),
		WaitSaved: known(s[saved], s[savedOf], hour), TimeLost: known(s[lost], s[lostOf], hour),
		Energy: known(s[energy], s[energyOf], 3.6e6), EnergyOf: s[energyOf] / gpuHour,
	}
	if l.charges {
		out.Charged = known(l.charged, 1, 3600)
	}
	if s[lostOf] > 0 {
		if out.Harm = l.harm; out.Harm == nil {
			out.Harm = map[history.Harm]int{}
		}
	}
	return out
}

// notes say how the figures came about.
func (t *tally) notes() []string {
	notes := []string{
		"Held: whole GPUs, and shares as parts of one, by the time that jobs had them in this period. Computed: the part of that time in which their kernels ran; of jobs that share a GPU, their own part of its processors.",
	}
	all := t.total.line()
	if all.ComputedSplit > 0 {
		notes = append(notes, fmt.Sprintf("%.1f of the hours computed are estimated by the jobs' profiles: several jobs ran on one GPU that doesn't report its processes separately.", all.ComputedSplit))
	}
	if missing := all.Held - all.ComputedOf; missing > 0.005*all.Held && all.Held > 0 {
		notes = append(notes, fmt.Sprintf("Of %.1f hours held (%.0f %%) it isn't known what was computed: the jobs still run, or their nodes sent no record.", missing, 100*missing/all.Held))
	}
	if all.Unheld > 0 {
		notes = append(notes, fmt.Sprintf("Of %d runs it isn't known how much of a GPU they held; they are left out.", all.Unheld))
	}
	notes = append(notes, "Idle: under 1 % for longer than ten minutes. Waiting saved and time lost are jobs' hours against plain Slurm's schedule, which the bridge keeps while it is active.")
	if t.query.Weights != nil {
		notes = append(notes, "Charged: GPU-hours as TRESBillingWeights have them, a share against a whole GPU of its partition.")
	}
	return notes
}

// HarmText is harm in a few words, "" = not known.
func (l *Line) HarmText() string {
	if l.Harm == nil {
		return ""
	}
	var parts []string
	for _, kind := range history.Harms() {
		if n := l.Harm[kind]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, kind))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
