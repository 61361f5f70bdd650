package experiment

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// tradeOffCurve draws dqn on the random workload under contracts from strict to
// none: what few slowdowns cost in makespan.
func (r *Report) tradeOffCurve() (*sheet, error) {
	if len(r.TradeOff) == 0 {
		return nil, nil
	}
	points := slices.Clone(r.TradeOff)
	slices.SortStableFunc(points, func(a, b TradeOff) int { return cmp.Compare(strictness(a), strictness(b)) })
	p := newPlot("Slowdown against makespan: dqn, random workload, by the slowdown that a contract allows", "makespan ÷ SJF's", "jobs slowed by less than 10 %, mean over the job sets")
	var ends spread
	var texts []string
	for _, t := range points {
		s := "no contract"
		if t.Contract > 0 {
			s = fmt.Sprintf("%g", t.Contract)
		}
		if t.OOM > 0 {
			s += fmt.Sprintf(", %d runs lost", t.OOM)
		}
		ends.add(finite(t.MakespanVsSJF), finite(t.LT10), finite(t.MakespanSD))
		texts = append(texts, s)
	}
	line, dots, err := plotter.NewLinePoints(ends)
	if err != nil {
		return nil, err
	}
	line.Color, line.Width = policyColour(ours), vg.Points(1.6)
	dots.GlyphStyle = draw.GlyphStyle{Color: policyColour(ours), Radius: vg.Points(3), Shape: draw.CircleGlyph{}}
	bars, err := plotter.NewXErrorBars(ends)
	if err != nil {
		return nil, err
	}
	bars.Color = grey
	labels, err := write(ends.XYs, texts)
	if err != nil {
		return nil, err
	}
	// The curve rises to the right: below it there is room.
	labels.Offset = vg.Point{X: vg.Points(4), Y: vg.Points(-3)}
	for i := range labels.TextStyle {
		labels.TextStyle[i].XAlign, labels.TextStyle[i].YAlign = text.XLeft, text.YTop
	}
	p.Y.Min, p.Y.Max = 0, float64(r.Jobs)
	p.Add(bars, line, dots, labels)
	sjf, err := plotter.NewLine(plotter.XYs{{X: 1, Y: p.Y.Min}, {X: 1, Y: p.Y.Max}})
	if err != nil {
		return nil, err
	}
	sjf.Color, sjf.Width, sjf.Dashes = ink, vg.Points(1.2), []vg.Length{vg.Points(5), vg.Points(3)}
	p.Add(sjf)
	legend := plot.NewLegend()
	legend.Add("dqn", line, dots)
	legend.Add("standard deviation", errorBar{bars.LineStyle})
	legend.Add("SJF's makespan", sjf)
	return oneOf(p, &legend, wide, 12*vg.Centimeter), nil
}

// strictness orders contracts; none is the widest.
func strictness(t TradeOff) float64 {
	if t.Contract == 0 {
		return math.Inf(1)
	}
	return t.Contract
}

// errorBar is an error bar in a legend.
type errorBar struct{ draw.LineStyle }

// Thumbnail implements plot.Thumbnailer.
func (b errorBar) Thumbnail(c *draw.Canvas) {
	y := c.Center().Y
	c.StrokeLine2(b.LineStyle, c.Min.X, y, c.Max.X, y)
}
