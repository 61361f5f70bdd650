package main

import (
	"errors"
	"fmt"
	"image/color"

	"gonum.org/v1/plot/plotter"

	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
)

// errNoCurve says that there is nothing to draw.
var errNoCurve = errors.New("there is no round of training to draw")

// series is one figure of a round.
type series struct {
	name   string
	colour color.RGBA
	dots   bool // measured in some rounds only: 0 where it wasn't
	of     func(p *dqn.RoundStats) float64
}

// panel is a chart of the curve.
type panel struct {
	label string
	lines []series
}

var panels = []panel{
	{"makespan ÷ one after the other", []series{
		{"training, with random choices", figure.Sky, false, func(p *dqn.RoundStats) float64 { return p.Train }},
		{"validation", figure.Vermillion, true, func(p *dqn.RoundStats) float64 { return p.Check }},
	}},
	{"loss, Huber", []series{{"loss", figure.Blue, false, func(p *dqn.RoundStats) float64 { return p.Loss }}}},
	{"epsilon", []series{{"chance of a random choice", figure.Green, false, func(p *dqn.RoundStats) float64 { return p.Eps }}}},
}

// drawCurve draws a training: the makespans of the episodes, below them loss and
// exploration, by round. The path's extension says as what. It returns errNoCurve where
// there are no rounds.
func drawCurve(path string, rounds []dqn.RoundStats) error {
	if len(rounds) == 0 {
		return fmt.Errorf("curve: %w", errNoCurve)
	}
	s := &figure.Sheet{W: 20 * figure.CM, H: 18 * figure.CM}
	for _, p := range panels {
		s.Rows = append(s.Rows, []*figure.Chart{p.chart(rounds)})
	}
	if err := s.Write(path); err != nil {
		return fmt.Errorf("curve: %w", err)
	}
	return nil
}

func (p *panel) chart(rounds []dqn.RoundStats) *figure.Chart {
	c := figure.New("", "round", p.label)
	for _, s := range p.lines {
		var at plotter.XYs
		for i := range rounds {
			y := s.of(&rounds[i])
			if !figure.IsFinite(y) || s.dots && y == 0 {
				continue
			}
			at = append(at, plotter.XY{X: float64(rounds[i].Round), Y: y})
		}
		if len(at) == 0 {
			continue
		}
		line := c.Line(at, s.colour, 1.4)
		if s.dots || len(at) == 1 {
			c.Legend.Add(s.name, line, c.Dots(at, s.colour, 2.5))
		} else {
			c.Legend.Add(s.name, line)
		}
	}
	// All panels show the same rounds.
	c.X.Min, c.X.Max = float64(rounds[0].Round), float64(rounds[len(rounds)-1].Round)
	if room := (c.Y.Max - c.Y.Min) / 4; room > 0 && figure.IsFinite(room) {
		c.Y.Max += room // for the legend
	}
	return c
}
