// Package usage sums up what GPUs were used for in some time: by user, account, partition, application, node or job,
// the GPU-hours that jobs held, how much of that they computed or did nothing, and what sharing saved or cost them.
// It sums up the footprints of runs. What can't be known is absent, never 0.
package usage

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
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

// names are those of the lines in which runs count.
var names = map[By]func(f *history.Footprint) string{
	User:        func(f *history.Footprint) string { return f.User },
	Account:     func(f *history.Footprint) string { return f.Account },
	Partition:   func(f *history.Footprint) string { return f.Partition },
	Application: func(f *history.Footprint) string { return f.App },
	Node:        func(f *history.Footprint) string { return f.Node },
	Job:         func(f *history.Footprint) string { return f.Ref },
}

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
	history.Period // runs count by the part of their time in it
	By             By
	// Limit is how many lines there are at most, the largest; 0 = all.
	Limit int
	// Weights are by how much a partition charges; nil = not wanted.
	Weights map[string]Weights
}

// Weights are a partition's TRESBillingWeights of GPUs: for a whole one, and for each of 100 shares of one.
type Weights struct{ GPU, Share float64 }

// Line is the sum over some runs. Hours are GPU-hours; nil = not known of any of them.
type Line struct {
	Name  string `json:"name"`
	Owner string `json:"owner,omitempty"` // the user, if the line is a job
	Runs  int    `json:"runs"`            // that were on a GPU in this time
	// Held counts shares of a GPU as parts of one, as accounting does. Unheld are runs for which it
	// isn't known what they held: they count nowhere else.
	Held   float64 `json:"held_h"`
	Unheld int     `json:"runs_not_known,omitempty"`
	// Computed is utilisation over time, as far as it isn't more than was held: a job that shares a GPU also computes
	// while its co-runners don't, which is Beyond (nil = nothing). ComputedOf is of how many hours held both are known,
	// and ComputedSplit how much of them is a part, by profiles, of what several jobs on one GPU did together.
	Computed      *float64 `json:"computed_h,omitempty"`
	Beyond        *float64 `json:"computed_beyond_h,omitempty"`
	ComputedOf    float64  `json:"computed_known_of_h"`
	ComputedSplit float64  `json:"computed_by_profile_h,omitempty"`
	// MemoryMean and MemoryPeak are parts of the cards' memory; MemoryOf is of how many hours held they are known.
	MemoryOf   float64  `json:"memory_known_of_h,omitempty"`
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
	More  int       `json:"more_lines,omitempty"` // that were left out; of jobs, their runs
	// Notes say how figures came about, and what is missing.
	Notes []string `json:"notes"`
}

// notes say how the figures came about.
func (r *Report) notes(charged bool) (notes []string) {
	say := func(when bool, format string, args ...any) {
		if when {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	all, u := &r.Total, r.Hours()
	missing := all.Held - all.ComputedOf
	say(true, "Held: whole GPUs, and shares as parts of one, by the time that jobs had them in this period. Computed: "+
		"the part of that time in which their kernels ran; of jobs that share a GPU, their own part of its processors.")
	say(slices.ContainsFunc(r.Lines, func(l Line) bool { return l.Beyond != nil }),
		"Beyond: computed by jobs on top of what they held, while those that share their GPUs didn't compute.")
	say(all.ComputedSplit > 0, "%s of the time computed are estimated by the jobs' profiles: several jobs ran on one GPU "+
		"that doesn't report its processes separately.", u.Of(&all.ComputedSplit))
	say(missing > 0.005*all.Held && all.Held > 0, "Of %s held (%.0f %%) it isn't known what was computed: the jobs still "+
		"run, or their nodes sent no record.", u.Of(&missing), 100*min(1, missing/all.Held))
	say(all.Unheld > 0, "Of %d runs it isn't known how much of a GPU they held; they are left out.", all.Unheld)
	say(true, "Idle: under 1 %% for longer than ten minutes. Waiting saved and time lost are jobs' hours against plain "+
		"Slurm's schedule, which the bridge keeps while it is active.")
	say(charged, "Charged: GPU-hours as TRESBillingWeights have them, a share against a whole GPU of its partition.")
	return notes
}

// HarmText is harm in a few words, "" = not known.
func (l *Line) HarmText() string {
	if l.Harm == nil {
		return ""
	}
	return cmp.Or(history.Harmed{Kinds: l.Harm}.List(), "none")
}

// column is one figure of a line.
type column struct {
	name   string // in CSV
	head   string // in the table; "" = programs alone get it
	kind   kind
	figure func(*Line) *float64
}

// kind is how a figure is told to people.
type kind int8

const (
	count       kind = iota
	fraction         // of 1
	sumOfTime        // h
	sumOfEnergy      // kWh
)

func whole(f func(*Line) float64) func(*Line) *float64 {
	return func(l *Line) *float64 {
		v := f(l)
		return &v
	}
}

// columns are the figures that are shown, in their order.
var columns = []column{
	{"runs", "jobs", count, whole(func(l *Line) float64 { return float64(l.Runs) })},
	{"held_gpu_h", "held", sumOfTime, whole(func(l *Line) float64 { return l.Held })},
	{"computed_gpu_h", "computed", sumOfTime, func(l *Line) *float64 { return l.Computed }},
	{"utilisation", "of held", fraction, (*Line).Utilisation},
	{"computed_beyond_gpu_h", "beyond", sumOfTime, func(l *Line) *float64 { return l.Beyond }},
	{"memory_mean", "memory", fraction, func(l *Line) *float64 { return l.MemoryMean }},
	{"memory_peak", "peak", fraction, func(l *Line) *float64 { return l.MemoryPeak }},
	{"idle_gpu_h", "idle", sumOfTime, func(l *Line) *float64 { return l.Idle }},
	{"shared_gpu_h", "shared", sumOfTime, func(l *Line) *float64 { return l.Shared }},
	{"wait_saved_h", "wait saved", sumOfTime, func(l *Line) *float64 { return l.WaitSaved }},
	{"time_lost_h", "time lost", sumOfTime, func(l *Line) *float64 { return l.TimeLost }},
	{"energy_kwh", "", sumOfEnergy, func(l *Line) *float64 { return l.Energy }},
	{"charged_gpu_h", "charged", sumOfTime, func(l *Line) *float64 { return l.Charged }},
	{"computed_known_of_gpu_h", "", count, whole(func(l *Line) float64 { return l.ComputedOf })},
	{"computed_by_profile_gpu_h", "", count, whole(func(l *Line) float64 { return l.ComputedSplit })},
	{"idle_known_of_gpu_h", "", count, whole(func(l *Line) float64 { return l.IdleOf })},
	{"energy_known_of_gpu_h", "", count, whole(func(l *Line) float64 { return l.EnergyOf })},
	{"runs_not_known", "", count, whole(func(l *Line) float64 { return float64(l.Unheld) })},
}

// Hours is the unit in which the report tells hours: the one that suits its largest line.
func (r *Report) Hours() Unit {
	if len(r.Lines) == 0 {
		return HoursFor(r.Total.Held)
	}
	return HoursFor(r.Lines[0].Held)
}

// KWh is the unit in which the report tells energy.
func (r *Report) KWh() Unit {
	if r.Total.Energy == nil {
		return energies[0]
	}
	return fit(energies, *r.Total.Energy)
}

// title is a column's head with its unit.
func (r *Report) title(c *column) string {
	switch c.kind {
	case sumOfTime:
		return c.head + " " + r.Hours().Name
	case sumOfEnergy:
		return r.KWh().Name
	default:
		return c.head
	}
}

// Utilisation is what was computed of what was held, where it is known; nil = nowhere.
func (l *Line) Utilisation() *float64 {
	if l.Computed == nil || !(l.ComputedOf > 0) {
		return nil
	}
	v := *l.Computed / l.ComputedOf
	return &v
}

// cell is a figure for people, "" where it isn't known.
func (r *Report) cell(c *column, l *Line) string {
	v := c.figure(l)
	switch {
	case v == nil:
		return ""
	case c.kind == sumOfTime:
		return r.Hours().Cell(v)
	case c.kind == sumOfEnergy:
		return r.KWh().Text(*v)
	case c.kind == fraction:
		return fmt.Sprintf("%.0f %%", 100**v)
	default:
		return fmt.Sprintf("%.0f", *v)
	}
}

// table is the report as a table of some columns, with all lines up to limit, and what makes a row of a line.
func (r *Report) table(limit int, columns []column, name func(string) string, figure func(*column, *Line) string) (
	t table.Writer, row func(l *Line, label, owner string) table.Row,
) {
	head := table.Row{string(r.By)}
	if r.By == Job {
		head = append(head, "user")
	}
	var align []table.ColumnConfig
	for i := range columns {
		head = append(head, columns[i].head)
		align = append(align, table.ColumnConfig{Number: len(head), Align: text.AlignRight})
	}
	t = table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.SetColumnConfigs(align)
	t.AppendHeader(append(head, "harm"))
	row = func(l *Line, label, owner string) table.Row {
		cells := table.Row{label}
		if r.By == Job {
			cells = append(cells, owner)
		}
		for i := range columns {
			cells = append(cells, figure(&columns[i], l))
		}
		return append(cells, l.HarmText())
	}
	for i := range r.Lines[:min(len(r.Lines), limit)] {
		l := &r.Lines[i]
		t.AppendRow(row(l, name(l.Name), name(l.Owner)))
	}
	return t, row
}

// Text writes the report for a terminal, at most limit lines.
func (r *Report) Text(out io.Writer, limit int) {
	fmt.Fprintf(out, "GPU usage, %s to %s\n", r.From.Local().Format(time.DateTime), r.To.Local().Format(time.DateTime))
	shown := slices.DeleteFunc(slices.Clone(columns), func(c column) bool {
		known := func(l Line) bool { return c.figure(&l) != nil }
		return r.title(&c) == "" || !known(r.Total) && !slices.ContainsFunc(r.Lines, known)
	})
	for i := range shown {
		shown[i].head = r.title(&shown[i])
	}
	label := func(name string) string { return (&Line{Name: name}).Label() }
	t, row := r.table(limit, shown, label, r.cell)
	if more := max(0, len(r.Lines)-limit) + r.More; more > 0 {
		t.AppendRow(table.Row{fmt.Sprintf("and %d more", more)})
	}
	t.AppendSeparator()
	t.AppendRow(row(&r.Total, "all", ""))
	fmt.Fprintln(out, t.Render())
	for _, note := range r.Notes {
		fmt.Fprintf(out, "- %s\n", note)
	}
}

// Label is the line's name for people.
func (l *Line) Label() string {
	if l.Name == "" {
		return "(not known)"
	}
	return Clean(l.Name)
}

// Clean is a text with ? for whatever could move a terminal's cursor, hide text or turn its words around.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// CSV writes all lines; what isn't known is empty.
func (r *Report) CSV(out io.Writer) error {
	all := slices.Clone(columns)
	for i := range all {
		all[i].head = all[i].name
	}
	t, _ := r.table(len(r.Lines), all, cell, func(c *column, l *Line) string {
		if v := c.figure(l); v != nil {
			return strconv.FormatFloat(*v, 'f', -1, 64)
		}
		return ""
	})
	_, err := fmt.Fprintln(out, t.RenderCSV())
	return err
}

// cell is a user's word in a table: none that a spreadsheet would compute.
func cell(s string) string {
	s = Clean(s)
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}
