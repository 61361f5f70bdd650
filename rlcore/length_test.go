package rlcore

import (
	"math"
	"math/rand/v2"
	"slices"
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
	of := func(n int) *Profile {
		p := flat("a", 1830, 100)
		p.DurationSD = 1770
		for range n {
			p.Past = append(p.Past, Past{SoloS: 60}, Past{SoloS: 3600})
		}
		return p.Foretold("", 0)
	}
	p := of(20)
	short := p.Left(0, 0) // of all: the last one counts most
	for _, c := range [][3]float64{
		{0, 600, 60 + (600-60)*(short-60)/3540},
		{100, 0, 3500},
		{1800, 0, 1800},
		{3500, 3550, 50},
	} {
		if got := p.Left(c[0], c[1]); math.Abs(got-c[2]) > 1e-6 {
			t.Errorf("%v s of a limit of %v s done: %v left, want %v", c[0], c[1], got, c[2])
		}
	}
	// Beyond all of them the distribution counts, and so it does where few are known.
	for p, done := range map[*Profile]float64{p: 4000, of(3): 100} {
		bare := *p
		bare.lengths = nil
		if got, want := p.Left(done, 0), bare.Left(done, 0); got != want {
			t.Errorf("after %v s %v is left, want %v", done, got, want)
		}
	}
}

// A user's last runs with the limit say more than older ones, than others' and than those with other limits.
func TestForetold(t *testing.T) {
	p := flat("a", 1000, 100)
	p.DurationSD = 900
	if q := p.Foretold("ann", 3600); q != p {
		t.Errorf("without past runs %+v is foretold", q)
	}
	const hour = 3600.0
	runs := func(n int, soloS, limitS float64, user string) []Past {
		return slices.Repeat([]Past{{soloS, limitS, user}}, n)
	}
	hers := runs(10, 600, hour, "ann")
	for name, c := range map[string]struct {
		past        []Past
		least, most float64
	}{
		"her own":                       {hers, 600, 600},
		"her last ones":                 {slices.Concat(runs(50, 100, hour, "ann"), runs(20, 1000, hour, "ann")), 700, 1000},
		"others' where she has none":    {runs(5, 600, hour, "bob"), 600, 600},
		"others' beside hers":           {slices.Concat(hers, runs(50, 6000, hour, "bob")), 600, 2000},
		"other limits where none is":    {runs(5, 600, 2*hour, "ann"), 600, 600},
		"the nearer limit":              {slices.Concat(runs(5, 600, 2*hour, "ann"), runs(5, 60_000, 200*hour, "ann")), 600, 700},
		"other limits beside the limit": {slices.Concat(hers, runs(90, 6000, 2*hour, "ann")), 600, 2000},
	} {
		p.Past = c.past[max(0, len(c.past)-MostPast):]
		q := p.Foretold("ann", hour)
		if m := q.DurationS; m < c.least-1e-6 || m > c.most+1e-6 {
			t.Errorf("%s: %.0f s, want %v to %v", name, m, c.least, c.most)
		}
		if err := q.Validate(); err != nil || q.Past != nil || math.Abs(q.PeriodS/q.DurationS-p.PeriodS/p.DurationS) > 1e-9 {
			t.Errorf("%s: %+v, %v", name, q, err)
		}
	}
	// Limits that are no time limits, as a file may hold them, say nothing.
	p.Past = []Past{{600, 1e300, "ann"}, {600, 1e-300, "ann"}}
	if q := p.Foretold("ann", hour); q != p {
		t.Errorf("by limits that are far from all others %+v is foretold", q)
	}
	// What ends in a simulation counts like what is kept.
	p.Past = runs(3, 600, hour, "ann")
	a := p.Foretold("ann", hour, Past{1200, hour, "ann"})
	p.Past = append(p.Past, Past{1200, hour, "ann"})
	if b := p.Foretold("ann", hour); a.DurationS != b.DurationS || a.DurationSD != b.DurationSD {
		t.Errorf("%v ± %v, and kept %v ± %v", a.DurationS, a.DurationSD, b.DurationS, b.DurationSD)
	}
}

// A profile says how well its runs are foretold: well by limits that tell their lengths, badly without.
func TestForetelling(t *testing.T) {
	p := flat("a", 1000, 100)
	p.DurationSD = 900
	if f := p.Foretelling(); f.Runs != 0 {
		t.Errorf("of no runs %+v", f)
	}
	for range 30 {
		p.Past = append(p.Past, Past{SoloS: 100, LimitS: 3600}, Past{SoloS: 10_000, LimitS: 86400})
	}
	told := p.Foretelling()
	for i := range p.Past {
		p.Past[i].LimitS = 86400
	}
	if untold := p.Foretelling(); told.Runs != 59 || told.Within2 < .8 || untold.Within2 > .2 || untold.Longer < .4 ||
		untold.Longer > .6 {
		t.Errorf("with limits %+v, without %+v", told, untold)
	}
}

// So many of the runs that got as far are no longer than the quantile says, drawn or known.
func TestQuantile(t *testing.T) {
	p := flat("a", 600, 100)
	p.DurationSD = 900
	drawn := *p
	for i := range MostPast {
		drawn.Past = append(drawn.Past, Past{SoloS: p.quantile((float64(i)+.5)/MostPast, 0)})
	}
	for name, q := range map[string]*Profile{"distribution": p, "known runs": drawn.Foretold("", 0)} {
		for _, done := range []float64{0, 200, 600, 3000, 1e5, 1e9} {
			for _, part := range []float64{0, .1, .5, .9} {
				s := q.quantile(part, done)
				if longer := q.longer(s*(1+1e-9), done); s < done || math.Abs(1-part-longer) > .15 {
					t.Errorf("%s: after %v s %v are no longer than %v, want %v", name, done, 1-longer, s, part)
				}
			}
		}
	}
	if s := flat("b", 600, 100).quantile(.1, 300); s != 600 {
		t.Errorf("runs that take equally long take %v s", s)
	}
}

func TestLeftIsAnAmount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := flat("a", rapid.Float64Range(1e-3, 1e9).Draw(t, "mean"), 1)
		p.DurationSD = rapid.SampledFrom([]float64{
			0, 1e-200, 1e-12, p.DurationS / 100, p.DurationS, 1e3 * p.DurationS,
			math.MaxFloat64, math.Inf(1), math.NaN(),
		}).Draw(t, "SD")
		for _, s := range rapid.SliceOfN(rapid.Float64Range(1e-3, 1e9), 0, MostPast).Draw(t, "past") {
			p.Past = append(p.Past, Past{SoloS: s, LimitS: rapid.SampledFrom([]float64{0, 3600, 86400}).Draw(t, "its limit")})
		}
		p = p.Foretold("", rapid.SampledFrom([]float64{0, 3600}).Draw(t, "limit of the run"))
		done, limit := rapid.OneOf(rapid.Float64Range(0, 1e10), rapid.Just(p.DurationS)).Draw(t, "done"),
			rapid.SampledFrom([]float64{0, 1, 3600, 1e9}).Draw(t, "limit")
		left := p.Left(done, limit)
		if !(left >= 0) || math.IsInf(left, 1) || limit > 0 && left > max(0, limit-done) {
			t.Fatalf("%v left", left)
		}
		if part := p.longer(2*done, done); !(part >= 0 && part <= 1) {
			t.Fatalf("%v are longer", part)
		}
	})
}

// On plain Slurm a known job is expected to take its application's time, an unknown one its limit, and one without
// either may take for ever.
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
