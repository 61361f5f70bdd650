package rlcore

import (
	"math"
	"slices"
	"testing"
)

func TestArrayOnly(t *testing.T) {
	p := &Profile{App: "a", DurationS: 10, PeriodS: 10, Series: []Use{{GPU: 0.1, MemMiB: 100}}}
	st := &State{
		GPUs: []GPU{{Spec: TitanXp, FreeCPUs: -1, FreeHostMemMiB: -1}},
		Pending: []Job{
			{ID: "1_1", User: "u", Profile: p, Array: "1", ArrayOnly: true},
			{ID: "1_2", User: "u", Profile: p, Array: "1"},
			{ID: "2_1", User: "u", Profile: p, Array: "2"},
			{ID: "3", User: "u", Profile: p},
		},
	}
	g := NewGuard(Rules{})
	w := NewWindow(nil, st, 0, 5)
	for c, want := range map[Combo]Refusal{
		0b0001: Allowed, 0b0011: Allowed, 0b0101: RefusedArray, 0b1001: RefusedArray, 0b0111: RefusedArray,
		0b1110: Allowed, 0b1000: Allowed,
	} {
		if got := g.Check(&w, c); got != want {
			t.Errorf("%04b: %s, want %s", c, got, want)
		}
	}
	// The job with that restriction may come last.
	slices.Reverse(st.Pending)
	if got := g.Check(&w, 0b1110); got != RefusedArray {
		t.Errorf("two arrays with one that shares with its own only: %s", got)
	}
}

// evenly gives every combination the same score.
type evenly struct {
	name string
	v    float64
}

func (c evenly) Name() string { return c.name }
func (c evenly) Score(dst []float64, _ *Window, _ []Combo) {
	for i := range dst {
		dst[i] = c.v
	}
}

func TestFallback(t *testing.T) {
	st := &State{GPUs: []GPU{card()}, Pending: []Job{{ID: "1", User: "u", Profile: flat("a", 10, 100)}}}
	nan := math.NaN()
	d := &Decider{Policy: evenly{"a", nan}, Fallback: []Policy{evenly{"b", nan}, evenly{"c", 1}}, Guard: NewGuard(Rules{})}
	dec := d.Decide(st, 0)
	if !dec.Broken || dec.Score != 1 || d.Policy.Name() != "c" || len(d.Fallback) != 0 {
		t.Errorf("%+v by %s", dec, d.Policy.Name())
	}
	if dec = d.Decide(st, 0); dec.Broken {
		t.Error("the fallback counts as broken")
	}
	d = &Decider{Policy: evenly{"a", nan}, Guard: NewGuard(Rules{})}
	if dec = d.Decide(st, 0); !dec.Broken || dec.Combo != 0 {
		t.Errorf("with nothing to fall back on: %+v", dec)
	}
}
