package main

import (
	"bytes"
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The colours that Okabe and Ito chose to be told apart by everybody (Color
// Universal Design, 2008); policies have those of the experiment's figures.
var (
	ink   = color.RGBA{32, 32, 32, 255}
	light = color.RGBA{205, 205, 205, 255}
	faint = color.RGBA{228, 228, 228, 255}
	white = color.RGBA{255, 255, 255, 255}
)

func colour(variant string) color.Color {
	switch variant {
	case "whole":
		return color.RGBA{150, 150, 150, 255}
	case "shard_half":
		return color.RGBA{230, 159, 0, 255}
	case "mps_half":
		return color.RGBA{204, 121, 167, 255}
	case "tetris":
		return color.RGBA{86, 180, 233, 255}
	case "greedy":
		return color.RGBA{0, 114, 178, 255}
	case "dqn":
		return color.RGBA{213, 94, 0, 255}
	}
	return white
}

// page is a picture: plots below each other with aligned axes, a title above and a
// legend beside them.
type page struct {
	title  string
	plots  []*plot.Plot
	legend *plot.Legend // nil = none
	w, h   vg.Length
}

// render returns the picture as a file of the format, png or svg.
func (s *page) render(format string) ([]byte, error) {
	var canvas vg.CanvasWriterTo
	if format == "png" {
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(s.w, s.h), vgimg.UseDPI(144))}
	} else {
		canvas = vgsvg.New(s.w, s.h)
	}
	c := draw.New(canvas)
	c.SetColor(color.White)
	c.Fill(c.Path())
	const edge = 8 // points
	c = draw.Crop(c, edge, -2*edge, edge, -edge)
	title := letters(12)
	title.YAlign = text.YTop
	c.FillText(title, vg.Point{X: c.Min.X, Y: c.Max.Y}, s.title)
	c = draw.Crop(c, 0, 0, 0, -title.Height(s.title)-edge)
	if s.legend != nil {
		s.legend.Top, s.legend.Left = true, true
		s.legend.TextStyle, s.legend.Padding = letters(9), vg.Points(3)
		box := s.legend.Rectangle(c)
		width := box.Max.X - box.Min.X + 2*edge
		s.legend.Draw(draw.Crop(c, c.Max.X-c.Min.X-width+edge, 0, 0, 0))
		c = draw.Crop(c, 0, -width-edge, 0, 0)
	}
	rows := make([][]*plot.Plot, len(s.plots))
	for i, p := range s.plots {
		rows[i] = []*plot.Plot{p}
	}
	at := plot.Align(rows, draw.Tiles{Rows: len(rows), Cols: 1, PadY: edge / 2}, c)
	for i, p := range s.plots {
		p.Draw(at[i][0])
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// letters is the style of all writing, size in points.
func letters(size float64) text.Style {
	f := plot.DefaultFont
	f.Variant, f.Size = "Sans", vg.Points(size)
	return text.Style{Color: ink, Font: f, Handler: plot.DefaultTextHandler}
}

// newPlot returns an empty plot with a light grid. Labels of axes tell the unit.
func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	style := func(t *text.Style, size float64) {
		l := letters(size)
		l.XAlign, l.YAlign, l.Rotation = t.XAlign, t.YAlign, t.Rotation
		*t = l
	}
	style(&p.Title.TextStyle, 9)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		style(&a.Label.TextStyle, 9)
		style(&a.Tick.Label, 9)
		a.Tick.Marker = plot.TickerFunc(ticks)
		a.Padding, a.Label.Padding, a.Tick.Length = vg.Points(2), vg.Points(3), vg.Points(5)
	}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	g := plotter.NewGrid()
	g.Horizontal.Color, g.Vertical.Color = faint, faint
	p.Add(g)
	return p
}

// ticks are round numbers, four to ten of them.
func ticks(lo, hi float64) []plot.Tick {
	if !(hi > lo) {
		return nil
	}
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/4)))
	for _, m := range []float64{5, 2} {
		if (hi-lo)/(m*step) >= 4 {
			step *= m
			break
		}
	}
	var out []plot.Tick
	for k := math.Ceil(lo / step); k*step <= hi; k++ {
		out = append(out, plot.Tick{Value: k * step, Label: strconv.FormatFloat(k*step, 'g', 6, 64)})
	}
	return out
}

// nominal writes names at 0, 1, … of an axis.
func nominal(a *plot.Axis, names []string) {
	ticks := make([]plot.Tick, len(names))
	for i, n := range names {
		ticks[i] = plot.Tick{Value: float64(i), Label: strings.ReplaceAll(n, "_", "\n")}
	}
	a.Tick.Marker, a.Tick.Length = plot.ConstantTicks(ticks), 0
	a.Min, a.Max = -0.5, float64(len(names))-0.5
}

// bar adds a bar around x.
func bar(p *plot.Plot, x, width, from, to float64, c color.Color) (*plotter.Polygon, error) {
	return box(p, x-width/2, x+width/2, from, to, c)
}

// box adds a rectangle.
func box(p *plot.Plot, left, right, low, high float64, c color.Color) (*plotter.Polygon, error) {
	b, err := plotter.NewPolygon(plotter.XYs{{X: left, Y: low}, {X: left, Y: high}, {X: right, Y: high}, {X: right, Y: low}})
	if err != nil {
		return nil, err
	}
	b.Color, b.LineStyle.Color, b.LineStyle.Width = c, ink, vg.Points(0.4)
	p.Add(b)
	return b, nil
}

// write adds a text a little above a point.
func write(p *plot.Plot, x, y float64, s string) error {
	l, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: x, Y: y}}, Labels: []string{s}})
	if err != nil {
		return err
	}
	l.TextStyle[0] = letters(7)
	l.TextStyle[0].XAlign = text.XCenter
	l.Offset.Y = vg.Points(3)
	p.Add(l)
	return nil
}
