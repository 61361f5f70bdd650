package interference

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// anyCard is a card of which nothing is said.
var anyCard = &rlcore.GPUSpec{}

// corun is one observation.
type corun struct {
	spec    *rlcore.GPUSpec
	members []*rlcore.Profile
	slow    []float64
}

func drawApps(t *rapid.T) []*rlcore.Profile {
	var out []*rlcore.Profile
	for i := range 5 {
		p := &rlcore.Profile{
			App: fmt.Sprintf("app%d", i), DurationS: 100, PeriodS: 50,
			StepS: rapid.SampledFrom([]float64{0, 0.01, 1}).Draw(t, "step"),
		}
		for range rapid.IntRange(1, 2).Draw(t, "points") {
			p.Series = append(p.Series, rlcore.Use{
				GPU:      rapid.Float64Range(0, 1).Draw(t, "gpu"),
				Core:     rapid.Float64Range(0, 1).Draw(t, "core"),
				PCIeMBps: rapid.Float64Range(0, 30000).Draw(t, "pcie"),
			})
		}
		out = append(out, p)
	}
	return out
}

func drawCorun(t *rapid.T, apps []*rlcore.Profile) corun {
	c := corun{spec: rapid.SampledFrom([]*rlcore.GPUSpec{anyCard, &rlcore.TitanXp}).Draw(t, "card")}
	for range rapid.IntRange(2, 4).Draw(t, "members") {
		c.members = append(c.members, rapid.SampledFrom(apps).Draw(t, "app"))
		c.slow = append(c.slow, rapid.OneOf(
			rapid.Float64Range(0.9, 4), rapid.SampledFrom([]float64{0, -1, math.NaN(), math.Inf(1), 1e300, 1e-300}),
		).Draw(t, "slowdown"))
	}
	return c
}

func observe(m *Model, all []corun) {
	for _, c := range all {
		m.all(c.spec, c.members, c.slow...)
	}
}

// all shows the model a co-run of which all slowdowns are known.
func (m *Model) all(spec *rlcore.GPUSpec, members []*rlcore.Profile, slow ...float64) {
	for i, s := range slow {
		m.Observe(spec, slices.Concat(members[i:], members[:i]), s, math.NaN(), 1)
	}
}

func predictions(m *Model, c corun) []rlcore.Prediction {
	dst := make([]rlcore.Prediction, len(c.members))
	m.Predict(dst, c.spec, c.members)
	return dst
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*(1+math.Abs(b)) }

func same(a, b []rlcore.Prediction) bool {
	for i := range a {
		if !near(a[i].Slowdown, b[i].Slowdown) || !near(a[i].SD, b[i].SD) {
			return false
		}
	}
	return true
}

// unscaled is a model's clone without the scale of its standard deviations, which depends on what was seen first.
func unscaled(m *Model) *Model {
	m = m.Clone()
	for _, w := range m.ways {
		w.learned.scale = 1
	}
	return m
}

func TestLearningProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		apps := drawApps(t)
		seen := make([]corun, rapid.IntRange(0, 12).Draw(t, "seen"))
		for i := range seen {
			seen[i] = drawCorun(t, apps)
		}
		ask, more := drawCorun(t, apps), drawCorun(t, apps)
		law := rapid.SampledFrom([]*contention.Law{&contention.MPS, &contention.TimeSlice}).Draw(t, "law")
		m := New(law)
		observe(m, seen)
		got := predictions(m, ask)
		// Only a site that saw the model be surer than it may be is less sure than before anything was seen.
		widened := 1.0
		for _, w := range m.ways {
			widened = max(widened, w.learned.scale)
		}
		for i, p := range got {
			if !(p.Slowdown >= 1) || math.IsInf(p.Slowdown, 0) || !(p.SD > 0) || math.IsInf(p.SD, 0) {
				t.Fatalf("member %d: %+v", i, p)
			}
			// In a group what pairs say may differ from what the factors do, which adds to the uncertainty.
			if most := 2 * widened * (p.Slowdown - 1 + sdFloor + law.Unseen); len(ask.members) == 2 && p.SD > max(minSD, most) {
				t.Fatalf("member %d is less certain than before anything was seen: %+v", i, p)
			}
		}

		// The order of members doesn't matter. (It changes which phases meet, so only members with one phase are compared.)
		flat := ask
		flat.members = nil
		for _, p := range ask.members {
			q := *p
			q.Series = q.Series[:1]
			flat.members = append(flat.members, &q)
		}
		turned := flat
		turned.members = append(append([]*rlcore.Profile{}, flat.members[1:]...), flat.members[0])
		a, b := predictions(m, flat), predictions(m, turned)
		if !same(append(a[1:], a[0]), b) {
			t.Fatalf("%v turned is %v", a, b)
		}

		// Nor does the order of observations.
		shuffled := append([]corun{}, seen...)
		rand.New(rand.NewPCG(1, 1)).Shuffle(len(shuffled),
			func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		other := New(law)
		observe(other, shuffled)
		if one, two := predictions(unscaled(m), ask), predictions(unscaled(other), ask); !same(one, two) {
			t.Fatalf("%v in another order %v", one, two)
		}

		// A clone predicts the same, and what it learns is its own.
		clone := m.Clone()
		if again := predictions(clone, ask); !same(got, again) {
			t.Fatalf("%v, a clone %v", got, again)
		}
		observe(clone, []corun{more})
		if again := predictions(m, ask); !same(got, again) {
			t.Fatalf("%v, after its clone learned %v", got, again)
		}

		// A further observation never makes the model less certain, but for a cell whose traits it moves (of an application
		// next to itself: phases meet otherwise), and for groups, where what pairs say may differ from what the factors do.
		before := m.answer(ask.spec, ask.members).beliefs
		observe(m, []corun{more})
		for i, b := range m.answer(ask.spec, ask.members).beliefs {
			if len(ask.members) == 2 && b.sd > before[i].sd*1.05 {
				t.Fatalf("member %d: %v before, %v after", i, before[i], b)
			}
		}
	})
}

// How sure the model is follows from how sure it may be: where it is always wrong by two standard deviations they grow,
// where it is always right they shrink, and a clone has them.
func TestScaleIsLearned(t *testing.T) {
	scale := func(off float64) float64 {
		m := New(&contention.MPS)
		for i := range 60 {
			ab := pairOf(fmt.Sprint("a", i), fmt.Sprint("b", i), 0.5+0.4*float64(i%7)/6, 0.8)
			p, sign := predictions(m, corun{anyCard, ab, nil})[0], float64(1-i%2*2)
			m.all(anyCard, ab, p.Slowdown+sign*off*p.SD)
		}
		must.Equal(t, m.way(anyCard).learned.scale, m.Clone().way(anyCard).learned.scale, "scale, and of a clone")
		return m.way(anyCard).learned.scale
	}
	if over, under := scale(2.5), scale(0.2); over < 1.2 || under > 0.8 || under < 1/mostScale {
		t.Errorf("scale %.2f where all differ by 2.5 SD, %.2f where by 0.2", over, under)
	}
}

// pairOf returns profiles that keep the card busy for the given fractions.
func pairOf(a, b string, ga, gb float64) []*rlcore.Profile {
	of := func(app string, gpu float64) *rlcore.Profile {
		return &rlcore.Profile{App: app, DurationS: 10, PeriodS: 10, Series: []rlcore.Use{{GPU: gpu}}}
	}
	return []*rlcore.Profile{of(a, ga), of(b, gb)}
}

func TestLearns(t *testing.T) {
	m := New(&contention.MPS)
	ab := pairOf("a", "b", 0.8, 0.8)
	ask := func(p []*rlcore.Profile) rlcore.Prediction { return predictions(m, corun{anyCard, p, nil})[0] }
	law := ask(ab)
	for range 20 {
		m.all(anyCard, ab, 1.05, 2.5)
	}
	if p := ask(ab); math.Abs(p.Slowdown-1.05) > 0.03 || p.SD > 0.05 {
		t.Errorf("seen 20 times at 1.05: %+v", p)
	}
	// a slows little, so it slows less with others too; b slows others less than predicted.
	if p := ask(pairOf("a", "new", 0.8, 0.8)); p.Slowdown > law.Slowdown-0.05 || p.SD > law.SD {
		t.Errorf("a with one never observed: %+v, the law %+v", p, law)
	}
	if p := ask(pairOf("new", "b", 0.8, 0.8)); p.Slowdown > law.Slowdown-0.05 {
		t.Errorf("one never observed with b: %+v, the law %+v", p, law)
	}
	// Nothing was observed on the other card, so a little less of it holds there.
	other := predictions(m, corun{&rlcore.TitanXp, ab, nil})[0]
	if p := ask(ab); other.Slowdown <= p.Slowdown || other.Slowdown >= law.Slowdown || other.SD <= p.SD {
		t.Errorf("on another card %+v, on this %+v, the law %+v", other, p, law)
	}
}

func TestOneAbsurdObservation(t *testing.T) {
	sane, odd := New(&contention.MPS), New(&contention.MPS)
	for _, m := range []*Model{sane, odd} {
		for i := range 4 {
			m.all(anyCard, pairOf("a", fmt.Sprint("o", i), 0.8, 0.8), 1.5, 1.5)
		}
		for range 3 {
			m.all(anyCard, pairOf("a", "b", 0.8, 0.8), 1.5, 1.5)
		}
	}
	odd.all(anyCard, pairOf("a", "b", 0.8, 0.8), 1000, 1.5)
	odd.all(anyCard, pairOf("a", "c", 0.8, 0.8), 1000, 1.5)
	for _, c := range []struct {
		with string
		most float64
	}{{"b", 1.15}, {"o1", 1.1}, {"new", 1.25}} {
		ask := corun{anyCard, pairOf("a", c.with, 0.8, 0.8), nil}
		if s, o := predictions(sane, ask)[0], predictions(odd, ask)[0]; o.Slowdown > c.most*s.Slowdown {
			t.Errorf("with %s: %+v, without the outliers %+v", c.with, o, s)
		}
	}
}

func TestObserveIgnoresWhatCannotBe(t *testing.T) {
	m := New(&contention.MPS)
	ab := pairOf("a", "b", 0.8, 0.8)
	m.Observe(anyCard, nil, 2, math.NaN(), 1)
	m.all(anyCard, ab[:1], 1)
	m.all(anyCard, []*rlcore.Profile{ab[0], nil}, 2, 2)
	m.all(anyCard, []*rlcore.Profile{ab[0], {App: "c"}}, 2, 2)
	m.Observe(anyCard, slices.Repeat(ab[:1], 17), 2, math.NaN(), 1)
	m.all(anyCard, ab, math.NaN(), -1)
	l := m.way(anyCard).learned
	must.Equal(t, [2]int{len(l.cells), len(l.names)}, [2]int{}, "cells and names")
}

func TestCapacityIsBounded(t *testing.T) {
	l := newLearned(&contention.MPS)
	name := func(i int) []term {
		return []term{
			{card, id(""), -1, 1},
			{victim, id(fmt.Sprint("v", i)), -1, 1},
			{aggressor, id(fmt.Sprint("a", i)), -1, 1},
		}
	}
	n := 0
	for ; l.room(name(n)); n++ {
		l.meet(name(n), "")
	}
	if len(l.names) > maxParams || n < maxParams/5 {
		t.Errorf("%d pairs of applications, %d factors", n, len(l.names))
	}
}
