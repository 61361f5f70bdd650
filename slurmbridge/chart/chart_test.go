package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

const hostile = `</svg><script>alert(1)</script>"'&` + "\x00"

// wellFormed fails the test where the picture isn't XML of its own.
func wellFormed(t *testing.T, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "script" {
			t.Fatalf("a script in %s", svg)
		}
	}
}

func TestHostileText(t *testing.T) {
	s := &Scatter{Title: hostile, Desc: hostile, X: hostile, Y: hostile, Points: []Point{{1.5, 1.2, hostile, true}}}
	wellFormed(t, string(s.HTML()))
	b := &Bars{Title: hostile, Desc: hostile, Bars: []Bar{{hostile, 1, hostile, hostile}}}
	wellFormed(t, string(b.HTML()))
}

func TestScatter(t *testing.T) {
	s := &Scatter{Points: []Point{{1, 1, "", false}, {1.5, 2, "worst", true}, {math.NaN(), 1, "", false}, {1, math.Inf(1), "", false}}}
	got := string(s.HTML())
	for _, want := range []string{`cx="0" cy="300"`, `cx="150" cy="0"`, `dot bad`, `<title>worst</title>`, `>1.5</text>`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
	if n := strings.Count(got, "<circle"); n != 2 {
		t.Errorf("%d points", n)
	}
	// Nothing to show is no reason to break.
	wellFormed(t, string((&Scatter{}).HTML()))
}

func TestBars(t *testing.T) {
	b := &Bars{Bars: []Bar{{"a", 3, "3 h", "good"}, {"b", -1, "-1 h", "bad"}, {"c", math.NaN(), "", ""}}}
	got := string(b.HTML())
	for _, want := range []string{`class="bar good" x="25%" width="75%"`, `class="bar bad" x="0%" width="25%"`, `x1="25%"`, `height="120"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
	wellFormed(t, string((&Bars{}).HTML()))
}

func TestStep(t *testing.T) {
	for v, want := range map[float64]float64{0.03: 0.05, 0.1: 0.1, 0.11: 0.2, 3: 5, 7: 10, 0: 1} {
		if got := step(v); math.Abs(got-want) > 1e-12 {
			t.Errorf("step(%v) = %v, want %v", v, got, want)
		}
	}
}
