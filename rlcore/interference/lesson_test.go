package interference

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// A model that learned the lessons of another, as they are stored, predicts the same.
func TestLessons(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		apps := drawApps(t)
		var cos []corun
		for range rapid.IntRange(1, 8).Draw(t, "coruns") {
			cos = append(cos, drawCorun(t, apps))
		}
		first, second := New(&contention.MPS), New(&contention.MPS)
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
			want.Observe(c.spec, c.members, c.slow[0], predicted, weight)
			if a, b := predictions(first, c), predictions(want, c); !same(a, b) {
				t.Fatalf("a lesson teaches %v, the co-run itself %v", a, b)
			}
		}
		for _, c := range cos {
			if a, b := predictions(first, c), predictions(second, c); !same(a, b) {
				t.Fatalf("taken again the lessons give %v, not %v", b, a)
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
	if got := sd(); math.Abs(got[0]-mostDoubt*before[0]) > 1e-12 {
		t.Errorf("after many: %v, before %v", got, before)
	}
	for range 3 {
		m.Reassure(id("a"), ids("b", "c"))
	}
	if got := sd(); got != before || m.doubts.Len() != 0 {
		t.Errorf("after three kept ones: %v, before %v; %v", got, before, m.doubts)
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
	m.Forbid(id("b"), id("a"))
	m.Forgive(id("b"), id("a"))
	if !m.Forbidden(nil, ps) {
		t.Error("the other's accusation was revoked with it")
	}
	m.Forgive(id("a"), id("b"))
	if m.Forbidden(nil, ps) {
		t.Error("a pair that was forgiven is forbidden")
	}
	at := time.Unix(1e9, 0)
	m.KeepAlone(id("b"), at)
	if !m.Forbidden(nil, ps) || m.Forbidden(nil, ps[1:]) {
		t.Error("one that is kept alone may share, or not run")
	}
	if m.LetShare(id("b"), at.Add(AloneFor/2)); !m.Forbidden(nil, ps) {
		t.Error("it may share again on the same day")
	}
	if m.LetShare(id("b"), at.Add(AloneFor)); m.Forbidden(nil, ps) {
		t.Error("it may not share a day later")
	}
	m.KeepAlone(id("b"), at.AddDate(10, 0, 0))
	if m.LetShare(id("b"), at); m.Forbidden(nil, ps) {
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
