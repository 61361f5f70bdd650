package experiment

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/palette/brewer"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// profiles draws what applications use of the card over their run alone: the four
// resources, each in percent of the card.
func profiles(title string, names ...string) (*sheet, error) {
	legend := plot.NewLegend()
	var row []*plot.Plot
	for i, name := range names {
		prof, ok := apps.ByName(name)
		if !ok {
			return nil, fmt.Errorf("there is no application %q", name)
		}
		p := newPlot(name, "time, s", "use, % of the card")
		for k, r := range resources {
			l, err := plotter.NewLine(steps(prof, r.of))
			if err != nil {
				return nil, err
			}
			l.StepStyle = plotter.PostStep
			l.Color, l.Width, l.Dashes = r.colour, vg.Points(1.6), r.dashes
			p.Add(l)
			if i == 0 {
				legend.Add(resources[k].name, l)
			}
		}
		p.X.Min, p.Y.Min, p.Y.Max = 0, 0, 105
		row = append(row, p)
	}
	return &sheet{title: title, plots: [][]*plot.Plot{row}, legend: &legend, w: 24 * vg.Centimeter, h: 8 * vg.Centimeter}, nil
}

// resources are the thesis's four (eq. 3), as parts of its card.
var resources = []struct {
	name   string
	colour color.Color
	dashes []vg.Length
	of     func(u rlcore.Use) float64
}{
	{"GPU", vermillion, nil, func(u rlcore.Use) float64 { return u.GPU }},
	{"memory", blue, nil, func(u rlcore.Use) float64 { return u.MemMiB / rlcore.TitanXp.MemMiB }},
	{"cores", green, []vg.Length{6, 3}, func(u rlcore.Use) float64 { return u.Core }},
	{"PCIe", orange, []vg.Length{2, 2}, func(u rlcore.Use) float64 { return u.PCIeMBps / rlcore.TitanXp.PCIeMBps }},
}

// steps are the points of a resource's step function, in s and percent.
func steps(p *rlcore.Profile, of func(u rlcore.Use) float64) plotter.XYs {
	var out plotter.XYs
	for i, u := range p.Series {
		out = append(out, plotter.XY{X: float64(i) * p.PeriodS, Y: 100 * of(u)})
	}
	return append(out, plotter.XY{X: p.DurationS, Y: out[len(out)-1].Y})
}

// noMemory is what a heat map is told of a pair that doesn't fit into memory.
const noMemory = -1

// grid is a PairMatrix for a heat map, the first victim on top; NaN where the
// matrix says nothing.
type grid struct{ *PairMatrix }

func (g grid) Dims() (c, r int)   { return len(g.Apps), len(g.Apps) }
func (g grid) X(c int) float64    { return float64(c) }
func (g grid) Y(r int) float64    { return float64(r) }
func (g grid) Z(c, r int) float64 { return g.at(len(g.Apps)-1-r, c) }

func (g grid) at(victim, aggressor int) float64 {
	if victim >= len(g.Slowdown) || aggressor >= len(g.Slowdown[victim]) {
		return math.NaN()
	}
	if s := g.Slowdown[victim][aggressor]; s > 0 && !math.IsInf(s, 0) {
		return s
	} else if s == 0 {
		return noMemory
	}
	return math.NaN()
}

// pairsSheet draws the pair matrix with its numbers.
func (r *Report) pairsSheet() (*sheet, error) {
	if r.Pairs == nil || len(r.Pairs.Apps) == 0 {
		return nil, nil
	}
	g := grid{r.Pairs}
	n := len(g.Apps)
	colours, err := brewer.GetPalette(brewer.TypeSequential, "Blues", 9)
	if err != nil {
		return nil, err
	}
	heat := plotter.NewHeatMap(g, colours)
	heat.NaN, heat.Underflow = color.White, light
	// From none to twice the time at least, so that near-equal numbers look so.
	heat.Min, heat.Max = 1, max(2, finite(heat.Max))
	for c := range n {
		for row := range n {
			if z := g.Z(c, row); z > 0 {
				heat.Min = min(heat.Min, z) // rounding leaves some a little below 1
			}
		}
	}
	p := newPlot("Fig. 3: slowdown of each application beside each other, × its time alone", "beside", "")
	p.Add(heat)
	var at plotter.XYs
	var texts []string
	for c := range n {
		for row := range n {
			s := ""
			switch z := g.Z(c, row); {
			case z == noMemory:
				s = "no memory"
			case z > 0:
				s = fmt.Sprintf("%.2f", z)
			}
			at, texts = append(at, plotter.XY{X: float64(c), Y: float64(row)}), append(texts, s)
		}
	}
	l, err := write(at, texts)
	if err != nil {
		return nil, err
	}
	l.Offset.Y = 0
	for i := range l.TextStyle {
		st := &l.TextStyle[i]
		st.YAlign, st.Font.Size = text.YCenter, vg.Points(10)
		if z := g.Z(int(at[i].X), int(at[i].Y)); z > (heat.Min+heat.Max)/2 {
			st.Color = color.White // the cell is dark
		}
	}
	p.Add(l)
	nominal(&p.X, g.Apps)
	upward := make([]string, n)
	for i, a := range g.Apps {
		upward[n-1-i] = a
	}
	nominal(&p.Y, upward)
	side := vg.Length(n) * 2.4 * vg.Centimeter
	return oneOf(p, nil, side+5*vg.Centimeter, 0.6*side+3*vg.Centimeter), nil
}
