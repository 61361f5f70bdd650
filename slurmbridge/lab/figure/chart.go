// Package figure draws: one look for every picture of the project, as PNG or SVG.
package figure

import (
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// The colours that Okabe and Ito chose for readers with any colour vision (Color Universal Design,
// 2008), without the colours that policies have, and greys.
var (
	Orange     = color.RGBA{230, 159, 0, 255}
	Sky        = color.RGBA{86, 180, 233, 255}
	Green      = color.RGBA{0, 158, 115, 255}
	Blue       = color.RGBA{0, 114, 178, 255}
	Vermillion = color.RGBA{213, 94, 0, 255}
	Purple     = color.RGBA{204, 121, 167, 255}

	Ink   = color.RGBA{32, 32, 32, 255}
	Grey  = color.RGBA{150, 150, 150, 255}
	Light = color.RGBA{205, 205, 205, 255}
	White = color.RGBA{255, 255, 255, 255}
	faint = color.RGBA{228, 228, 228, 255}
)

// Chart is one plot and its part of the sheet's legend. What can't be drawn is the
// sheet's error in the end, so that a chart is drawn without asking at each step.
type Chart struct {
	*plot.Plot
	key   plot.Legend
	keyed bool
	err   error
}

// New returns an empty chart with a light grid. Labels of axes name the unit.
func New(title, x, y string) *Chart {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	for _, style := range []*text.Style{
		&p.Title.TextStyle, &p.Legend.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label,
	} {
		style.Font.Variant, style.Font.Size, style.Color = "Sans", vg.Points(9), Ink
	}
	p.Legend.Top = true
	g := plotter.NewGrid()
	g.Horizontal.Color, g.Vertical.Color = faint, faint
	p.Add(g)
	return &Chart{Plot: p, key: plot.NewLegend()}
}

// letters is the style of all writing outside of charts, size in points.
func letters(size float64) text.Style {
	f := plot.DefaultFont
	f.Variant, f.Size = "Sans", vg.Points(size)
	return text.Style{Color: Ink, Font: f, Handler: plot.DefaultTextHandler}
}

// Unlabelled draws an axis's ticks without numbers: another chart's serve both.
func Unlabelled(a *plot.Axis) {
	a.Tick.Marker = plot.TickerFunc(func(lo, hi float64) []plot.Tick {
		out := plot.DefaultTicks{}.Ticks(lo, hi)
		for i := range out {
			out[i].Label = ""
		}
		return out
	})
}

// Nominal writes names at 0, 1, … of an axis, long ones on two lines.
func Nominal(a *plot.Axis, names []string) {
	at := make(plot.ConstantTicks, len(names))
	for i, n := range names {
		at[i] = plot.Tick{Value: float64(i), Label: strings.ReplaceAll(n, "_", "\n")}
	}
	a.Tick.Marker, a.Tick.Length = at, 0
	a.Min, a.Max = -0.5, float64(len(names))-0.5
}

// Key adds an entry to the sheet's legend.
func (c *Chart) Key(name string, of ...plot.Thumbnailer) {
	c.key.Add(name, of...)
	c.keyed = true
}

// TryAdd draws what could be made; err is why it could not be.
func (c *Chart) TryAdd(p plot.Plotter, err error) bool {
	if err != nil {
		c.err = err
		return false
	}
	c.Add(p)
	return true
}

// Box draws a rectangle.
func (c *Chart) Box(left, right, low, high float64, colour color.Color) plot.Thumbnailer {
	b, err := plotter.NewPolygon(plotter.XYs{
		{X: left, Y: low},
		{X: left, Y: high},
		{X: right, Y: high},
		{X: right, Y: low},
	})
	if c.TryAdd(b, err) {
		b.Color, b.LineStyle.Color, b.LineStyle.Width = colour, Ink, vg.Points(0.4)
	}
	return b
}

// Column is a bar of several parts from 0 on, and what stands above it.
type Column struct {
	X, Width float64
	Parts    []Part
	Text     string
}

// Part is one of a column.
type Part struct {
	Height float64
	Colour color.Color
}

// Column draws the column and returns its parts, for a legend. Parts that can't be drawn
// have no height.
func (c *Chart) Column(col Column) []plot.Thumbnailer {
	from := 0.0
	var out []plot.Thumbnailer
	for _, p := range col.Parts {
		to := from + max(0, Finite(p.Height))
		out = append(out, c.Box(col.X-col.Width/2, col.X+col.Width/2, from, to, p.Colour))
		from = to
	}
	if col.Text != "" {
		c.Texts(plotter.XYs{{X: col.X, Y: from}}, []string{col.Text})
	}
	return out
}

// Line draws a line; nil dashes = a solid one.
func (c *Chart) Line(at plotter.XYs, colour color.Color, width float64, dashes ...vg.Length) *plotter.Line {
	l, err := plotter.NewLine(at)
	if !c.TryAdd(l, err) {
		return new(plotter.Line)
	}
	l.Color, l.Width, l.Dashes = colour, vg.Points(width), dashes
	return l
}

// Dots draws a disc at each point.
func (c *Chart) Dots(at plotter.XYs, colour color.Color, radius float64) *plotter.Scatter {
	s, err := plotter.NewScatter(at)
	if !c.TryAdd(s, err) {
		return new(plotter.Scatter)
	}
	s.GlyphStyle = draw.GlyphStyle{Color: colour, Radius: vg.Points(radius), Shape: draw.CircleGlyph{}}
	return s
}

// Steps are the points of a resource's step function over a profile's run alone.
func Steps(p *rlcore.Profile, of func(rlcore.Use) float64) plotter.XYs {
	var out plotter.XYs
	for i, u := range p.Series {
		at := float64(i) * p.PeriodS
		if at >= p.DurationS && i > 0 {
			break
		}
		out = append(out, plotter.XY{X: at, Y: of(u)})
	}
	return append(out, plotter.XY{X: p.DurationS, Y: out[len(out)-1].Y})
}

// Rule draws a dashed line and names it in the legend.
func (c *Chart) Rule(from, to plotter.XY, colour color.Color, name string) {
	c.Key(name, c.Line(plotter.XYs{from, to}, colour, 1.2, vg.Points(5), vg.Points(3)))
}

// Level is a rule y = at over an axis of n names.
func (c *Chart) Level(at float64, n int, colour color.Color, name string) {
	c.Rule(plotter.XY{X: -0.5, Y: at}, plotter.XY{X: float64(n) - 0.5, Y: at}, colour, name)
}

// Area draws the surface between y = 0 and points.
func (c *Chart) Area(points plotter.XYs, colour color.Color) {
	c.Line(points, colour, 0).FillColor = colour
}

// Texts writes each text at its point, the lower edge a little above.
func (c *Chart) Texts(at plotter.XYs, texts []string) *plotter.Labels {
	l, err := plotter.NewLabels(plotter.XYLabels{XYs: at, Labels: texts})
	if !c.TryAdd(l, err) {
		return new(plotter.Labels)
	}
	for i := range l.TextStyle {
		l.TextStyle[i] = letters(8)
		l.TextStyle[i].XAlign = text.XCenter
	}
	l.Offset.Y = vg.Points(3)
	return l
}

// Marks draws rings, if there are any, and names them in the legend: they stand for published
// measurements.
func (c *Chart) Marks(at plotter.XYs, name string) {
	if len(at) > 0 {
		s := c.Dots(at, Ink, 4)
		s.Shape = draw.RingGlyph{}
		c.Key(name, s)
	}
}

// Spread are points that scatter by SD, for error bars along either axis.
type Spread struct {
	plotter.XYs
	SD []float64
}

// Append adds a point. What can't be drawn is 0.
func (s *Spread) Append(x, y, sd float64) {
	s.XYs, s.SD = append(s.XYs, plotter.XY{X: Finite(x), Y: Finite(y)}), append(s.SD, Finite(sd))
}

// YError implements plotter.YErrorer.
func (s Spread) YError(i int) (low, high float64) { return s.SD[i], s.SD[i] }

// XError implements plotter.XErrorer.
func (s Spread) XError(i int) (low, high float64) { return s.SD[i], s.SD[i] }

// YErrors draws vertical error bars.
func (c *Chart) YErrors(s Spread) {
	b, err := plotter.NewYErrorBars(s)
	if c.TryAdd(b, err) {
		b.Color, b.CapWidth = Ink, vg.Points(3)
	}
}

// XErrors draws horizontal error bars.
func (c *Chart) XErrors(s Spread) {
	b, err := plotter.NewXErrorBars(s)
	if c.TryAdd(b, err) {
		b.Color = Grey
	}
}

// Finite is v, or 0 where it can't be drawn.
func Finite(v float64) float64 {
	if !IsFinite(v) {
		return 0
	}
	return v
}

// IsFinite reports whether v can be drawn.
func IsFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// SideBySide lays bars in groups, one of each of names in every group. bar draws one around
// x and returns what the legend shows of it; nil = there is none.
func SideBySide(c *Chart, groups, names []string, bar func(group, name string, x, width float64) []plot.Thumbnailer) {
	width := 0.84 / float64(len(names))
	for k, n := range names {
		var thumbs []plot.Thumbnailer
		for i, g := range groups {
			x := float64(i) + (float64(k)-float64(len(names)-1)/2)*width
			if drawn := bar(g, n, x, width); drawn != nil {
				thumbs = drawn[:1]
			}
		}
		if thumbs != nil {
			c.Key(n, thumbs...)
		}
	}
	Nominal(&c.X, groups)
	c.Y.Min = 0
}
