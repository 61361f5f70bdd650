package experiment

import (
	"bytes"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// sheet is a picture: plots in rows and columns whose axes are aligned, a title
// above and a legend beside them.
type sheet struct {
	title  string
	plots  [][]*plot.Plot // rows of equal length
	legend *plot.Legend   // nil = none
	w, h   vg.Length
}

// dpi of PNGs.
const dpi = 144

// render returns the picture as a file of the format, png or svg.
func (s *sheet) render(format string) ([]byte, error) {
	var canvas vg.CanvasWriterTo
	if format == "png" {
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(s.w, s.h), vgimg.UseDPI(dpi))}
	} else {
		canvas = vgsvg.New(s.w, s.h)
	}
	c := draw.New(canvas)
	c.SetColor(color.White)
	c.Fill(c.Path())
	const edge = 8 // points
	c = draw.Crop(c, edge, -2*edge, edge, -edge)
	if s.title != "" {
		st := letters(13)
		st.YAlign = text.YTop
		c.FillText(st, vg.Point{X: c.Min.X, Y: c.Max.Y}, s.title)
		c = draw.Crop(c, 0, 0, 0, -st.Height(s.title)-edge)
	}
	if s.legend != nil {
		s.legend.Top, s.legend.Left = true, true
		s.legend.TextStyle, s.legend.Padding = letters(9), vg.Points(3)
		box := s.legend.Rectangle(c)
		width := box.Max.X - box.Min.X + 2*edge
		s.legend.Draw(draw.Crop(c, c.Max.X-c.Min.X-width+edge, 0, 0, 0))
		c = draw.Crop(c, 0, -width-edge, 0, 0)
	}
	tiles := draw.Tiles{Rows: len(s.plots), Cols: len(s.plots[0]), PadX: 3 * edge, PadY: edge}
	at := plot.Align(s.plots, tiles, c)
	for i, row := range s.plots {
		for k, p := range row {
			p.Draw(at[i][k])
		}
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
	style(&p.Title.TextStyle, 10)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		style(&a.Label.TextStyle, 9)
		style(&a.Tick.Label, 9)
		a.Padding, a.Label.Padding, a.Tick.Length = vg.Points(2), vg.Points(3), vg.Points(5)
	}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	g := plotter.NewGrid()
	g.Horizontal.Color, g.Vertical.Color = faint, faint
	p.Add(g)
	return p
}

// oneOf is a sheet of a single plot.
func oneOf(p *plot.Plot, legend *plot.Legend, w, h vg.Length) *sheet {
	s := &sheet{title: p.Title.Text, plots: [][]*plot.Plot{{p}}, legend: legend, w: w, h: h}
	p.Title.Text = ""
	return s
}

// nominal writes names at 0, 1, … of an axis, long ones on two lines.
func nominal(a *plot.Axis, names []string) {
	ticks := make([]plot.Tick, len(names))
	for i, n := range names {
		ticks[i] = plot.Tick{Value: float64(i), Label: strings.ReplaceAll(n, "_", "\n")}
	}
	a.Tick.Marker, a.Tick.Length = plot.ConstantTicks(ticks), 0
	a.Min, a.Max = -0.5, float64(len(names))-0.5
}

// bar is a rectangle from y = from to y = to around x.
func bar(x, width, from, to float64, c color.Color) (*plotter.Polygon, error) {
	b, err := plotter.NewPolygon(plotter.XYs{{X: x - width/2, Y: from}, {X: x - width/2, Y: to}, {X: x + width/2, Y: to}, {X: x + width/2, Y: from}})
	if err != nil {
		return nil, err
	}
	b.Color, b.LineStyle.Color, b.LineStyle.Width = c, ink, vg.Points(0.4)
	return b, nil
}

// rule is a dashed line y = at over an axis of n names.
func rule(at float64, n int, c color.Color) (*plotter.Line, error) {
	l, err := plotter.NewLine(plotter.XYs{{X: -0.5, Y: at}, {X: float64(n) - 0.5, Y: at}})
	if err != nil {
		return nil, err
	}
	l.Color, l.Width, l.Dashes = c, vg.Points(1.2), []vg.Length{vg.Points(5), vg.Points(3)}
	return l, nil
}

// write puts a text at a point, its lower edge a little above.
func write(at plotter.XYs, texts []string) (*plotter.Labels, error) {
	l, err := plotter.NewLabels(plotter.XYLabels{XYs: at, Labels: texts})
	if err != nil {
		return nil, err
	}
	for i := range l.TextStyle {
		l.TextStyle[i] = letters(8)
		l.TextStyle[i].XAlign = text.XCenter
	}
	l.Offset.Y = vg.Points(3)
	return l, nil
}

// marks are the diamonds that stand for the thesis's figures everywhere.
func marks(at plotter.XYs) (*plotter.Scatter, error) {
	s, err := plotter.NewScatter(at)
	if err != nil {
		return nil, err
	}
	s.GlyphStyle = draw.GlyphStyle{Color: ink, Radius: vg.Points(4), Shape: diamond{}}
	return s, nil
}

// diamond is a white diamond with a dark edge.
type diamond struct{}

// DrawGlyph implements draw.GlyphDrawer.
func (diamond) DrawGlyph(c *draw.Canvas, sty draw.GlyphStyle, at vg.Point) {
	r := sty.Radius
	pts := []vg.Point{{X: at.X - r, Y: at.Y}, {X: at.X, Y: at.Y + r}, {X: at.X + r, Y: at.Y}, {X: at.X, Y: at.Y - r}}
	c.FillPolygon(color.White, pts)
	c.StrokeLines(draw.LineStyle{Color: sty.Color, Width: vg.Points(1.2)}, append(slices.Clip(pts), pts[0]))
}

// finite is v, or 0 where it can't be drawn.
func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}
