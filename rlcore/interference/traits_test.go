package interference

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// using is a profile with these mean uses.
func using(app string, gpu, mem, stepS float64) *rlcore.Profile {
	return &rlcore.Profile{
		App: app, DurationS: 60, PeriodS: 60, StepS: stepS,
		Series: []rlcore.Use{{GPU: gpu, MemBusy: mem}},
	}
}

// What is learned of turns says nothing of MPS, and each has its law.
func TestWaysOfSharing(t *testing.T) {
	ab := pairOf("a", "b", 0.9, 0.9)
	mps, turns := rlcore.TitanXp, rlcore.TitanXp
	mps.Sharing, turns.Sharing = "mps", "time-slice"
	m := New(&contention.MPS)
	ask := func(m *Model, card *rlcore.GPUSpec) rlcore.Prediction {
		return predictions(m, corun{card, ab, nil})[0]
	}
	known, unknown := ask(m, &mps), ask(m, &rlcore.TitanXp)
	if known != unknown || ask(m, &turns).Slowdown <= known.Slowdown {
		t.Errorf("MPS %+v, not said %+v, turns %+v", known, unknown, ask(m, &turns))
	}
	was := ask(m, &turns)
	m.all(&turns, ab, 3, 3)
	must.Equal(t, ask(m, &mps), known, "under MPS, after a co-run in turns")
	if got := ask(m, &turns); got.Slowdown < was.Slowdown+0.2 {
		t.Errorf("in turns %+v, after a co-run %+v", was, got)
	}
	l, ok := m.Lesson(&turns, ab, 3, math.NaN(), 1)
	other := New(&contention.MPS)
	other.Take(&l)
	if !ok || ask(other, &turns).Slowdown < was.Slowdown+0.2 || ask(other, &mps) != known {
		t.Errorf("a lesson in turns teaches %+v and %+v", ask(other, &turns), ask(other, &mps))
	}
	if got := ask(m.Clone(), &turns); !near(got.Slowdown, ask(m, &turns).Slowdown) {
		t.Errorf("a clone believes %+v", got)
	}
}

// A stored lesson may say anything.
func TestLessonsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		odd := rapid.OneOf(rapid.Float64Range(-2, 5), rapid.Just(math.Inf(1)), rapid.Just(math.Inf(-1)),
			rapid.Just(math.NaN()), rapid.Just(1e308), rapid.Just(5e-324))
		m := New(&contention.MPS)
		for range rapid.IntRange(1, 5).Draw(t, "lessons") {
			m.Take(&Lesson{
				Victim: "a", Others: []string{"b"}, Slowdown: odd.Draw(t, "slowdown"), Off: odd.Draw(t, "off"),
				Law: odd.Draw(t, "law"), Weight: rapid.OneOf(rapid.Just(1.0), odd).Draw(t, "weight"),
				Alone: []Alone{
					{odd.Draw(t, "gpu"), odd.Draw(t, "mem"), odd.Draw(t, "step")},
					{odd.Draw(t, "gpu"), odd.Draw(t, "mem"), odd.Draw(t, "step")},
				},
			})
		}
		for _, members := range [][]*rlcore.Profile{
			pairOf("a", "b", 0.8, 0.8),
			{using("c", 1, 1, 1e-9), using("d", 0, 0.5, 1e9)},
		} {
			for _, p := range predictions(m, corun{anyCard, members, nil}) {
				if !(p.Slowdown >= 1) || math.IsInf(p.Slowdown, 1) || !(p.SD > 0) || math.IsInf(p.SD, 1) {
					t.Fatalf("%+v", p)
				}
			}
		}
	})
}
