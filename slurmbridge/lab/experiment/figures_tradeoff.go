package experiment

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"

	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
)

// tradeOffCurve draws dqn on the random workload under contracts from strict to
// none: what few slowdowns cost in makespan.
func (r *Report) tradeOffCurve() *figure.Sheet {
	if len(r.TradeOff) == 0 {
		return nil
	}
	points := slices.Clone(r.TradeOff)
	slices.SortStableFunc(points, func(a, b TradeOff) int { return cmp.Compare(strictness(a), strictness(b)) })
	c := figure.New("Slowdown against makespan: dqn, random workload, by the slowdown that a contract allows", "makespan ÷ SJF's", "jobs slowed by less than 10 %, mean over the job sets")
	var ends figure.Spread
	var texts []string
	for _, t := range points {
		s := "no contract"
		if t.Contract > 0 {
			s = fmt.Sprintf("%g", t.Contract)
		}
		if t.OOM > 0 {
			s += fmt.Sprintf(", %d runs lost", t.OOM)
		}
		ends.Append(t.MakespanVsSJF, t.LT10, t.MakespanSD)
		texts = append(texts, s)
	}
	c.Y.Min, c.Y.Max = 0, float64(r.Jobs)
	line, dots := c.Line(ends.XYs, policyColour(ours), 1.6), c.Dots(ends.XYs, policyColour(ours), 3)
	c.Key(ours, line, dots)
	c.XErrors(ends, "standard deviation")
	labels := c.Texts(ends.XYs, texts)
	// The curve rises to the right: below it there is room.
	labels.Offset = vg.Point{X: vg.Points(4), Y: vg.Points(-3)}
	for i := range labels.TextStyle {
		labels.TextStyle[i].XAlign, labels.TextStyle[i].YAlign = text.XLeft, text.YTop
	}
	c.Rule(plotter.XY{X: 1, Y: c.Y.Min}, plotter.XY{X: 1, Y: c.Y.Max}, figure.Ink, "SJF's makespan")
	return figure.Single(c, wide, 12*figure.CM)
}

// strictness orders contracts; none is the widest.
func strictness(t TradeOff) float64 {
	if t.Contract == 0 {
		return math.Inf(1)
	}
	return t.Contract
}
