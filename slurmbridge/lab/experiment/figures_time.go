package experiment

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
)

// overTime draws how busy the GPU was and how much of its memory was held, on the
// first seed's jobs, a row for each policy.
func (r *Report) overTime(fig, wl string) *figure.Sheet {
	names, lines := r.lines(wl)
	end := 0.0
	var shown []string
	for _, n := range names {
		res := lines[n].First()
		spec, known := policy.Named(n)
		if res == nil || len(res.Track) == 0 || !known || spec.Minor {
			continue
		}
		shown = append(shown, n)
		end = max(end, until(res))
	}
	if len(shown) == 0 {
		return nil
	}
	s := &figure.Sheet{
		Title: fmt.Sprintf("%s: %s, first job set", fig, wl),
		W:     26 * figure.CM, H: (2.5 + 2.6*vg.Length(len(shown))) * figure.CM,
	}
	for i, n := range shown {
		res := lines[n].First()
		gpu := figure.New(fmt.Sprintf("%s: %.0f s, GPU %.0f %% busy", n, res.MakespanS, 100*res.GPUUtil), "", "%")
		gpu.Area(track(res, func(x *sim.Sample) float64 { return x.GPU }), policyColour(n))
		memory := figure.New(fmt.Sprintf("%s: memory %.0f %% held", n, 100*res.MemUtil), "", "%")
		memory.Area(track(res, func(x *sim.Sample) float64 { return x.Mem }), policyColour(n))
		for _, c := range []*figure.Chart{gpu, memory} {
			c.X.Min, c.X.Max, c.Y.Min, c.Y.Max = 0, end, 0, 100
			c.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 50, Label: "50"}, {Value: 100, Label: "100"}}
			if i == len(shown)-1 {
				c.X.Label.Text = "time, s"
			} else {
				figure.Unlabelled(&c.X)
			}
		}
		s.Rows = append(s.Rows, []*figure.Chart{gpu, memory})
	}
	return s
}

// until is when a result's last job ended, s.
func until(r *sim.Result) float64 {
	return max(figure.Finite(r.MakespanS), figure.Finite(r.Track[len(r.Track)-1].AtS))
}

// track are the points of a step function of the track, in s and percent.
func track(r *sim.Result, of func(x *sim.Sample) float64) plotter.XYs {
	var out plotter.XYs
	for i := range r.Track {
		y, next := 100*figure.Finite(of(&r.Track[i])), until(r)
		if i+1 < len(r.Track) {
			next = figure.Finite(r.Track[i+1].AtS)
		}
		out = append(out, plotter.XY{X: figure.Finite(r.Track[i].AtS), Y: y}, plotter.XY{X: next, Y: y})
	}
	return out
}
