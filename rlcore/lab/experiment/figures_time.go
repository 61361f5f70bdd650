package experiment

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// overTime draws how busy the GPU was and how much of its memory was held, on the
// first seed's jobs, a row for each policy.
func (r *Report) overTime(fig, wl string) (*sheet, error) {
	names, lines := r.lines(wl)
	end := 0.0
	var shown []string
	for _, n := range names {
		res := lines[n].First()
		spec, known := rlcore.PolicyNamed(n)
		if res == nil || len(res.Track) == 0 || !known || spec.Minor {
			continue
		}
		shown = append(shown, n)
		end = max(end, until(res))
	}
	if len(shown) == 0 {
		return nil, nil
	}
	s := &sheet{
		title: fmt.Sprintf("%s: %s, first job set", fig, wl),
		w:     26 * vg.Centimeter, h: (2.5 + 2.6*vg.Length(len(shown))) * vg.Centimeter,
	}
	for i, n := range shown {
		res := lines[n].First()
		row := []*plot.Plot{
			newPlot(fmt.Sprintf("%s: %.0f s, GPU %.0f %% busy", n, res.MakespanS, 100*res.GPUUtil), "", "%"),
			newPlot(fmt.Sprintf("%s: memory %.0f %% held", n, 100*res.MemUtil), "", "%"),
		}
		for k, of := range []func(x *sim.Sample) float64{
			func(x *sim.Sample) float64 { return x.GPU },
			func(x *sim.Sample) float64 { return x.Mem },
		} {
			p := row[k]
			area, err := area(res, of, policyColour(n))
			if err != nil {
				return nil, err
			}
			p.Add(area)
			p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, end, 0, 100
			p.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 50, Label: "50"}, {Value: 100, Label: "100"}}
			if i == len(shown)-1 {
				p.X.Label.Text = "time, s"
			} else {
				p.X.Tick.Marker = bare{}
			}
		}
		s.plots = append(s.plots, row)
	}
	return s, nil
}

// until is when a result's last job ended, s.
func until(r *sim.Result) float64 {
	return max(finite(r.MakespanS), finite(r.Track[len(r.Track)-1].AtS))
}

// area is the surface under a step function of the track, in s and percent.
func area(r *sim.Result, of func(x *sim.Sample) float64, c color.Color) (*plotter.Polygon, error) {
	at := finite(r.Track[0].AtS)
	pts := plotter.XYs{{X: at, Y: 0}}
	for i := range r.Track {
		y := 100 * finite(of(&r.Track[i]))
		next := until(r)
		if i+1 < len(r.Track) {
			next = finite(r.Track[i+1].AtS)
		}
		pts = append(pts, plotter.XY{X: at, Y: y}, plotter.XY{X: next, Y: y})
		at = next
	}
	p, err := plotter.NewPolygon(append(pts, plotter.XY{X: at, Y: 0}))
	if err != nil {
		return nil, err
	}
	p.Color, p.LineStyle.Width = c, 0
	return p, nil
}

// bare are ticks without numbers: those of the lowest row serve all rows.
type bare struct{ plot.DefaultTicks }

// Ticks implements plot.Ticker.
func (b bare) Ticks(from, to float64) []plot.Tick {
	var out []plot.Tick
	for _, t := range b.DefaultTicks.Ticks(from, to) {
		if !t.IsMinor() {
			out = append(out, plot.Tick{Value: t.Value, Label: " "})
		}
	}
	return out
}
