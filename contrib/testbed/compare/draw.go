package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"

	"github.com/google/renameio/v2"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// picture is one of the pictures of a report.
type picture struct {
	name string
	page *page
}

// draw draws the report into a folder that is there, each picture as PNG and as SVG, and
// returns how many pictures there are.
func (r report) draw(dir string, o *options) (int, error) {
	all, err := r.pictures(o)
	if err != nil {
		return 0, fmt.Errorf("draw: %w", err)
	}
	for _, p := range all {
		for _, format := range []string{"png", "svg"} {
			data, err := p.page.render(format)
			if err != nil {
				return 0, fmt.Errorf("draw %s: %w", p.name, err)
			}
			if err := renameio.WriteFile(filepath.Join(dir, p.name+"."+format), data, 0o644); err != nil {
				return 0, fmt.Errorf("draw: %w", err)
			}
		}
	}
	return len(all), nil
}

func (r report) pictures(o *options) ([]picture, error) {
	out := []picture{{name: "makespans"}, {name: "turnarounds"}, {name: "slowdowns"}}
	var err error
	for i, f := range []func(*options) (*page, error){r.makespans, r.turnarounds, r.slowdowns} {
		if out[i].page, err = f(o); err != nil {
			return nil, err
		}
	}
	for _, wl := range o.workloads {
		if len(r[wl]) == 0 {
			continue
		}
		p, err := r.timeline(o, wl)
		if err != nil {
			return nil, err
		}
		out = append(out, picture{"timeline-" + wl, p})
	}
	return out, nil
}

// bars lays a bar for every variant side by side, workload by workload. each adds
// what one shows around x.
func (r report) bars(o *options, title, y string, each func(p *plot.Plot, x, width float64, v string, f *figures) (plot.Thumbnailer, error)) (*page, error) {
	p := newPlot("", "", y)
	legend := plot.NewLegend()
	width := 0.84 / float64(len(o.variants))
	for k := range o.variants {
		name := o.variants[k].name
		var thumb plot.Thumbnailer
		for i, wl := range o.workloads {
			f := r[wl][name]
			if f == nil {
				continue
			}
			t, err := each(p, float64(i)+(float64(k)-float64(len(o.variants)-1)/2)*width, width, name, f)
			if err != nil {
				return nil, err
			}
			thumb = t
		}
		if thumb != nil {
			legend.Add(name, thumb)
		}
	}
	nominal(&p.X, o.workloads)
	p.Y.Min = 0
	return &page{title: title, plots: []*plot.Plot{p}, legend: &legend, w: 26 * vg.Centimeter, h: 11 * vg.Centimeter}, nil
}

// makespans draws each makespan, the GPU's idle time on top in grey and what the
// failed jobs would take once more in white.
func (r report) makespans(o *options) (*page, error) {
	title := fmt.Sprintf("Makespans on real Slurm, time scaled %g-fold; grey: idle GPU (Slurm's pauses); white: failed jobs (how many) once more, alone", o.scale)
	return r.bars(o, title, "makespan, GPU s", func(p *plot.Plot, x, width float64, v string, f *figures) (plot.Thumbnailer, error) {
		b, err := bar(p, x, width, 0, f.BusyMakespanS, colour(v))
		if err != nil {
			return nil, err
		}
		if _, err := bar(p, x, width, f.BusyMakespanS, f.MakespanS, light); err != nil {
			return nil, err
		}
		if f.JobsFailed > 0 {
			if _, err := bar(p, x, width, f.MakespanS, f.RerunMakespanS, white); err != nil {
				return nil, err
			}
			err = write(p, x, f.RerunMakespanS, strconv.Itoa(f.JobsFailed))
		}
		return b, err
	})
}

func (r report) turnarounds(o *options) (*page, error) {
	return r.bars(o, "Mean turnaround of the jobs that completed; numbers: jobs that failed", "GPU s", func(p *plot.Plot, x, width float64, v string, f *figures) (plot.Thumbnailer, error) {
		b, err := bar(p, x, width, 0, f.MeanTurnaroundS, colour(v))
		if err == nil && f.JobsFailed > 0 {
			err = write(p, x, f.MeanTurnaroundS, strconv.Itoa(f.JobsFailed))
		}
		return b, err
	})
}

// slowdowns draws each median, and the 95th percentile as a line above it.
func (r report) slowdowns(o *options) (*page, error) {
	return r.bars(o, "Slowdown of the jobs that completed: median, line to the 95th percentile", "run time ÷ alone", func(p *plot.Plot, x, width float64, v string, f *figures) (plot.Thumbnailer, error) {
		b, err := bar(p, x, width, 0, f.SlowdownP50, colour(v))
		if err != nil {
			return nil, err
		}
		l, err := plotter.NewLine(plotter.XYs{{X: x, Y: f.SlowdownP50}, {X: x, Y: f.SlowdownP95}})
		if err != nil {
			return nil, err
		}
		l.Color, l.Width = ink, vg.Points(1.2)
		p.Add(l)
		return b, nil
	})
}

// timeline draws who was on the GPU when, a plot for each variant.
func (r report) timeline(o *options, wl string) (*page, error) {
	pg := &page{title: "Who is on the GPU: " + wl + "; dark: failed for memory", w: 26 * vg.Centimeter}
	last := 0.0
	for i := range o.variants {
		if f := r[wl][o.variants[i].name]; f != nil {
			last = max(last, f.MakespanS)
		}
	}
	for i := range o.variants {
		v := &o.variants[i]
		f := r[wl][v.name]
		if f == nil {
			continue
		}
		p := newPlot(v.name, "", "")
		most := 1
		for k, lane := range lanes(f.runs) {
			most = max(most, lane+1)
			c := colour(v.name)
			if !f.runs[k].finished {
				c = ink
			}
			// A failure at the start is an instant: draw it wide enough to be seen.
			end := math.Max(f.runs[k].endS, f.runs[k].startS+last/300)
			if _, err := box(p, f.runs[k].startS, end, float64(lane)+0.08, float64(lane)+0.92, c); err != nil {
				return nil, err
			}
		}
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, last*1.01, 0, float64(most)
		p.Y.Tick.Marker = plot.ConstantTicks(nil)
		pg.plots = append(pg.plots, p)
	}
	pg.plots[len(pg.plots)-1].X.Label.Text = "GPU s"
	pg.h = vg.Length(len(pg.plots))*2.6*vg.Centimeter + vg.Centimeter
	return pg, nil
}
