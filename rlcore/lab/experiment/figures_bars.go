package experiment

import (
	"fmt"
	"image/color"
	"maps"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/slurmbridge/slurmbridge/rlcore"
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

// Its costs of sharing over whole instances (Fig. 17).
const thesisCost1, thesisCost2 = 0.7014, 0.5002

// column is one bar of several parts, and what stands above it.
type column struct {
	x, width float64
	parts    []float64 // heights, from the bottom on
	colours  []color.Color
	text     string
}

// draw adds the column to a plot and returns its parts, for a legend. Parts that
// can't be drawn have no height.
func (c *column) draw(p *plot.Plot) ([]plot.Thumbnailer, error) {
	from := 0.0
	var out []plot.Thumbnailer
	for i, h := range c.parts {
		to := from + max(0, finite(h))
		b, err := bar(c.x, c.width, from, to, c.colours[i])
		if err != nil {
			return nil, err
		}
		p.Add(b)
		out, from = append(out, b), to
	}
	if c.text != "" {
		l, err := write(plotter.XYs{{X: c.x, Y: from}}, []string{c.text})
		if err != nil {
			return nil, err
		}
		p.Add(l)
	}
	return out, nil
}

// addAll puts a legend's entries in.
func addAll(l *plot.Legend, names []string, thumbs []plot.Thumbnailer) {
	for i, n := range names {
		l.Add(n, thumbs[i])
	}
}

const wide, high = 24 * vg.Centimeter, 10 * vg.Centimeter

// classes draws Fig. 15: how many jobs of the random workload slowed by how much.
func (r *Report) classes() (*sheet, error) {
	names, lines := r.lines("random")
	if len(names) == 0 {
		return nil, nil
	}
	p := newPlot("Fig. 15: slowdown of the random workload's jobs", "", "jobs, mean over the job sets")
	legend := plot.NewLegend()
	var at plotter.XYs
	for i, n := range names {
		l := lines[n]
		c := column{
			x: float64(i), width: 0.6,
			parts:   []float64{l.LE2, l.LT10 - l.LE2, l.LT20 - l.LT10, l.GE20},
			colours: []color.Color{green, sky, orange, vermillion},
		}
		if l.OOM > 0 {
			c.text = fmt.Sprintf("%d runs lost", l.OOM)
		}
		parts, err := c.draw(p)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			slices.Reverse(parts) // the legend as the bars are stacked
			addAll(&legend, []string{"20 % and more", "10 to 20 %", "2 to 10 %", "up to 2 %"}, parts)
		}
		if x, ok := thesisUnslowed[n]; ok {
			at = append(at, plotter.XY{X: float64(i), Y: x})
		}
	}
	if err := addMarks(p, &legend, at, "thesis: none"); err != nil {
		return nil, err
	}
	nominal(&p.X, names)
	p.Y.Min = 0
	return oneOf(p, &legend, wide, high), nil
}

// addMarks adds the thesis's figures, if there are any.
func addMarks(p *plot.Plot, l *plot.Legend, at plotter.XYs, name string) error {
	if len(at) == 0 {
		return nil
	}
	m, err := marks(at)
	if err != nil {
		return err
	}
	p.Add(m)
	l.Add(name, m)
	return nil
}

// addRule adds a dashed line y = at.
func addRule(p *plot.Plot, l *plot.Legend, at float64, n int, c color.Color, name string) error {
	line, err := rule(at, n, c)
	if err != nil {
		return err
	}
	p.Add(line)
	l.Add(name, line)
	return nil
}

// training draws Fig. 16: makespans over SJF's with the time of training on top,
// and the thesis's beside.
func (r *Report) training() (*sheet, error) {
	names, lines := r.lines("random")
	if len(names) == 0 {
		return nil, nil
	}
	p := newPlot("Fig. 16: makespan of the random workload and training", "", "makespan ÷ SJF's")
	legend := plot.NewLegend()
	thesis := false
	for i, n := range names {
		l := lines[n]
		c := column{
			x: float64(i), width: 0.7,
			parts:   []float64{l.MakespanVsSJF, l.WithTraining - l.MakespanVsSJF},
			colours: []color.Color{policyColour(n), ink},
			text:    fmt.Sprintf("%.2f", l.WithTraining),
		}
		total, printed := thesisTotal[n]
		if printed = printed && l.ThesisVsSJF > 0; printed {
			c.x, c.width = c.x-0.2, 0.4
			t := column{
				x: float64(i) + 0.2, width: 0.4,
				parts:   []float64{total - thesisTraining[n], thesisTraining[n]},
				colours: []color.Color{color.White, ink}, text: fmt.Sprintf("%.2f", total),
			}
			parts, err := t.draw(p)
			if err != nil {
				return nil, err
			}
			if !thesis {
				legend.Add("thesis", parts[0])
				thesis = true
			}
		}
		parts, err := c.draw(p)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			legend.Add("training", parts[1])
		}
	}
	if err := addRule(p, &legend, 1, len(names), ink, "SJF"); err != nil {
		return nil, err
	}
	nominal(&p.X, names)
	p.Y.Min = 0
	return oneOf(p, &legend, wide, high), nil
}

// costs draws Fig. 17 of the policies that share.
func (r *Report) costs() (*sheet, error) {
	names, lines := r.lines("random")
	names = slices.DeleteFunc(names, func(n string) bool { s, _ := rlcore.PolicyNamed(n); return s.Alone })
	if len(names) == 0 {
		return nil, nil
	}
	p := newPlot("Fig. 17: EC2 cost of the random workload, shared ÷ whole instances", "", "cost ÷ whole instances'")
	legend := plot.NewLegend()
	for i, n := range names {
		for k, v := range []float64{lines[n].Cost1, lines[n].Cost2} {
			c := column{
				x: float64(i) - 0.2 + 0.4*float64(k), width: 0.4,
				parts: []float64{v}, colours: []color.Color{[]color.Color{blue, orange}[k]}, text: fmt.Sprintf("%.2f", v),
			}
			parts, err := c.draw(p)
			if err != nil {
				return nil, err
			}
			if i == 0 {
				addAll(&legend, []string{[]string{"1: by GPU memory", "2: by vCPU and memory"}[k]}, parts)
			}
		}
	}
	for _, x := range []struct {
		at   float64
		c    color.Color
		name string
	}{{1, ink, "whole instances"}, {thesisCost1, blue, "thesis, 1: 0.7014"}, {thesisCost2, orange, "thesis, 2: 0.5002"}} {
		if err := addRule(p, &legend, x.at, len(names), x.c, x.name); err != nil {
			return nil, err
		}
	}
	nominal(&p.X, names)
	p.Y.Min = 0
	return oneOf(p, &legend, wide, high), nil
}

// makespans draws every policy on every workload, with its spread over the job
// sets and what the thesis found.
func (r *Report) makespans() (*sheet, error) {
	all := map[string]bool{}
	var wls []string
	for _, wl := range Workloads() {
		names, _ := r.lines(wl)
		if len(names) == 0 {
			continue
		}
		wls = append(wls, wl)
		for _, n := range names {
			all[n] = true
		}
	}
	if len(wls) == 0 {
		return nil, nil
	}
	names := inOrder(slices.Collect(maps.Keys(all)))
	p := newPlot("Makespans; bars: standard deviation over the job sets", "", "makespan ÷ SJF's")
	legend := plot.NewLegend()
	width := 0.84 / float64(len(names))
	var thesis plotter.XYs
	var ends spread
	for k, n := range names {
		var thumb plot.Thumbnailer
		for i, wl := range wls {
			l := r.Workloads[wl][n]
			if l == nil {
				continue
			}
			x := float64(i) + (float64(k)-float64(len(names)-1)/2)*width
			c := column{x: x, width: width, parts: []float64{l.MakespanVsSJF}, colours: []color.Color{policyColour(n)}}
			parts, err := c.draw(p)
			if err != nil {
				return nil, err
			}
			thumb = parts[0]
			ends.add(x, finite(l.MakespanVsSJF), finite(l.MakespanSD))
			if l.ThesisVsSJF > 0 {
				thesis = append(thesis, plotter.XY{X: x, Y: finite(l.ThesisVsSJF)})
			}
		}
		legend.Add(n, thumb)
	}
	bars, err := plotter.NewYErrorBars(ends)
	if err != nil {
		return nil, err
	}
	bars.Color, bars.CapWidth = ink, vg.Points(3)
	p.Add(bars)
	if err := addMarks(p, &legend, thesis, "thesis"); err != nil {
		return nil, err
	}
	if err := addRule(p, &legend, 1, len(wls), ink, "SJF"); err != nil {
		return nil, err
	}
	nominal(&p.X, wls)
	p.Y.Min = 0
	return oneOf(p, &legend, 30*vg.Centimeter, 12*vg.Centimeter), nil
}

// spread are points with an error, for error bars along either axis.
type spread struct {
	plotter.XYs
	sd []float64
}

func (s *spread) add(x, y, sd float64) {
	s.XYs, s.sd = append(s.XYs, plotter.XY{X: x, Y: y}), append(s.sd, sd)
}

// YError implements plotter.YErrorer.
func (s spread) YError(i int) (low, high float64) { return s.sd[i], s.sd[i] }

// XError implements plotter.XErrorer.
func (s spread) XError(i int) (low, high float64) { return s.sd[i], s.sd[i] }
