package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
)

// width of what is written to: a terminal's, else 80 columns.
func width(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 {
			return cols
		}
	}
	return 80
}

// Parts of a chart, columns and rows.
const (
	labels    = 14 // left of it
	chartRows = 3
	leastCols = 10
	mostCols  = 200
)

// drawProfile draws the four resources over time, columns wide.
func drawProfile(w io.Writer, p *rlcore.Profile, columns int) {
	n := min(max(columns-labels-1, leastCols), mostCols)
	mean, peak := p.Mean(), p.Peak()
	for _, r := range cli.Resources(p) {
		values := make([]float64, n)
		for i := range values {
			values[i] = most(p, r.Of, float64(i)/float64(n), float64(i+1)/float64(n))
		}
		for row, text := range chart(values, r.Top, chartRows) {
			label := ""
			switch row {
			case 0:
				label = fmt.Sprintf("%.0f %s", r.Top, r.Unit)
			case chartRows - 1:
				label = r.Name
			}
			fmt.Fprintf(w, "%*s %s\n", labels-1, label, strings.TrimRight(text, " "))
		}
		fmt.Fprintf(w, "%*s mean %.0f, peak %.0f %s\n", labels-1, "", r.Of(mean), r.Of(peak), r.Unit)
	}
	end := fmt.Sprintf("%.0f s", p.DurationS)
	fmt.Fprintf(w, "%*s 0%*s\n", labels-1, "", n-1, end)
}

// most is the largest value between two parts of the run, 0 to 1: a peak must not fall
// between two columns.
func most(p *rlcore.Profile, of func(rlcore.Use) float64, from, to float64) float64 {
	m := 0.0
	last := p.Index(math.Nextafter(to*p.DurationS, 0))
	for i := p.Index(from * p.DurationS); i <= last; i++ {
		m = max(m, of(p.Series[i]))
	}
	return m
}

// chart draws values of 0 to top as bars of eighths of a row, the top row first.
func chart(values []float64, top float64, rows int) []string {
	bars := []rune(" ▁▂▃▄▅▆▇█")
	out := make([]string, rows)
	for row := range out {
		var line strings.Builder
		for _, v := range values {
			k := 0
			if top > 0 {
				k = int(math.Round(v/top*float64(8*rows))) - 8*(rows-1-row)
			}
			line.WriteRune(bars[min(max(k, 0), 8)])
		}
		out[row] = line.String()
	}
	return out
}
