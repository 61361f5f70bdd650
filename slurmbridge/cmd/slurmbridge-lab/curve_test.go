package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
)

func rounds() []dqn.RoundStats {
	var out []dqn.RoundStats
	for i := 1; i <= 10; i++ {
		p := dqn.RoundStats{Round: i, Train: 1 / float64(i), Loss: 0.3 / float64(i), Eps: 0.3 - 0.02*float64(i)}
		if i%5 == 0 {
			p.Check = 0.9 / float64(i)
		}
		out = append(out, p)
	}
	return out
}

func drawn(t *testing.T, name string, p []dqn.RoundStats) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := drawCurve(path, p); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestCurvePNG(t *testing.T) {
	img, err := png.Decode(bytes.NewReader(drawn(t, "curve.PNG", rounds())))
	if err != nil {
		t.Fatal(err)
	}
	// Every series is there, in its colour.
	seen := map[[3]uint32]bool{}
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, b, _ := img.At(x, y).RGBA()
			seen[[3]uint32{r >> 8, g >> 8, b >> 8}] = true
		}
	}
	for _, pan := range panels {
		for _, s := range pan.lines {
			if !seen[[3]uint32{uint32(s.colour.R), uint32(s.colour.G), uint32(s.colour.B)}] {
				t.Errorf("%s isn't drawn", s.name)
			}
		}
	}
}

// writing is all text of an SVG.
func writing(t *testing.T, data []byte) string {
	t.Helper()
	d, out := xml.NewDecoder(bytes.NewReader(data)), ""
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := tok.(xml.CharData); ok {
			out += string(c) + "\n"
		}
	}
}

func TestCurveSVG(t *testing.T) {
	text := writing(t, drawn(t, "curve.svg", rounds()))
	for _, w := range []string{"round", "makespan ÷ one after the other", "validation", "loss, Huber", "epsilon", "chance of a random choice"} {
		if !strings.Contains(text, w) {
			t.Errorf("%q isn't written there", w)
		}
	}
}

// A training that was broken off at once, or one whose figures went astray, is
// drawn as far as it can be.
func TestCurveOfLittle(t *testing.T) {
	never := rounds()[:1]
	if text := writing(t, drawn(t, "a.svg", never)); strings.Contains(text, "validation") || !strings.Contains(text, "training") {
		t.Errorf("no validation yet, but the curve says %q", text)
	}
	astray := rounds()
	astray[3].Loss, astray[4].Train = math.NaN(), math.Inf(1)
	writing(t, drawn(t, "b.svg", astray))
	writing(t, drawn(t, "c.svg", []dqn.RoundStats{{Round: 1, Loss: math.NaN(), Train: math.NaN(), Eps: math.NaN()}}))
}

func TestCurveErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "no", "such", "curve.png")
	if err := drawCurve(path, rounds()); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v doesn't name %s", err, path)
	}
	if err := drawCurve("curve.pdf", rounds()); err == nil || !strings.Contains(err.Error(), ".pdf") {
		t.Errorf("error %v", err)
	}
	if err := drawCurve("curve.png", nil); !errors.Is(err, errNoCurve) {
		t.Errorf("error %v", err)
	}
}
