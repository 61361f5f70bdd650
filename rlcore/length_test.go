package rlcore

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// What is left agrees with the mean over drawn runs that got as far.
func TestLeft(t *testing.T) {
	p := flat("a", 600, 100)
	p.DurationSD = 500
	sigma := math.Sqrt(math.Log1p(500.0 * 500 / 600 / 600))
	rnd := rand.New(rand.NewPCG(1, 2))
	runs := make([]float64, 400_000)
	for i := range runs {
		runs[i] = 600 * math.Exp(sigma*rnd.NormFloat64()-sigma*sigma/2)
	}
	for _, c := range [][2]float64{{0, 0}, {0, 900}, {300, 0}, {1200, 0}, {1200, 1800}, {3000, 0}} {
		done, limit := c[0], c[1]
		sum, n := 0.0, 0.0
		for _, x := range runs {
			if x > done {
				if limit > 0 {
					x = min(x, limit)
				}
				sum, n = sum+x-done, n+1
			}
		}
		if got, want := p.Left(done, limit), sum/n; math.Abs(got-want) > .03*want {
			t.Errorf("%v s of a limit of %v s done: %v left, drawn runs have %v", done, limit, got, want)
		}
	}
	if got := p.Left(0, 0); math.Abs(got-600) > 1e-9 {
		t.Errorf("the mean is %v", got)
	}
	// A run that has gone on for long is a long one.
	if long, short := p.Left(3000, 0), p.Left(600, 0); long < short {
		t.Errorf("%v left after 3000 s, %v after 600 s", long, short)
	}
}

// What is left of a run whose application takes a minute or an hour is known from the runs that got as far.
func TestLeftOfTwoLengths(t *testing.T) {
	p := flat("a", 1830, 100)
	p.DurationSD = 1770
	for range MostLengths / 2 {
		p.LengthsS = append(p.LengthsS, 60, 3600)
	}
	for _, c := range [][3]float64{{0, 0, 1830}, {0, 600, 330}, {100, 0, 3500}, {1800, 0, 1800}, {3500, 3550, 50}} {
		if got := p.Left(c[0], c[1]); math.Abs(got-c[2]) > 1e-9 {
			t.Errorf("%v s of a limit of %v s done: %v left, want %v", c[0], c[1], got, c[2])
		}
	}
	// Beyond all of them the distribution counts, and so it does where few are known.
	few := *p
	few.LengthsS = p.LengthsS[:6]
	bare := *p
	bare.LengthsS = nil
	if got, want := p.Left(4000, 0), bare.Left(4000, 0); got != want {
		t.Errorf("after all known runs %v is left, want %v", got, want)
	}
	if got, want := few.Left(100, 0), bare.Left(100, 0); got != want {
		t.Errorf("with three longer runs %v is left, want %v", got, want)
	}
}

// The mean over known runs may round to more than the limit leaves.
func TestLeftWithinTheLimit(t *testing.T) {
	p := flat("a", 1, 1)
	p.DurationSD, p.LengthsS = 1e-12, []float64{1, 1, 1, 1, 1, 1}
	const done = 0.5000000000000001
	if left := p.Left(done, 1); left > 1-done {
		t.Errorf("%v is left of a limit of 1 after %v", left, done)
	}
}

func TestLeftIsAnAmount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := flat("a", rapid.Float64Range(1e-3, 1e9).Draw(t, "mean"), 1)
		p.DurationSD = rapid.SampledFrom([]float64{0, 1e-12, p.DurationS / 100, p.DurationS, 1e3 * p.DurationS, math.MaxFloat64, math.Inf(1), math.NaN()}).Draw(t, "SD")
		p.LengthsS = rapid.SliceOfN(rapid.Float64Range(1e-3, 1e9), 0, MostLengths).Draw(t, "lengths")
		done, limit := rapid.Float64Range(0, 1e10).Draw(t, "done"), rapid.SampledFrom([]float64{0, 1, 3600, 1e9}).Draw(t, "limit")
		left := p.Left(done, limit)
		if !(left >= 0) || math.IsInf(left, 1) || limit > 0 && left > max(0, limit-done) {
			t.Fatalf("%v left", left)
		}
	})
}

// On plain Slurm a known job is expected to take its application's time, an unknown one its limit, and one without either
// may take for ever.
func TestPlainly(t *testing.T) {
	known := &Profile{App: "a", DurationS: 100, DurationSD: 50, PeriodS: 100, Series: []Use{{}}}
	for name, c := range map[string]struct {
		job    Job
		takes  float64
		varies bool
	}{
		"known":         {Job{Profile: flat("a", 100, 1)}, 100, false},
		"known to vary": {Job{Profile: known}, 100, true},
		"its limit":     {Job{Profile: flat("a", 100, 1), LimitS: 60}, 60, false},
		"unknown":       {Job{LimitS: 60}, 60, false},
		"neither":       {Job{}, math.Inf(1), false},
	} {
		j := c.job.Plainly()
		if j.TakesS != c.takes && math.Abs(j.TakesS-c.takes) > 1e-6 || (j.Spread > 0) != c.varies {
			t.Errorf("%s: it takes %v s, and varies by %v", name, j.TakesS, j.Spread)
		}
	}
}
