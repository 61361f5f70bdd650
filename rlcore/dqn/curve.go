package dqn

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// ErrNoCurve says that there is nothing to draw.
var ErrNoCurve = errors.New("there is no round of training to draw")

// Curve draws a training: the makespans of the episodes, below them loss and
// exploration, by round. The path's extension says as what: .png or .svg. It
// returns ErrNoCurve where points is empty.
func Curve(path string, points []RoundStats) error {
	if len(points) == 0 {
		return fmt.Errorf("curve: %w", ErrNoCurve)
	}
	const w, h = 20 * vg.Centimeter, 18 * vg.Centimeter
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(w, h), vgimg.UseDPI(144))}
	case ".svg":
		canvas = vgsvg.New(w, h)
	default:
		return fmt.Errorf("curve: %s: a picture ends in .png or .svg, not %q", path, ext)
	}
	rows := make([][]*plot.Plot, 0, 3)
	for _, p := range panels {
		drawn, err := p.draw(points)
		if err != nil {
			return fmt.Errorf("curve: draw %s: %w", p.label, err)
		}
		rows = append(rows, []*plot.Plot{drawn})
	}
	c := draw.New(canvas)
	c.SetColor(color.White)
	c.Fill(c.Path())
	at := plot.Align(rows, draw.Tiles{Rows: len(rows), Cols: 1, PadY: 10}, draw.Crop(c, 8, -16, 8, -8))
	for i := range rows {
		rows[i][0].Draw(at[i][0])
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return fmt.Errorf("curve: draw: %w", err)
	}
	if err := renameio.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("curve: write %s: %w", path, err)
	}
	return nil
}

// series is one figure of a Point by round.
type series struct {
	name   string
	colour color.RGBA
	dots   bool // measured in some rounds only: 0 where it wasn't
	of     func(p *RoundStats) float64
}

// panel is a plot of the curve.
type panel struct {
	label string
	lines []series
}

// The colours are Okabe and Ito's, which everybody can tell apart.
var panels = []panel{
	{"makespan ÷ one after the other", []series{
		{"training, with random choices", color.RGBA{86, 180, 233, 255}, false, func(p *RoundStats) float64 { return p.Train }},
		{"validation", color.RGBA{213, 94, 0, 255}, true, func(p *RoundStats) float64 { return p.Check }},
	}},
	{"loss, Huber", []series{{"loss", color.RGBA{0, 114, 178, 255}, false, func(p *RoundStats) float64 { return p.Loss }}}},
	{"epsilon", []series{{"chance of a random choice", color.RGBA{0, 158, 115, 255}, false, func(p *RoundStats) float64 { return p.Eps }}}},
}

func (pan *panel) draw(points []RoundStats) (*plot.Plot, error) {
	p := plot.New()
	for _, st := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		st.Font.Variant, st.Font.Size = "Sans", vg.Points(9)
	}
	p.X.Label.Text, p.Y.Label.Text = "round", pan.label
	p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{225}, color.Gray{225}
	p.Add(grid)
	for _, s := range pan.lines {
		var at plotter.XYs
		for i := range points {
			y := s.of(&points[i])
			if math.IsNaN(y) || math.IsInf(y, 0) || s.dots && y == 0 {
				continue
			}
			at = append(at, plotter.XY{X: float64(points[i].Round), Y: y})
		}
		if len(at) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(at)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = s.colour, vg.Points(1.4)
		dots.GlyphStyle = draw.GlyphStyle{Color: s.colour, Radius: vg.Points(2.5), Shape: draw.CircleGlyph{}}
		p.Add(line)
		if s.dots || len(at) == 1 {
			p.Add(dots)
			p.Legend.Add(s.name, line, dots)
		} else {
			p.Legend.Add(s.name, line)
		}
	}
	// The same rounds in every panel, whatever was measured in which.
	p.X.Min, p.X.Max = float64(points[0].Round), float64(points[len(points)-1].Round)
	if room := (p.Y.Max - p.Y.Min) / 4; room > 0 && !math.IsInf(room, 0) {
		p.Y.Max += room // for the legend
	}
	return p, nil
}
