package usage

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// column is one figure of a line.
type column struct {
	name   string // in CSV
	head   string // in the table
	figure func(*Line) *float64
	scale  float64 // of the table's figure
	digits int
}

func whole(f func(*Line) float64) func(*Line) *float64 {
	return func(l *Line) *float64 {
		v := f(l)
		return &v
	}
}

// columns are the figures that are shown, in their order.
var columns = []column{
	{"runs", "jobs", whole(func(l *Line) float64 { return float64(l.Runs) }), 1, 0},
	{"held_gpu_h", "held h", whole(func(l *Line) float64 { return l.Held }), 1, 1},
	{"computed_gpu_h", "computed h", func(l *Line) *float64 { return l.Computed }, 1, 1},
	{"utilisation", "of held", (*Line).Utilisation, 100, 0},
	{"memory_mean", "memory", func(l *Line) *float64 { return l.MemoryMean }, 100, 0},
	{"memory_peak", "peak", func(l *Line) *float64 { return l.MemoryPeak }, 100, 0},
	{"idle_gpu_h", "idle h", func(l *Line) *float64 { return l.Idle }, 1, 1},
	{"shared_gpu_h", "shared h", func(l *Line) *float64 { return l.Shared }, 1, 1},
	{"wait_saved_h", "wait saved h", func(l *Line) *float64 { return l.WaitSaved }, 1, 1},
	{"time_lost_h", "time lost h", func(l *Line) *float64 { return l.TimeLost }, 1, 1},
	{"energy_kwh", "kWh", func(l *Line) *float64 { return l.Energy }, 1, 1},
	{"charged_gpu_h", "charged h", func(l *Line) *float64 { return l.Charged }, 1, 1},
}

// moreInCSV are figures that programs get alone.
var moreInCSV = []column{
	{"computed_known_of_gpu_h", "", whole(func(l *Line) float64 { return l.ComputedOf }), 1, 0},
	{"computed_by_profile_gpu_h", "", whole(func(l *Line) float64 { return l.ComputedSplit }), 1, 0},
	{"idle_known_of_gpu_h", "", whole(func(l *Line) float64 { return l.IdleOf }), 1, 0},
	{"energy_known_of_gpu_h", "", whole(func(l *Line) float64 { return l.EnergyOf }), 1, 0},
	{"runs_not_known", "", whole(func(l *Line) float64 { return float64(l.Unheld) }), 1, 0},
}

// Utilisation is what was computed of what was held, where it is known; nil = nowhere. Jobs that share may compute
// more than their shares.
func (l *Line) Utilisation() *float64 {
	if l.Computed == nil || !(l.ComputedOf > 0) {
		return nil
	}
	v := *l.Computed / l.ComputedOf
	return &v
}

// cell is a figure for people, "" where it isn't known.
func (c *column) cell(l *Line) string {
	v := c.figure(l)
	if v == nil {
		return ""
	}
	text := strings.TrimPrefix(strconv.FormatFloat(*v*c.scale, 'f', c.digits, 64), "-")
	if *v < 0 && strings.Trim(text, "0.") != "" {
		text = "-" + text
	}
	if c.scale == 100 {
		text += " %"
	}
	return text
}

// table is the report as a table of some columns, with all lines up to limit.
func (r *Report) table(limit int, columns []column, name func(string) string, figure func(*column, *Line) string) table.Writer {
	head := table.Row{string(r.By)}
	if r.Owners != nil {
		head = append(head, "user")
	}
	var align []table.ColumnConfig
	for i := range columns {
		head = append(head, columns[i].head)
		align = append(align, table.ColumnConfig{Number: len(head), Align: text.AlignRight})
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.SetColumnConfigs(align)
	t.AppendHeader(append(head, "harm"))
	row := func(l *Line, label string) table.Row {
		cells := table.Row{label}
		if r.Owners != nil {
			cells = append(cells, name(r.Owners[l.Name]))
		}
		for i := range columns {
			cells = append(cells, figure(&columns[i], l))
		}
		return append(cells, l.HarmText())
	}
	for i := range r.Lines[:min(len(r.Lines), limit)] {
		t.AppendRow(row(&r.Lines[i], name(r.Lines[i].Name)))
	}
	return t
}

// Text writes the report for a terminal, at most limit lines.
func (r *Report) Text(out io.Writer, limit int) {
	fmt.Fprintf(out, "GPU usage, %s to %s\n", r.From.Local().Format(time.DateTime), r.To.Local().Format(time.DateTime))
	shown := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.figure(&r.Total) == nil })
	label := func(name string) string { return (&Line{Name: name}).Label() }
	t := r.table(limit, shown, label, (*column).cell)
	if more := max(0, len(r.Lines)-limit) + r.More; more > 0 {
		t.AppendRow(table.Row{fmt.Sprintf("and %d more", more)})
	}
	t.AppendSeparator()
	total := table.Row{"all"}
	if r.Owners != nil {
		total = append(total, "")
	}
	for i := range shown {
		total = append(total, shown[i].cell(&r.Total))
	}
	t.AppendRow(append(total, r.Total.HarmText()))
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

// Clean takes from a text what a terminal would act on, and what would turn its words around.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, s)
}

// CSV writes all lines; what isn't known is empty.
func (r *Report) CSV(out io.Writer) error {
	all := slices.Concat(columns, moreInCSV)
	for i := range all {
		all[i].head = all[i].name
	}
	t := r.table(len(r.Lines), all, cell, func(c *column, l *Line) string {
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
