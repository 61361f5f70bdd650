// Package chart draws the pictures of status page and receipt: SVG that stands inside a page, takes
// its colours from the page's style sheet and needs no script. All text is escaped.
package chart

import (
	"bytes"
	_ "embed"
	"html/template"
	"math"
	"strconv"
)

//go:embed chart.html
var source string

// CSS is the style sheet that the pictures expect, with the colours of the pages
// they stand in, for light and dark.
//
//go:embed chart.css
var CSS string

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"num": num, "add": func(a, b float64) float64 { return a + b }, "sub": func(a, b float64) float64 { return a - b },
}).Parse(source))

// num prints a coordinate: two digits are less than a pixel.
func num(v float64) string { return strconv.FormatFloat(math.Round(100*v)/100, 'f', -1, 64) }

func draw(name string, data any) template.HTML {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, data); err != nil {
		// The templates are the program's own, and a buffer takes everything.
		return template.HTML("<p>" + template.HTMLEscapeString(err.Error()) + "</p>")
	}
	return template.HTML(b.String())
}

// Point is a dot of a scatter plot.
type Point struct {
	X, Y  float64
	Label string // shown where the pointer rests
	Bad   bool   // drawn as one that went wrong
}

// Scatter plots measured (Y) against predicted (X) values, both slowdowns ≥
// 1, with the line where they agree.
type Scatter struct {
	Title, Desc, X, Y string
	Points            []Point
}

type tick struct {
	At   float64
	Text string
}

// HTML draws it. A point that is no number is left out.
func (s *Scatter) HTML() template.HTML {
	const size = 300.0
	top := 1.1
	for _, p := range s.Points {
		if v := max(p.X, p.Y); !math.IsInf(v, 0) && !math.IsNaN(v) {
			top = max(top, v)
		}
	}
	step := step((top - 1) / 4)
	top = 1 + step*math.Ceil((top-1)/step-1e-9)
	place := func(v float64) float64 { return size * (v - 1) / (top - 1) }
	type dot struct {
		X, Y  float64
		Label string
		Bad   bool
	}
	d := struct {
		*Scatter
		Size  float64
		Ticks []tick
		Dots  []dot
	}{Scatter: s, Size: size}
	for i := 0; ; i++ {
		v := 1 + float64(i)*step
		if v > top+step/2 {
			break
		}
		d.Ticks = append(d.Ticks, tick{place(v), strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)})
	}
	for _, p := range s.Points {
		x, y := place(max(1, p.X)), size-place(max(1, p.Y))
		if math.IsNaN(x) || math.IsNaN(y) || math.IsInf(x, 0) || math.IsInf(y, 0) {
			continue
		}
		d.Dots = append(d.Dots, dot{x, y, p.Label, p.Bad})
	}
	return draw("scatter", d)
}

// step rounds up to 1, 2 or 5 times a power of ten.
func step(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*p*(1+1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// Bar is one line of a bar chart.
type Bar struct {
	Label string
	Value float64
	Text  string // the value in words, behind the label
	Class string // "good", "bad" or "" = neither
}

// Bars are horizontal bars on one scale, each under its label, so that they are
// read as well on a narrow screen. Negative ones go to the left of a common zero.
type Bars struct {
	Title, Desc string
	Bars        []Bar
}

// HTML draws them.
func (b *Bars) HTML() template.HTML {
	lo, hi := 0.0, 0.0
	for i := range b.Bars {
		if v := b.Bars[i].Value; !math.IsNaN(v) && !math.IsInf(v, 0) {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	if hi == lo {
		hi = lo + 1
	}
	const row = 40.0
	type line struct {
		Bar
		Y, From, Width float64 // percent
	}
	d := struct {
		*Bars
		Height, Zero float64
		Lines        []line
	}{Bars: b, Height: row * float64(len(b.Bars)), Zero: 100 * -lo / (hi - lo)}
	for i, x := range b.Bars {
		v := x.Value
		if math.IsNaN(v) || math.IsInf(v, 0) {
			v = 0
		}
		l := line{Bar: x, Y: row * float64(i), From: d.Zero, Width: 100 * math.Abs(v) / (hi - lo)}
		if v < 0 {
			l.From -= l.Width
		}
		d.Lines = append(d.Lines, l)
	}
	return draw("bars", d)
}
