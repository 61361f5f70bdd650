package interference

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// A model that learned the lessons of another, as they are stored, predicts the same; and so does one that learned the
// cells that they are stored in, which are far fewer.
func TestLessons(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		apps := drawApps(t)
		var cos []corun
		for range rapid.IntRange(1, 8).Draw(t, "coruns") {
			cos = append(cos, drawCorun(t, apps))
		}
		first, second, third := New(&contention.MPS), New(&contention.MPS), New(&contention.MPS)
		var cells []Cell
		for _, c := range cos {
			predicted := math.NaN()
			if rapid.Bool().Draw(t, "followed") {
				predicted = rapid.Float64Range(1, 3).Draw(t, "predicted")
			}
			weight := rapid.Float64Range(0.01, 1).Draw(t, "weight")
			want := first.Clone()
			l, ok := first.Lesson(c.spec, c.members, c.slow[0], predicted, weight)
			if !ok {
				continue
			}
			first.Take(&l)
			text, err := json.Marshal(l)
			var stored Lesson
			if err != nil || json.Unmarshal(text, &stored) != nil {
				t.Fatal(err)
			}
			second.Take(&stored)
			one, _ := stored.Cell()
			at := slices.IndexFunc(cells, func(c Cell) bool { return c.Key() == one.Key() })
			if at < 0 {
				cells = append(cells, one)
			} else {
				cells[at].Add(&one)
			}
			want.Observe(c.spec, c.members, c.slow[0], predicted, weight)
			if a, b := predictions(first, c), predictions(want, c); !same(a, b) {
				t.Fatalf("a lesson teaches %v, the co-run itself %v", a, b)
			}
		}
		text, err := json.Marshal(cells)
		var stored []Cell
		if err != nil || json.Unmarshal(text, &stored) != nil {
			t.Fatal(err)
		}
		third.Restore(stored)
		for _, c := range cos {
			if a, b := predictions(first, c), predictions(second, c); !same(a, b) {
				t.Fatalf("taken again the lessons give %v, not %v", b, a)
			}
			if a, b := predictions(first, c), predictions(third, c); !same(a, b) {
				t.Fatalf("their cells give %v, not %v", b, a)
			}
		}
	})
}

func TestDoubt(t *testing.T) {
	ps := pairOf("a", "b", 0.5, 0.6)
	m := New(&contention.MPS)
	sd := func() [2]float64 {
		out := make([]rlcore.Prediction, 2)
		m.Predict(out, &rlcore.TitanXp, ps)
		return [2]float64{out[0].SD, out[1].SD}
	}
	before := sd()
	m.Doubt(id("a"), ids("b"))
	if got := sd(); math.Abs(got[0]-2*before[0]) > 1e-12 || got[1] != before[1] {
		t.Errorf("after a broken contract of a: %v, before %v", got, before)
	}
	for range 10 {
		m.Doubt(id("a"), ids("b"))
	}
	must.Near(t, sd()[0], mostDoubt*before[0], 1e-12, "after many")
	for range 3 {
		m.Reassure(id("a"), ids("b", "c"))
	}
	if got := sd(); got != before || len(m.Standing(id("a")).Others) > 0 {
		t.Errorf("after three kept ones: %v, before %v; %+v", got, before, m.Standing(id("a")))
	}
}

func TestForgive(t *testing.T) {
	ps := pairOf("a", "b", 0.5, 0.6)
	m := New(&contention.MPS)
	m.Forbid(id("a"), id("b"))
	if !m.Forbidden(nil, ps) {
		t.Fatal("a pair that was forbidden is allowed")
	}
	if third := pairOf("c", "d", 0.1, 0.1)[0]; !m.Forbidden(nil, append([]*rlcore.Profile{third}, ps...)) ||
		m.Forbidden(nil, []*rlcore.Profile{third, ps[0]}) {
		t.Error("beside a third one they are allowed, or one of them is forbidden with the third")
	}
	of := func(app string, change func(s *Standing)) {
		s := m.Standing(id(app))
		change(&s)
		m.SetStanding(id(app), s)
	}
	m.Forbid(id("b"), id("a"))
	of("b", func(s *Standing) { s.Forgive(id("a"), time.Time{}) })
	if !m.Forbidden(nil, ps) {
		t.Error("the other's accusation was revoked with it")
	}
	of("a", func(s *Standing) { s.Forgive(id("b"), time.Time{}) })
	if m.Forbidden(nil, ps) {
		t.Error("a pair that was forgiven is forbidden")
	}
	at := time.Unix(1e9, 0)
	of("b", func(s *Standing) { s.Alone = at })
	if !m.Forbidden(nil, ps) || m.Forbidden(nil, ps[1:]) {
		t.Error("one that is kept alone may share, or not run")
	}
	if of("b", func(s *Standing) { s.LetShare(at.Add(AloneFor / 2)) }); !m.Forbidden(nil, ps) {
		t.Error("it may share again on the same day")
	}
	if of("b", func(s *Standing) { s.LetShare(at.Add(AloneFor)) }); m.Forbidden(nil, ps) {
		t.Error("it may not share a day later")
	}
	of("b", func(s *Standing) { s.Alone = at.AddDate(10, 0, 0) })
	if of("b", func(s *Standing) { s.LetShare(at) }); m.Forbidden(nil, ps) {
		t.Error("a clock that was ten years ahead keeps it alone for ten years")
	}
}

func id(app string) rlcore.Identity { return rlcore.Identity{App: app} }

func ids(apps ...string) (out []rlcore.Identity) {
	for _, a := range apps {
		out = append(out, id(a))
	}
	return out
}
