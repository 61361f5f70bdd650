// Package usage reports what GPUs were used for in a period: by user, account, partition, application, node or job, the
// GPU-hours that jobs held, computed and were idle, and what sharing saved or cost them. It sums up the footprints of
// runs. Unknown figures are absent, never 0.
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
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// By is the property by which runs are grouped into lines.
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

// Ways lists the ways to sum up.
func Ways() []By { return []By{User, Account, Partition, Application, Node, Job} }

// names return the name of a run's line.
var names = map[By]func(f *history.Footprint) string{
	User:        func(f *history.Footprint) string { return f.User },
	Account:     func(f *history.Footprint) string { return f.Account },
	Partition:   func(f *history.Footprint) string { return f.Partition },
	Application: func(f *history.Footprint) string { return f.App },
	Node:        func(f *history.Footprint) string { return f.Node },
	Job:         func(f *history.Footprint) string { return f.Ref },
}

// ErrBy marks an unknown way to sum up.
var ErrBy = errors.New("it takes user, account, partition, application, node or job")

// ParseBy parses a way to sum up.
func ParseBy(text string) (By, error) {
	if !slices.Contains(Ways(), By(text)) {
		return "", fmt.Errorf("%.40q: %w", text, ErrBy)
	}
	return By(text), nil
}

// Query selects and groups runs.
type Query struct {
	history.Period // the part of a run in this period counts
	By             By
	// Limit is the maximum number of lines; the largest are kept. 0 = all.
	Limit int
	// Weights are the billing weights by partition; nil = report no charges.
	Weights map[string]Weights
}

// Weights are a partition's TRESBillingWeights for a whole GPU, and for one of a GPU's 100 shares.
type Weights struct{ GPU, Share float64 }

// Line is the sum over some runs. Hours are GPU-hours; nil = unknown for all of the runs.
type Line struct {
	Name  string `json:"name"`
	Owner string `json:"owner,omitempty"` // the user, if the line is a job
	Runs  int    `json:"runs"`            // that were on a GPU in the period
	// Held counts shares as parts of a GPU. Unheld counts runs with an unknown part, which no other figure includes.
	Held   float64 `json:"held_h"`
	Unheld int     `json:"runs_not_known,omitempty"`
	// Computed is utilisation times time, at most the hours held. A sharer may also compute while its co-runners don't:
	// the excess is Beyond (nil = none). ComputedOf are the hours held for which both are known. ComputedSplit is the
	// part of the hours computed that profiles split among the jobs of one GPU.
	Computed      *float64 `json:"computed_h,omitempty"`
	Beyond        *float64 `json:"computed_beyond_h,omitempty"`
	ComputedOf    float64  `json:"computed_known_of_h"`
	ComputedSplit float64  `json:"computed_by_profile_h,omitempty"`
	// MemoryMean and MemoryPeak are fractions of the cards' memory, known for MemoryOf of the hours held.
	MemoryOf   float64  `json:"memory_known_of_h,omitempty"`
	MemoryMean *float64 `json:"memory_mean,omitempty"`
	MemoryPeak *float64 `json:"memory_peak,omitempty"`
	// Idle are the hours in stretches of over ten minutes with less than 1 % computed, known for IdleOf hours held.
	Idle   *float64 `json:"idle_h,omitempty"`
	IdleOf float64  `json:"idle_known_of_h"`
	Shared *float64 `json:"shared_h,omitempty"` // with another job on the GPU
	// WaitSaved is the wait saved against plain Slurm, TimeLost the time lost by sharing, in hours of jobs, not GPUs.
	WaitSaved *float64             `json:"wait_saved_h,omitempty"`
	TimeLost  *float64             `json:"time_lost_h,omitempty"`
	Harm      map[history.Harm]int `json:"harm,omitempty"` // runs by kind; nil = no run is judged
	Energy    *float64             `json:"energy_kwh,omitempty"`
	EnergyOf  float64              `json:"energy_known_of_h"`
	Charged   *float64             `json:"charged_h,omitempty"` // GPU-hours by billing weights
}

// Report is what GPUs were used for.
type Report struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	By    By        `json:"by"`
	Total Line      `json:"total"`
	Lines []Line    `json:"lines"`                // by hours held, descending
	More  int       `json:"more_lines,omitempty"` // the number of omitted lines; if By is Job, of omitted runs
	// Notes define the figures, and say what is missing.
	Notes []string `json:"notes"`
}

func (r *Report) notes(charged bool) (notes []string) {
	say := func(applies bool, format string, args ...any) {
		if applies {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	all := &r.Total
	u := r.Hours()
	missing := all.Held - all.ComputedOf
	say(true, "Held: whole GPUs, and shares as parts of a GPU, for the time that jobs had them in this period. Computed: "+
		"the part of that time in which jobs' kernels ran; for jobs that share a GPU, their own part of its processors.")
	say(slices.ContainsFunc(r.Lines, func(l Line) bool { return l.Beyond != nil }),
		"Beyond: computed by jobs in excess of what they held, while their co-runners didn't compute.")
	say(all.ComputedSplit > 0, "%s of the time computed are estimates from the jobs' profiles: several jobs ran on a GPU "+
		"that doesn't report its processes separately.", u.Of(&all.ComputedSplit))
	say(missing > 0.005*all.Held && all.Held > 0, "For %s held (%.0f %%) the time computed is unknown: the jobs still "+
		"run, or their nodes sent no record.", u.Of(&missing), 100*min(1, missing/all.Held))
	say(all.Unheld > 0, "Left out: %s with an unknown part of a GPU.", job.Count(all.Unheld, "run"))
	say(true, "Idle: under 1 %% for longer than ten minutes. Waiting saved and time lost are jobs' hours against plain "+
		"Slurm's schedule, which the bridge keeps while it is active.")
	say(charged, "Charged: GPU-hours by TRESBillingWeights, with a share weighted against a whole GPU of its partition.")
	return notes
}

// HarmText lists the harm by kind, "" = unknown.
func (l *Line) HarmText() string {
	if l.Harm == nil {
		return ""
	}
	return cmp.Or(history.Harmed{Kinds: l.Harm}.List(), "none")
}

type column struct {
	name   string // in CSV
	head   string // in the table; "" = in CSV only
	kind   kind
	figure func(*Line) *float64
}

// kind is the way to print a figure.
type kind int8

const (
	count       kind = iota
	fraction         // as a percentage
	sumOfTime        // h
	sumOfEnergy      // kWh
)

// always adapts a figure that is never nil.
func always(f func(*Line) float64) func(*Line) *float64 {
	return func(l *Line) *float64 {
		v := f(l)
		return &v
	}
}

var columns = []column{
	{"runs", "jobs", count, always(func(l *Line) float64 { return float64(l.Runs) })},
	{"held_gpu_h", "held", sumOfTime, always(func(l *Line) float64 { return l.Held })},
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
	{"computed_known_of_gpu_h", "", count, always(func(l *Line) float64 { return l.ComputedOf })},
	{"computed_by_profile_gpu_h", "", count, always(func(l *Line) float64 { return l.ComputedSplit })},
	{"idle_known_of_gpu_h", "", count, always(func(l *Line) float64 { return l.IdleOf })},
	{"energy_known_of_gpu_h", "", count, always(func(l *Line) float64 { return l.EnergyOf })},
	{"runs_not_known", "", count, always(func(l *Line) float64 { return float64(l.Unheld) })},
}

// Hours is the unit of the report's hours, chosen for its largest line.
func (r *Report) Hours() Unit {
	if len(r.Lines) == 0 {
		return HoursFor(r.Total.Held)
	}
	return HoursFor(r.Lines[0].Held)
}

// KWh is the unit of the report's energies.
func (r *Report) KWh() Unit {
	if r.Total.Energy == nil {
		return energies[0]
	}
	return fit(energies, *r.Total.Energy)
}

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

// Utilisation is the computed fraction of the hours held for which it is known; nil = unknown.
func (l *Line) Utilisation() *float64 {
	if l.Computed == nil || !(l.ComputedOf > 0) {
		return nil
	}
	v := *l.Computed / l.ComputedOf
	return &v
}

// cell formats a figure for people, "" if it is unknown.
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

// table returns a table of the columns with up to limit lines, and the function that makes a row of a line.
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

// Text writes the report for a terminal, with at most limit lines.
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

// Label is the line's name for display.
func (l *Line) Label() string {
	if l.Name == "" {
		return "(not known)"
	}
	return Clean(l.Name)
}

// Clean replaces by ? each character that could move a terminal's cursor, hide text or reverse its direction.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// CSV writes all lines; cells of unknown figures are empty.
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

// cell quotes a user's text that a spreadsheet would take for a formula.
func cell(s string) string {
	s = Clean(s)
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}
