package rlcore

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"

	"gonum.org/v1/gonum/stat"
	"pgregory.net/rapid"
)

// What is left agrees with the mean over drawn runs that got as far.
func TestLeftIsTheMeanOfThoseThatGotAsFar(t *testing.T) {
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
	must.Near(t, p.Left(0, 0), 600, 1e-9, "the mean")
	// A run that has gone on for long is a long one.
	if long, short := p.Left(3000, 0), p.Left(600, 0); long < short {
		t.Errorf("%v left after 3000 s, %v after 600 s", long, short)
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
		return slices.Repeat([]Past{{SoloS: soloS, LimitS: limitS, User: user}}, n)
	}
	mixed := func(runs ...[]Past) []Past { // in turn
		out := make([]Past, 0, MostPast)
		for i := range runs[0] {
			for _, list := range runs {
				out = append(out, list[i])
			}
		}
		return out
	}
	for name, c := range map[string]struct {
		past        []Past
		least, most float64 // of the mean
	}{
		"her own":                    {runs(40, 600, hour, "ann"), 590, 630},
		"her last ones":              {slices.Concat(runs(50, 100, hour, "ann"), runs(20, 1000, hour, "ann")), 600, 1100},
		"others' where she has none": {runs(40, 600, hour, "bob"), 590, 680},
		"hers beside others'":        {mixed(runs(40, 600, hour, "ann"), runs(40, 6000, hour, "bob")), 550, 1200},
		"what limits say":            {mixed(runs(40, 600, hour, "bob"), runs(40, 6000, 10*hour, "bob")), 500, 800},
		"at most the limit":          {runs(40, 60_000, 24*hour, "ann"), hour, hour},
	} {
		p.Past = c.past
		q := p.Foretold("ann", hour)
		if m := q.DurationS; m < c.least || m > c.most {
			t.Errorf("%s: %.0f s, want %v to %v", name, m, c.least, c.most)
		}
		if err := q.Validate(); err != nil || q.Past != nil || math.Abs(q.PeriodS/q.DurationS-p.PeriodS/p.DurationS) > 1e-9 {
			t.Errorf("%s: %+v, %v", name, q, err)
		}
	}
	// What ends in a simulation counts like what is kept.
	p.Past = runs(3, 600, hour, "ann")
	a := p.Foretold("ann", hour, Past{SoloS: 1200, LimitS: hour, User: "ann"})
	p.Past = append(p.Past, Past{SoloS: 1200, LimitS: hour, User: "ann"})
	if b := p.Foretold("ann", hour); a.DurationS != b.DurationS || a.DurationSD != b.DurationSD {
		t.Errorf("%v ± %v, and kept %v ± %v", a.DurationS, a.DurationSD, b.DurationS, b.DurationSD)
	}
}

// How far runs are from what was foretold of them is what was foretold, too: the scores (ln x − μ)/σ have mean 0 and
// standard deviation 1, whether limits and users tell much of lengths or nothing.
func TestForetoldKnowsItsErrors(t *testing.T) {
	for name, c := range map[string]struct{ user, limit, run float64 }{
		"by the run":      {0, 0, .8},
		"by user":         {.8, 0, .5},
		"by limit":        {0, .8, .5},
		"by all of these": {.8, .8, 1.1},
		"hardly":          {0, 0, .05},
	} {
		var scores []float64
		for seed := range uint64(10) {
			rnd := rand.New(rand.NewPCG(seed, 55))
			p := flat("a", 1000*math.Exp((c.user*c.user+c.limit*c.limit+c.run*c.run)/2), 100)
			p.DurationSD = p.DurationS * math.Sqrt(math.Expm1(c.user*c.user+c.limit*c.limit+c.run*c.run))
			offset := map[string]float64{}
			for len(p.Past) < MostPast { // in sweeps of ten
				user := fmt.Sprint("user", rnd.IntN(5))
				if _, known := offset[user]; !known {
					offset[user] = c.user * rnd.NormFloat64()
				}
				typical := math.Log(1000) + offset[user] + c.limit*rnd.NormFloat64()
				limitS := math.Exp2(math.Ceil(math.Log2(math.Exp(typical+2*c.run)))) * 1.5
				for range 10 {
					x := math.Exp(typical + c.run*rnd.NormFloat64())
					q := p.Foretold(user, limitS)
					p.AddPast(Past{SoloS: x, LimitS: limitS, User: user})
					if len(p.Past) > 20 && q.DurationS < limitS {
						scores = append(scores, q.z(x))
					}
				}
			}
		}
		mean, sd := stat.MeanStdDev(scores, nil)
		t.Logf("%s: %d scores, %+.3f ± %.3f", name, len(scores), mean, sd)
		if math.Abs(mean) > .2 || sd < .75 || sd > 1.2 {
			t.Errorf("%s: the scores of %d runs are %+.2f ± %.2f", name, len(scores), mean, sd)
		}
	}
}

// A profile says how well its runs are foretold: well by limits that tell their lengths, badly without.
func TestForetelling(t *testing.T) {
	p := flat("a", 1000, 100)
	p.DurationSD = 900
	must.Equal(t, p.Foretelling().Runs, 0, "of no runs")
	for range 30 {
		p.Past = append(p.Past, Past{SoloS: 100, LimitS: 3600}, Past{SoloS: 10_000, LimitS: 86400})
	}
	told := p.Foretelling()
	for i := range p.Past {
		p.Past[i].LimitS = 86400
	}
	if untold := p.Foretelling(); told.Runs != 59 || told.Within2 < .8 || untold.Within2 > .4 || untold.Longer < .4 ||
		untold.Longer > .6 {
		t.Errorf("with limits %+v, without %+v", told, untold)
	}
}

// A run of an application whose runs differ that goes on far beyond their mean is a long one, and goes on for long; its
// memory counts to the end. Where all take equally long, it was slower than predicted.
func TestARunThatGoesOnIsALongOne(t *testing.T) {
	for _, c := range []struct{ sd, least, most float64 }{{200, 2000, 6000}, {0, 74, 100}} {
		p := holds(500)
		p.DurationS, p.PeriodS, p.DurationSD = 100, 100, c.sd
		r := Running{Job: Job{Profile: p}, DoneS: p.Believed(10_000), ElapsedS: 10_000}
		if left := r.LeftS(); left < c.least || left > c.most {
			t.Errorf("standard deviation %v: %v s are left", c.sd, left)
		}
		m := newMember(&r.Job, r.DoneS, r.ElapsedS)
		must.Equal(t, m.most(1), 500, "MiB, standard deviation %v", c.sd)
	}
}

// So many of the runs that got as far are no longer than the quantile says.
func TestQuantile(t *testing.T) {
	p := flat("a", 600, 100)
	p.DurationSD = 900
	for _, done := range []float64{0, 200, 600, 3000, 1e5, 1e9} {
		for _, part := range []float64{0, .1, .5, .9} {
			s := p.quantile(part, done)
			if longer := p.longer(s*(1+1e-9), done); s < done || math.Abs(1-part-longer) > .15 {
				t.Errorf("after %v s %v are no longer than %v, want %v", done, 1-longer, s, part)
			}
		}
	}
	must.Equal(t, flat("b", 600, 100).quantile(.1, 300), 600, "of runs that take equally long")
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
func TestJobsInPlainSlurmsSchedule(t *testing.T) {
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
		j := c.job.ForSchedule()
		if j.TakesS != c.takes && math.Abs(j.TakesS-c.takes) > 1e-6 || (j.Spread > 0) != c.varies {
			t.Errorf("%s: it takes %v s, and varies by %v", name, j.TakesS, j.Spread)
		}
	}
}
