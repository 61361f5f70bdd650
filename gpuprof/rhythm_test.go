package gpuprof

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// wave is a square wave with noise on its values and jitter on its readings' times and its periods' lengths.
func wave(rng *rand.Rand, period, duty, step, length, noise, jitter float64) []Moment {
	var ms []Moment
	begin, this := 0.0, period
	for t := 0.0; t < length; t += step {
		at := t + step*jitter*(rng.Float64()-0.5)
		for at >= begin+this {
			begin += this
			this = period * (1 + jitter*0.1*rng.NormFloat64())
		}
		v := 0.2
		if at-begin < duty*this {
			v = 0.9
		}
		ms = append(ms, Moment{at, v + noise*rng.NormFloat64()})
	}
	return ms
}

func TestRhythmOfSquareWaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		period := rapid.Float64Range(0.08, 0.3).Draw(t, "period")
		duty := rapid.Float64Range(0.25, 0.75).Draw(t, "duty")
		noise := rapid.Float64Range(0, 0.15).Draw(t, "noise")
		jitter := rapid.Float64Range(0, 0.4).Draw(t, "jitter")
		r, ok := FindRhythm(wave(rng, period, duty, 0.01, 2, noise, jitter), 0.03)
		if !ok {
			t.Fatalf("no rhythm of %.3f s", period)
		}
		if math.Abs(r.PeriodS/period-1) > 0.1 {
			t.Fatalf("%.4f s (%.2f), want %.4f", r.PeriodS, r.Strength, period)
		}
	})
}

// What has no rhythm is very seldom given one: white noise, a figure that the
// driver updates seldom, random switching, a drift, steps, a constant.
func TestRhythmOfNone(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	series := map[string]func() []float64{
		"noise": func() []float64 { return fill(func(int) float64 { return rng.Float64() }) },
		"held noise": func() []float64 {
			hold, v := 5+rng.IntN(20), 0.0
			return fill(func(i int) float64 {
				if i%hold == 0 {
					v = rng.Float64()
				}
				return v
			})
		},
		"switching": func() []float64 {
			mean, v := 4+20*rng.Float64(), 0.0
			return fill(func(int) float64 {
				if rng.Float64() < 1/mean {
					v = 1 - v
				}
				return v
			})
		},
		"drift": func() []float64 {
			v := 0.0
			return fill(func(int) float64 { v += rng.NormFloat64(); return v })
		},
		"ramp": func() []float64 { return fill(func(i int) float64 { return float64(i)/200 + 0.1*rng.Float64() }) },
		"step": func() []float64 {
			at := rng.IntN(200)
			return fill(func(i int) float64 { return 0.02*rng.NormFloat64() + math.Min(1, float64(i/(at+1))) })
		},
		"constant": func() []float64 { return fill(func(int) float64 { return 0.7 + 0.01*rng.NormFloat64() }) },
	}
	const runs = 1000
	for name, make := range series {
		found := 0
		for range runs {
			ms := []Moment{}
			for i, v := range make() {
				ms = append(ms, Moment{0.01 * float64(i), v})
			}
			if _, ok := FindRhythm(ms, 0.03); ok {
				found++
			}
		}
		t.Logf("%s: %d of %d", name, found, runs)
		if found > runs/50 {
			t.Errorf("%s: a rhythm in %d of %d", name, found, runs)
		}
	}
}

func fill(f func(int) float64) []float64 {
	out := make([]float64, 200)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

// Whatever it is given, it answers within what was seen.
func TestRhythmOfAnything(t *testing.T) {
	odd := []float64{0, 1, math.NaN(), math.Inf(1), math.Inf(-1), 1e308, -1e308, 1e-300}
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.OneOf(rapid.Float64(), rapid.SampledFrom(odd))
		ms := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Moment { return Moment{one.Draw(t, "t"), one.Draw(t, "v")} }), 0,
			300).Draw(t, "moments")
		r, ok := FindRhythm(ms, 0)
		if ok && !(r.PeriodS > 0 && !math.IsInf(r.PeriodS, 0) && r.Strength > 0 && r.Strength <= 1) {
			t.Fatalf("%+v", r)
		}
	})
}
