package compare

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
)

// draw draws the report into a folder that is there, each picture as PNG and as SVG, and
// returns how many pictures there are.
func (r report) draw(dir string, o *options) (int, error) {
	sheets := map[string]*figure.Sheet{"makespans": r.makespans(o), "turnarounds": r.turnarounds(o), "slowdowns": r.slowdowns(o)}
	for _, wl := range o.workloads {
		if len(r[wl]) > 0 {
			sheets["timeline-"+wl] = r.timeline(o, wl)
		}
	}
	for name, sheet := range sheets {
		for _, format := range figure.Formats {
			if err := sheet.Write(filepath.Join(dir, name+"."+format)); err != nil {
				return 0, fmt.Errorf("draw: %w", err)
			}
		}
	}
	return len(sheets), nil
}

// bars lays a bar for every variant side by side, workload by workload. column says what
// one shows.
func (r report) bars(o *options, title, y string, column func(f *figures, colour color.Color) figure.Column, more ...func(c *figure.Chart, f *figures, x float64)) *figure.Sheet {
	c := figure.New(title, "", y)
	colours := map[string]color.Color{}
	var names []string
	for i := range o.variants {
		names = append(names, o.variants[i].name)
		colours[o.variants[i].name] = o.variants[i].colour
	}
	figure.SideBySide(c, o.workloads, names, func(wl, variant string, x, width float64) []plot.Thumbnailer {
		f := r[wl][variant]
		if f == nil {
			return nil
		}
		col := column(f, colours[variant])
		col.X, col.Width = x, width
		drawn := c.Column(col)
		for _, add := range more {
			add(c, f, x)
		}
		return drawn
	})
	return figure.Single(c, 26*figure.CM, 11*figure.CM)
}

// failed says how many jobs did.
func failed(f *figures) string {
	if f.JobsFailed == 0 {
		return ""
	}
	return strconv.Itoa(f.JobsFailed)
}

// makespans draws each makespan, the GPU's idle time on top in grey and the time to run failed jobs
// again in white.
func (r report) makespans(o *options) *figure.Sheet {
	title := fmt.Sprintf("Makespans on real Slurm, time scaled %g-fold; grey: idle GPU (Slurm's pauses); white: failed jobs (how many) once more, alone", o.scale)
	return r.bars(o, title, "makespan, GPU s", func(f *figures, colour color.Color) figure.Column {
		col := figure.Column{Text: failed(f), Parts: []figure.Part{
			{Height: f.BusyMakespanS, Colour: colour}, {Height: f.MakespanS - f.BusyMakespanS, Colour: figure.Light},
		}}
		if f.JobsFailed > 0 {
			col.Parts = append(col.Parts, figure.Part{Height: f.RerunMakespanS - f.MakespanS, Colour: figure.White})
		}
		return col
	})
}

func (r report) turnarounds(o *options) *figure.Sheet {
	return r.bars(o, "Mean turnaround of the jobs that completed; numbers: jobs that failed", "GPU s", func(f *figures, colour color.Color) figure.Column {
		return figure.Column{Text: failed(f), Parts: []figure.Part{{Height: f.MeanTurnaroundS, Colour: colour}}}
	})
}

// slowdowns draws each median, and the 95th percentile as a line above it.
func (r report) slowdowns(o *options) *figure.Sheet {
	return r.bars(o, "Slowdown of the jobs that completed: median, line to the 95th percentile", "run time ÷ alone", func(f *figures, colour color.Color) figure.Column {
		return figure.Column{Parts: []figure.Part{{Height: f.SlowdownP50, Colour: colour}}}
	}, func(c *figure.Chart, f *figures, x float64) {
		c.Line(plotter.XYs{{X: x, Y: f.SlowdownP50}, {X: x, Y: f.SlowdownP95}}, figure.Ink, 1.2)
	})
}

// timeline draws which jobs were on the GPU when, a chart for each variant.
func (r report) timeline(o *options, wl string) *figure.Sheet {
	s := &figure.Sheet{Title: "Jobs on the GPU: " + wl + "; dark: failed for memory", W: 26 * figure.CM}
	last := 0.0
	for _, f := range r[wl] {
		last = max(last, f.MakespanS)
	}
	for i := range o.variants {
		v := &o.variants[i]
		f := r[wl][v.name]
		if f == nil {
			continue
		}
		c := figure.New(v.name, "", "")
		most := 1
		for k, lane := range lanes(f.runs) {
			most = max(most, lane+1)
			colour := color.Color(figure.Ink)
			if f.runs[k].finished {
				colour = v.colour
			}
			// A failure at the start is an instant: draw it wide enough to be seen.
			end := math.Max(f.runs[k].endS, f.runs[k].startS+last/300)
			c.Box(f.runs[k].startS, end, float64(lane)+0.08, float64(lane)+0.92, colour)
		}
		c.X.Min, c.X.Max, c.Y.Min, c.Y.Max = 0, last*1.01, 0, float64(most)
		c.Y.Tick.Marker = plot.ConstantTicks(nil)
		s.Rows = append(s.Rows, []*figure.Chart{c})
	}
	s.Rows[len(s.Rows)-1][0].X.Label.Text = "GPU s"
	s.H = vg.Length(len(s.Rows))*2.6*figure.CM + figure.CM
	return s
}

// lanes gives every run the lowest lane that is free during the run, so that runs at the same time
// lie above each other.
func lanes(runs []run) []int {
	order := make([]int, len(runs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(runs[a].startS, runs[b].startS) })
	out := make([]int, len(runs))
	var until []float64
	for _, i := range order {
		lane := slices.IndexFunc(until, func(t float64) bool { return t <= runs[i].startS })
		if lane < 0 {
			lane, until = len(until), append(until, 0)
		}
		out[i], until[lane] = lane, runs[i].endS
	}
	return out
}
