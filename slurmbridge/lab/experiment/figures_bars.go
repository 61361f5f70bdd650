package experiment

import (
	"fmt"
	"image/color"
	"maps"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
)

// Figures of the thesis on the random workload (ch. 5) that no Line holds.
var (
	// thesisUnslowed is in how many of 30 jobs it saw no slowdown (Fig. 15).
	thesisUnslowed = map[string]float64{"dqngpu": 20, "tetris": 14, "deeprm_max": 14}
	// thesisTotal is its makespan over SJF's with training (Fig. 16), and
	// thesisTraining the part of it that is training, where it says so.
	thesisTotal    = map[string]float64{"tetris": 1.294, "dqngpu": 1.081, "deeprm_max": 1.303, "deeprm_mean": 1.346}
	thesisTraining = map[string]float64{"dqngpu": 0.054, "deeprm_max": 0.048}
)

// Size of the charts that are wider than high.
const wide, high = 24 * figure.CM, 10 * figure.CM

// slowdownClasses are the parts of Fig. 15's bars, from the bottom on.
var slowdownClasses = []struct {
	name   string
	colour color.Color
	jobs   func(l *Line) float64
}{
	{"up to 2 %", figure.Green, func(l *Line) float64 { return l.LE2 }},
	{"2 to 10 %", figure.Sky, func(l *Line) float64 { return l.LT10 - l.LE2 }},
	{"10 to 20 %", figure.Orange, func(l *Line) float64 { return l.LT20 - l.LT10 }},
	{"20 % and more", figure.Vermillion, func(l *Line) float64 { return l.GE20 }},
}

// classes draws Fig. 15: how many jobs of the random workload slowed by how much.
func (r *Report) classes() *figure.Sheet {
	names, lines := r.lines("random")
	if len(names) == 0 {
		return nil
	}
	c := figure.New("Fig. 15: slowdown of the random workload's jobs", "", "jobs, mean over the job sets")
	var thesis plotter.XYs
	for i, n := range names {
		col := figure.Column{X: float64(i), Width: 0.6}
		for _, class := range slowdownClasses {
			col.Parts = append(col.Parts, figure.Part{Height: class.jobs(lines[n]), Colour: class.colour})
		}
		if lost := lines[n].OOM; lost > 0 {
			col.Text = fmt.Sprintf("%d runs lost", lost)
		}
		parts := c.Column(col)
		if i == 0 {
			for k, class := range slices.Backward(slowdownClasses) { // as the bars are stacked
				c.Key(class.name, parts[k])
			}
		}
		if x, ok := thesisUnslowed[n]; ok {
			thesis = append(thesis, plotter.XY{X: float64(i), Y: x})
		}
	}
	c.Marks(thesis, "thesis: none")
	figure.Nominal(&c.X, names)
	c.Y.Min = 0
	return figure.Single(c, wide, high)
}

// training draws Fig. 16: makespans relative to SJF's with the time of training on top, next to the
// thesis's.
func (r *Report) training() *figure.Sheet {
	names, lines := r.lines("random")
	if len(names) == 0 {
		return nil
	}
	c := figure.New("Fig. 16: makespan of the random workload and training", "", "makespan ÷ SJF's")
	bar := func(x, width, makespan, training float64, colour color.Color) (both, trained plot.Thumbnailer) {
		parts := c.Column(figure.Column{
			X: x, Width: width, Text: fmt.Sprintf("%.2f", makespan+training),
			Parts: []figure.Part{{Height: makespan, Colour: colour}, {Height: training, Colour: figure.Ink}},
		})
		return parts[0], parts[1]
	}
	var thesis plot.Thumbnailer
	for i, n := range names {
		l, x, width := lines[n], float64(i), 0.7
		if total, printed := thesisTotal[n]; printed && l.ThesisVsSJF > 0 {
			own, _ := bar(x+0.2, 0.4, total-thesisTraining[n], thesisTraining[n], figure.White)
			if thesis == nil {
				thesis = own
				c.Key("thesis", thesis)
			}
			x, width = x-0.2, 0.4
		}
		_, training := bar(x, width, l.MakespanVsSJF, l.WithTraining-l.MakespanVsSJF, policyColour(n))
		if i == 0 {
			c.Key("training", training)
		}
	}
	c.Level(1, len(names), figure.Ink, "SJF")
	figure.Nominal(&c.X, names)
	c.Y.Min = 0
	return figure.Single(c, wide, high)
}

// countings are the two ways of the thesis to count what sharing costs on EC2 (Fig. 17),
// and what it found: shared over whole instances.
var countings = []struct {
	name, thesis string
	colour       color.Color
	cost         func(l *Line) float64
	found        float64
}{
	{"1: by GPU memory", "thesis, 1: 0.7014", figure.Blue, func(l *Line) float64 { return l.Cost1 }, 0.7014},
	{"2: by vCPU and memory", "thesis, 2: 0.5002", figure.Orange, func(l *Line) float64 { return l.Cost2 }, 0.5002},
}

// costs draws Fig. 17 of the policies that share.
func (r *Report) costs() *figure.Sheet {
	names, lines := r.lines("random")
	names = slices.DeleteFunc(names, func(n string) bool { s, _ := policy.Named(n); return s.Alone })
	if len(names) == 0 {
		return nil
	}
	c := figure.New("Fig. 17: EC2 cost of the random workload, shared ÷ whole instances", "", "cost ÷ whole instances'")
	for i, n := range names {
		for k, how := range countings {
			v := how.cost(lines[n])
			parts := c.Column(figure.Column{
				X: float64(i) - 0.2 + 0.4*float64(k), Width: 0.4,
				Parts: []figure.Part{{Height: v, Colour: how.colour}}, Text: fmt.Sprintf("%.2f", v),
			})
			if i == 0 {
				c.Key(how.name, parts...)
			}
		}
	}
	c.Level(1, len(names), figure.Ink, "whole instances")
	for _, how := range countings {
		c.Level(how.found, len(names), how.colour, how.thesis)
	}
	figure.Nominal(&c.X, names)
	c.Y.Min = 0
	return figure.Single(c, wide, high)
}

// makespans draws every policy on every workload, with its spread over the job
// sets and what the thesis found.
func (r *Report) makespans() *figure.Sheet {
	all := map[string]bool{}
	var wls []string
	for _, wl := range Workloads() {
		names, _ := r.lines(wl)
		if len(names) > 0 {
			wls = append(wls, wl)
		}
		for _, n := range names {
			all[n] = true
		}
	}
	if len(wls) == 0 {
		return nil
	}
	names := inOrder(slices.Collect(maps.Keys(all)))
	c := figure.New("Makespans; bars: standard deviation over the job sets", "", "makespan ÷ SJF's")
	var thesis plotter.XYs
	var ends figure.Spread
	figure.SideBySide(c, wls, names, func(wl, n string, x, width float64) []plot.Thumbnailer {
		l := r.Workloads[wl][n]
		if l == nil {
			return nil
		}
		ends.Append(x, l.MakespanVsSJF, l.MakespanSD)
		if l.ThesisVsSJF > 0 {
			thesis = append(thesis, plotter.XY{X: x, Y: figure.Finite(l.ThesisVsSJF)})
		}
		return c.Column(figure.Column{X: x, Width: width, Parts: []figure.Part{{Height: l.MakespanVsSJF, Colour: policyColour(n)}}})
	})
	c.YErrors(ends)
	c.Marks(thesis, "thesis")
	c.Level(1, len(wls), figure.Ink, "SJF")
	return figure.Single(c, 30*figure.CM, 12*figure.CM)
}
