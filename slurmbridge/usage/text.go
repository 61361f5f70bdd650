package usage

import (
	"encoding/csv"
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

// shown are the columns with a value.
func (r *Report) shown() []column {
	return slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.figure(&r.Total) == nil })
}

// Text writes the report for a terminal, at most limit lines.
func (r *Report) Text(out io.Writer, limit int) {
	fmt.Fprintf(out, "GPU usage, %s to %s\n", r.From.Local().Format(time.DateTime), r.To.Local().Format(time.DateTime))
	shown := r.shown()
	head := table.Row{string(r.By)}
	var align []table.ColumnConfig
	if r.Owners != nil {
		head = append(head, "user")
	}
	for _, c := range shown {
		head = append(head, c.head)
		align = append(align, table.ColumnConfig{Number: len(head), Align: text.AlignRight})
	}
	head = append(head, "harm")
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	t.SetColumnConfigs(align)
	t.AppendHeader(head)
	row := func(l *Line, name, owner string) table.Row {
		cells := table.Row{name}
		if r.Owners != nil {
			cells = append(cells, owner)
		}
		for i := range shown {
			cells = append(cells, shown[i].cell(l))
		}
		return append(cells, l.HarmText())
	}
	for i := range r.Lines[:min(len(r.Lines), limit)] {
		l := &r.Lines[i]
		t.AppendRow(row(l, l.Label(), Clean(r.Owners[l.Name])))
	}
	if more := max(0, len(r.Lines)-limit) + r.More; more > 0 {
		t.AppendRow(table.Row{fmt.Sprintf("and %d more", more)})
	}
	t.AppendSeparator()
	t.AppendRow(row(&r.Total, "all", ""))
	t.Render()
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
	w := csv.NewWriter(out)
	head := []string{string(r.By)}
	all := slices.Concat(columns, moreInCSV)
	if r.Owners != nil {
		head = append(head, "user")
	}
	for _, c := range all {
		head = append(head, c.name)
	}
	if err := w.Write(append(head, "harm")); err != nil {
		return err
	}
	for i := range r.Lines {
		l := &r.Lines[i]
		row := []string{cell(l.Name)}
		if r.Owners != nil {
			row = append(row, cell(r.Owners[l.Name]))
		}
		for _, c := range all {
			text := ""
			if v := c.figure(l); v != nil {
				text = strconv.FormatFloat(*v, 'f', -1, 64)
			}
			row = append(row, text)
		}
		if err := w.Write(append(row, l.HarmText())); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// cell is a user's word in a table: none that a spreadsheet would compute.
func cell(s string) string {
	s = Clean(s)
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}
