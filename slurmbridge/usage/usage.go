// Package usage sums up what GPUs were used for in some time: by user, account, partition, application, node or job,
// the GPU-hours that jobs held, how much of that they computed or did nothing, and what sharing saved or cost them.
// It reads nothing itself: a Table is a pure function of footprints. What can't be known is absent, never 0.
package usage

import (
	"cmp"
	"errors"
	"fmt"
	"math"
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

func (by By) of(f *history.Footprint) string {
	switch by {
	case Account:
		return f.Account
	case Partition:
		return f.Partition
	case Application:
		return f.App
	case Node:
		return f.Node
	case Job:
		return f.Ref
	}
	return f.User
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

// charged is how many GPUs are charged for what was held of one; false = the partition charges no GPU.
func (w Weights) charged(f *history.Footprint) (float64, bool) {
	switch {
	case !(w.GPU > 0):
		return 0, false
	case f.Whole:
		return f.GPUs, true
	}
	return f.GPUs * job.Units * w.Share / w.GPU, true
}

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

// tally adds runs up; times are GPU-seconds.
type tally struct {
	runs, unheld                 int
	held                         float64
	computed, computedOf, split  float64
	memory, memoryOf, memoryPeak float64
	idle, idleOf                 float64
	shared, sharedOf             float64
	saved, lost                  float64
	timed, judged                int
	harm                         map[history.Harm]int
	energy, energyOf             float64
	charged                      float64
	chargedRuns                  int
}

// Table sums up footprints, in any order.
type Table struct {
	query Query
	lines map[string]*tally
	all   tally
	jobs  map[string]string // by job: its user
	// suspects are the runs that failed, perhaps for having shared, and cleared the jobs that failed alone, too.
	suspects []suspect
	cleared  map[string]bool
}

type suspect struct {
	ref, name string
	kind      history.Harm
}

// New returns an empty table.
func New(q Query) *Table {
	return &Table{query: q, lines: map[string]*tally{}, jobs: map[string]string{}, cleared: map[string]bool{}}
}

// Add counts runs.
func (t *Table) Add(list []history.Footprint) {
	for i := range list {
		t.add(&list[i])
	}
}

func (t *Table) add(f *history.Footprint) {
	q := &t.query
	if q.Users != nil && !slices.Contains(q.Users, f.User) || q.Accounts != nil && !slices.Contains(q.Accounts, f.Account) {
		return
	}
	took := f.End.Sub(f.Start)
	from, to := f.Start, f.End
	if from.Before(q.From) {
		from = q.From
	}
	if to.After(q.To) {
		to = q.To
	}
	if !(took > 0) || !to.After(from) {
		return
	}
	name := q.By.of(f)
	line := t.lines[name]
	if line == nil {
		line = &tally{}
		t.lines[name] = line
	}
	if q.By == Job {
		t.jobs[name] = f.User
	}
	part := float64(to.Sub(from)) / float64(took)
	ended := !f.End.Before(q.From) && f.End.Before(q.To)
	if ended && f.Cleared {
		t.cleared[f.Ref] = true
	}
	if ended && f.Suspect && len(f.Harm) > 0 {
		t.suspects = append(t.suspects, suspect{f.Ref, name, f.Harm[0]})
	}
	for _, one := range []*tally{line, &t.all} {
		one.add(f, part, ended, q.Weights)
	}
}

func (t *tally) add(f *history.Footprint, part float64, ended bool, weights map[string]Weights) {
	t.runs++
	if !(f.GPUs > 0) {
		t.unheld++
		return
	}
	took := f.End.Sub(f.Start).Seconds()
	t.held += f.GPUs * took * part
	if w, ok := weights[f.Partition]; ok {
		if gpus, ok := w.charged(f); ok {
			t.charged += gpus * took * part
			t.chargedRuns++
		}
	}
	if u := f.Use; u != nil {
		t.use(f, u, part, took)
	}
	if f.Judged {
		t.judged++
		t.lost += f.LostS * part
		if ended {
			for _, kind := range f.Harm {
				t.count(kind, 1)
			}
		}
	}
	if f.Timed {
		t.timed++
		t.saved += f.SavedS * part
	}
}

// use adds what a run did with its GPUs.
func (t *tally) use(f *history.Footprint, u *history.Use, part, took float64) {
	cards := max(1, f.GPUs)
	if u.KnownS > 0 {
		t.computedOf += f.GPUs * u.KnownS * part
		t.computed += cards * u.ComputedS * part
		t.split += cards * u.SplitS * part
	}
	if u.IdleKnownS > 0 {
		t.idleOf += f.GPUs * u.IdleKnownS * part
		t.idle += f.GPUs * u.IdleS * part
	}
	t.sharedOf += f.GPUs * took * part
	t.shared += f.GPUs * u.SharedS * part
	if u.CardMiB > 0 {
		t.memoryOf += f.GPUs * took * part
		t.memory += f.GPUs * took * part * u.MeanMiB / u.CardMiB
		t.memoryPeak = max(t.memoryPeak, u.PeakMiB/u.CardMiB)
	}
	if u.EnergyJ > 0 {
		t.energyOf += f.GPUs * took * part
		t.energy += u.EnergyJ * part
	}
}

func (t *tally) count(kind history.Harm, n int) {
	if t.harm == nil {
		t.harm = map[history.Harm]int{}
	}
	if t.harm[kind] += n; t.harm[kind] == 0 {
		delete(t.harm, kind)
	}
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

// Report sums up what was added.
func (t *Table) Report() *Report {
	for _, s := range t.suspects {
		if !t.cleared[s.ref] {
			continue
		}
		// It failed alone, too: having shared was not the reason.
		for _, one := range []*tally{t.lines[s.name], &t.all} {
			one.count(s.kind, -1)
		}
	}
	t.suspects = nil
	r := &Report{From: t.query.From, To: t.query.To, By: t.query.By, Total: t.all.line("all"), Lines: make([]Line, 0, len(t.lines))}
	for name, one := range t.lines {
		r.Lines = append(r.Lines, one.line(name))
	}
	slices.SortFunc(r.Lines, func(a, b Line) int { return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(a.Name, b.Name)) })
	if t.query.By == Job {
		r.Owners = t.jobs
	}
	r.Notes = t.notes()
	return r
}

// known returns a sum of GPU-seconds in hours; nil where it is known of nothing.
func known(sum, of float64) *float64 {
	if !(of > 0) || math.IsNaN(sum) || math.IsInf(sum, 0) {
		return nil
	}
	v := sum / 3600
	return &v
}

func (t *tally) line(name string) Line {
	l := Line{
		Name: name, Runs: t.runs, Held: t.held / 3600, Unheld: t.unheld,
		Computed: known(t.computed, t.computedOf), ComputedOf: t.computedOf / 3600, ComputedSplit: t.split / 3600,
		Idle: known(t.idle, t.idleOf), IdleOf: t.idleOf / 3600, Shared: known(t.shared, t.sharedOf),
		WaitSaved: known(t.saved, float64(t.timed)), TimeLost: known(t.lost, float64(t.judged)),
		EnergyOf: t.energyOf / 3600, Charged: known(t.charged, float64(t.chargedRuns)),
	}
	if t.memoryOf > 0 {
		mean, peak := t.memory/t.memoryOf, t.memoryPeak
		l.MemoryMean, l.MemoryPeak = &mean, &peak
	}
	if t.energyOf > 0 {
		kwh := t.energy / 3.6e6
		l.Energy = &kwh
	}
	if t.judged > 0 {
		if l.Harm = t.harm; l.Harm == nil {
			l.Harm = map[history.Harm]int{}
		}
	}
	return l
}

// notes say how the figures came about.
func (t *Table) notes() []string {
	notes := []string{
		"Held: whole GPUs, and shares as parts of one, by the time that jobs had them in this period. Computed: the part of that time in which their kernels ran; of jobs that share a GPU, their own part of its processors.",
	}
	if t.all.split > 0 {
		notes = append(notes, fmt.Sprintf("%.1f of the hours computed are estimated by the jobs' profiles: several jobs ran on one GPU that doesn't report its processes separately.", t.all.split/3600))
	}
	if missing := t.all.held - t.all.computedOf; missing > 0.005*t.all.held && t.all.held > 0 {
		notes = append(notes, fmt.Sprintf("Of %.1f hours held (%.0f %%) it isn't known what was computed: the jobs still run, or their nodes sent no record.", missing/3600, 100*missing/t.all.held))
	}
	if t.all.unheld > 0 {
		notes = append(notes, fmt.Sprintf("Of %d runs it isn't known how much of a GPU they held; they are left out.", t.all.unheld))
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
