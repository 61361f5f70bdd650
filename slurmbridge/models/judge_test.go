package models

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
)

// resample draws means of n of the values with replacement, as sets does with blocks.
func resample(values []float64, sets int, r *rand.Rand) []float64 {
	out := make([]float64, sets)
	for i := range out {
		for range values {
			out[i] += values[r.IntN(len(values))] / float64(len(values))
		}
	}
	return out
}

// One that is no better is promoted in at most one of twenty rounds, however few the
// blocks and however large the noise.
func TestNoPromotionByChance(t *testing.T) {
	noise := map[string]func(r *rand.Rand) float64{
		"normal": func(r *rand.Rand) float64 { return r.NormFloat64() },
		// Often a little better, now and then much worse.
		"skewed":        func(r *rand.Rand) float64 { return 1 - r.ExpFloat64() },
		"the other way": func(r *rand.Rand) float64 { return r.ExpFloat64() - 1 },
		"wild":          func(r *rand.Rand) float64 { return r.NormFloat64() / math.Sqrt(1e-3+r.Float64()) },
	}
	const rounds = 4000
	for name, draw := range noise {
		for _, blocks := range []int{5, 12, 50} {
			r := rand.New(rand.NewPCG(1, uint64(blocks)))
			promoted := 0
			for range rounds {
				values := make([]float64, blocks)
				for i := range values {
					values[i] = draw(r)
				}
				if v := weigh(resample(values, judgeSets, r), blocks); v.Better {
					promoted++
				}
			}
			rate := float64(promoted) / rounds
			t.Logf("%s, %d blocks: %.1f %%", name, blocks, 100*rate)
			if rate > 0.05 {
				t.Errorf("%s, %d blocks: promoted in %.1f %% of the rounds", name, blocks, 100*rate)
			}
		}
	}
}

// One that is clearly better is promoted; one that is better by less than is worth it
// is not, however sure that is.
func TestPromotion(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for _, c := range []struct {
		gain, sd float64
		least    float64 // part of the rounds
		most     float64
	}{{0.10, 0.05, 0.95, 1}, {0.02, 0.01, 0.95, 1}, {0.003, 0.001, 0, 0}, {-0.05, 0.05, 0, 0}} {
		better := 0.0
		for range 500 {
			values := make([]float64, 25)
			for i := range values {
				values[i] = c.gain + c.sd*r.NormFloat64()
			}
			if v := weigh(resample(values, judgeSets, r), len(values)); v.Better {
				better += 1.0 / 500
			}
		}
		if better < c.least || better > c.most+1e-9 {
			t.Errorf("a gain of %v ± %v a block: promoted in %.1f %%", c.gain, c.sd, 100*better)
		}
	}
}

// The rule on whatever numbers: better means above the bound and worth it; more gain
// never makes it worse; too few say nothing.
func TestWeigh(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gains := rapid.SliceOfN(rapid.Float64Range(-2, 1), 0, 60).Draw(t, "gains")
		blocks := rapid.IntRange(0, 100).Draw(t, "blocks")
		v := weigh(gains, blocks)
		if math.IsNaN(v.Gain) || math.IsNaN(v.Bound) || v.Bound > v.Gain+1e-12 {
			t.Fatalf("%+v", v)
		}
		if v.Better && (v.Bound <= 0 || v.Gain < LeastGain || len(gains) < 2 || blocks < fewestBlocks) {
			t.Fatalf("%+v of %d gains and %d blocks", v, len(gains), blocks)
		}
		more := make([]float64, len(gains))
		for i := range gains {
			more[i] = gains[i] + 0.01
		}
		if u := weigh(more, blocks); v.Better && !u.Better || u.Bound < v.Bound-1e-9 {
			t.Fatalf("%+v, and %+v with more gain", v, u)
		}
	})
}

// builtIn is the network that comes with the program.
func builtIn(t testing.TB) *dqn.Checkpoint {
	t.Helper()
	c := must.Get(pretrained.Checkpoint(policy.Turnaround))(t)
	return c
}

// spoil makes a network that likes to leave a GPU to one job.
func spoil(t testing.TB, c *dqn.Checkpoint) *dqn.Checkpoint {
	t.Helper()
	net := must.Get(c.Network(nil))(t)
	aloneIsBest(net)
	out := must.Get(dqn.FromTrainer(&dqn.Trainer{Net: net}, "nothing", "test"))(t)
	return out
}

// On the same jobs a network gains nothing over itself; the one that comes with the
// program gains over one that doesn't share, and the reverse is a loss.
func TestJudge(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	m := Draw(day0, day0.AddDate(0, 0, 14), site(1000, 2, 35, 1), cardOf, nil, rules)
	sets, drawn := m.sets(20, 7)
	good := must.Get(builtIn(t).Network(m.beliefs.Clone()))(t)
	bad := must.Get(spoil(t, builtIn(t)).Network(m.beliefs.Clone()))(t)
	for _, c := range []struct {
		name       string
		own, other dqn.Network
		better     bool
		sign       int
	}{{"itself", good, good, false, 0}, {"worse", good, bad, true, 1}, {"better", bad, good, false, -1}} {
		v := must.Get(m.judge(c.own, c.other, sets, drawn))(t)
		if v.Better != c.better || v.Gain > 0 != (c.sign > 0) || v.Gain < 0 != (c.sign < 0) {
			t.Errorf("against %s: %s: %+v", c.name, v.Why(), v)
		}
		if v.Jobs < 30 || v.Sets != 20 || !(v.Own.TurnaroundS > 0 && v.Own.MakespanS > 0 && v.Own.MeanSlowdown >= 1) {
			t.Errorf("figures: %+v", v)
		}
	}
}
