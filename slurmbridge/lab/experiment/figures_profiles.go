package experiment

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot/palette/brewer"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
)

// resources are the thesis's four (eq. 3), in percent of its card.
var resources = []struct {
	name   string
	colour color.Color
	dashes []vg.Length
	of     func(u rlcore.Use) float64
}{
	{"GPU", figure.Vermillion, nil, func(u rlcore.Use) float64 { return 100 * u.GPU }},
	{"memory", figure.Blue, nil, func(u rlcore.Use) float64 { return 100 * u.MemMiB / rlcore.TitanXp.MemMiB }},
	{"cores", figure.Green, []vg.Length{6, 3}, func(u rlcore.Use) float64 { return 100 * u.Core }},
	{"PCIe", figure.Orange, []vg.Length{2, 2}, func(u rlcore.Use) float64 { return 100 * u.PCIeMBps / rlcore.TitanXp.PCIeMBps }},
}

// profiles draws what applications use of the card over their run alone.
func profiles(title string, names ...string) *figure.Sheet {
	s := &figure.Sheet{Title: title, Rows: [][]*figure.Chart{nil}, W: wide, H: 8 * figure.CM}
	for _, name := range names {
		p, _ := apps.ByName(name)
		c := figure.New(name, "time, s", "use, % of the card")
		for _, r := range resources {
			l := c.Line(figure.Steps(p, r.of), r.colour, 1.6, r.dashes...)
			l.StepStyle = plotter.PostStep
			c.Key(r.name, l)
		}
		c.X.Min, c.Y.Min, c.Y.Max = 0, 0, 105
		s.Rows[0] = append(s.Rows[0], c)
	}
	return s
}

// noMemory stands in a heat map for a pair that doesn't fit into memory.
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

// heat is a grid as a heat map. From none to twice the time at least, so that near-equal
// numbers look so.
func heat(g grid) (*plotter.HeatMap, error) {
	blues, err := brewer.GetPalette(brewer.TypeSequential, "Blues", 9)
	if err != nil {
		return nil, err
	}
	h := plotter.NewHeatMap(g, blues)
	h.NaN, h.Underflow = color.White, figure.Light
	h.Min, h.Max = 1, max(2, figure.Finite(h.Max))
	for c := range g.Apps {
		for row := range g.Apps {
			if z := g.Z(c, row); z > 0 {
				h.Min = min(h.Min, z) // rounding leaves some a little below 1
			}
		}
	}
	return h, nil
}

// pairsSheet draws the pair matrix with its numbers.
func (r *Report) pairsSheet() *figure.Sheet {
	if r.Pairs == nil || len(r.Pairs.Apps) == 0 {
		return nil
	}
	g := grid{r.Pairs}
	c := figure.New("Fig. 3: slowdown of each application beside each other, × its time alone", "beside", "")
	h, err := heat(g)
	if !c.TryAdd(h, err) {
		return figure.Single(c, wide, high)
	}
	var at plotter.XYs
	var texts []string
	for col := range g.Apps {
		for row := range g.Apps {
			s := ""
			switch z := g.Z(col, row); {
			case z == noMemory:
				s = "no memory"
			case z > 0:
				s = fmt.Sprintf("%.2f", z)
			}
			at, texts = append(at, plotter.XY{X: float64(col), Y: float64(row)}), append(texts, s)
		}
	}
	l := c.Texts(at, texts)
	l.Offset.Y = 0
	for i := range l.TextStyle {
		st := &l.TextStyle[i]
		st.YAlign, st.Font.Size = text.YCenter, vg.Points(10)
		if z := g.Z(int(at[i].X), int(at[i].Y)); z > (h.Min+h.Max)/2 {
			st.Color = color.White // the cell is dark
		}
	}
	figure.Nominal(&c.X, g.Apps)
	upward := slices.Clone(g.Apps)
	slices.Reverse(upward)
	figure.Nominal(&c.Y, upward)
	side := vg.Length(len(g.Apps)) * 2.4 * figure.CM
	return figure.Single(c, side+5*figure.CM, 0.6*side+3*figure.CM)
}
