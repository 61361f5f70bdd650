// Package chart draws the charts of the status page and the manual as inline SVG without scripts. Their colours are
// from the page's style sheet; all text is escaped.
package chart

import (
	"bytes"
	_ "embed"
	"html/template"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

//go:embed chart.html
var source string

// CSS is the style sheet of the charts, with the colours of the pages around them, light and dark.
//
//go:embed chart.css
var CSS string

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"num":  func(v float64) string { return format(v, 2) },         // less than a pixel
	"css":  func() template.CSS { return template.CSS(fileCSS()) }, //nolint:gosec // our own
	"sub":  func(a, b float64) float64 { return a - b },
	"add":  func(a, b int) int { return a + b },
	"half": func(height int) int { return height/2 + 4 },
}).Parse(source))

var (
	variable = regexp.MustCompile(`--([a-z-]+):([^;}]+)`)
	use      = regexp.MustCompile(`var\(--([a-z-]+)\)`)
)

// fileCSS is the timeline's part of CSS for a file of its own, light and dark. Its colours are written out: librsvg,
// say, knows no variables.
func fileCSS() string {
	_, rules, _ := strings.Cut(CSS, "\n.time{")
	rules, _, _ = strings.Cut(".time{"+rules, "\n@media")
	light, dark, _ := strings.Cut(CSS, "@media(prefers-color-scheme:dark)")
	dark, _, _ = strings.Cut(dark, "\n*{")
	in := func(colours string) string {
		values := map[string]string{}
		for _, m := range variable.FindAllStringSubmatch(colours, -1) {
			values[m[1]] = m[2]
		}
		return use.ReplaceAllStringFunc(rules, func(s string) string { return values[use.FindStringSubmatch(s)[1]] })
	}
	return "\n" + in(light) + "\n@media(prefers-color-scheme:dark){\n" + in(dark) + "}\n"
}

// format prints a number with at most so many decimals.
func format(v float64, digits int) string {
	p := math.Pow10(digits)
	return strconv.FormatFloat(math.Round(p*v)/p, 'f', -1, 64)
}

func draw(name string, data any) template.HTML {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, data); err != nil {
		// This can't happen: the templates are our own, and writing to a buffer does not fail.
		return template.HTML("<p>" + template.HTMLEscapeString(err.Error()) + "</p>")
	}
	return template.HTML(b.String())
}

type tick struct {
	At   float64
	Text string
}

// Point is a run in the chart of slowdowns.
type Point struct {
	X, Y  float64
	Label string // the tooltip
	Bad   bool   // highlighted
}

// Slowdowns plots measured (Y) against predicted (X) slowdowns, with the line X = Y. It returns "" without points.
func Slowdowns(points []Point) template.HTML {
	if len(points) == 0 {
		return ""
	}
	const size = 300.0
	top := 1.1
	for _, p := range points {
		top = max(top, p.X, p.Y)
	}
	// At most four steps, each 1, 2 or 5 times a power of ten.
	step := math.Pow(10, math.Floor(math.Log10((top-1)/4)))
	for _, times := range []float64{2, 2.5, 2} {
		if 4*step < (top-1)*(1-1e-9) {
			step *= times
		}
	}
	steps := math.Ceil((top-1)/step - 1e-9)
	place := func(v float64) float64 { return size * (max(1, v) - 1) / (steps * step) }
	var ticks []tick
	for i := range int(steps) + 1 {
		v := 1 + float64(i)*step
		ticks = append(ticks, tick{place(v), format(v, 3)})
	}
	dots := slices.Clone(points)
	for i := range dots {
		dots[i].X = place(dots[i].X)
		dots[i].Y = size - place(dots[i].Y)
	}
	return draw("slowdowns", struct {
		Size  float64
		Ticks []tick
		Dots  []Point
	}{size, ticks, dots})
}
