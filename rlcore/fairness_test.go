package rlcore

import (
	"math"
	"slices"
	"testing"
)

// fair is a GPU with one job that has 100 s left, and a queue: a job that wants
// the GPU alone, then short and long ones that share.
func fair(passed int) (*Guard, *State) {
	p := func(app string, s float64) *Profile {
		return &Profile{App: app, DurationS: s, PeriodS: s, Series: []Use{{GPU: 0.1, MemMiB: 100}}}
	}
	st := &State{
		GPUs: []GPU{{
			Spec: TitanXp, FreeCPUs: -1, FreeHostMemMiB: -1,
			Running: []Running{{Job: Job{ID: "r", User: "u", Profile: p("r", 300)}, DoneS: 200, ElapsedS: 200, Shares: 10}},
		}},
		Pending: []Job{
			{ID: "whole", User: "u", Profile: p("w", 50), NoShare: true, PassedOver: passed},
			{ID: "short", User: "u", Profile: p("s", 90)},
			{ID: "long", User: "u", Profile: p("l", 500)},
		},
	}
	return &Guard{MaxPassOver: 5}, st
}

func TestPassed(t *testing.T) {
	g, st := fair(0)
	w := NewWindow(nil, st, 0, 5)
	for c, want := range map[Combo][]int{
		0b010: nil,    // ends before the GPU would have been empty
		0b100: {0, 1}, // ends later: the first waits longer, and the second could have started
		0b110: {0},
		0b001: nil,
		0:     nil,
	} {
		if got := g.Passed(nil, &w, c); !slices.Equal(got, want) {
			t.Errorf("%03b passes over %v, want %v", c, got, want)
		}
	}
}

func TestDrains(t *testing.T) {
	combos := func(g *Guard, st *State) []Combo {
		w := NewWindow(nil, st, 0, 5)
		return g.Combos(nil, &w)
	}
	g, st := fair(4)
	if got := combos(g, st); len(got) != 4 {
		t.Fatalf("passed over four times, the job limits nothing yet: %b", got)
	}
	g, st = fair(5)
	if got := combos(g, st); !slices.Equal(got, []Combo{0}) {
		t.Errorf("a job that needs the GPU alone was passed over five times, and may be joined on: %b", got)
	}
	// Empty, it is the one that starts.
	st.GPUs[0].Running = nil
	if got := combos(g, st); !slices.Equal(got, []Combo{1}) {
		t.Errorf("on the empty GPU: %b", got)
	}
	// Another GPU is empty sooner: this one stays open.
	g, st = fair(5)
	other := st.GPUs[0]
	other.Running = []Running{{Job: Job{ID: "x", User: "u", LimitS: 60}, ElapsedS: 10, Whole: true}}
	st.GPUs = append(st.GPUs, other)
	if got := combos(g, st); len(got) != 4 {
		t.Errorf("another GPU is free before: %b", got)
	}
	// … unless the job may not use that one.
	st.Pending[0].GPUs = []int{0}
	if got := combos(g, st); !slices.Equal(got, []Combo{0}) {
		t.Errorf("the other GPU is not for it: %b", got)
	}
}

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
	g := &Guard{}
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
	_, st := fair(0)
	st.GPUs[0].Running = nil
	nan := math.NaN()
	d := &Decider{Policy: evenly{"a", nan}, Fallback: []Policy{evenly{"b", nan}, evenly{"c", 1}}, Guard: &Guard{}}
	dec := d.Decide(st, 0)
	if !dec.Broken || dec.Score != 1 || d.Policy.Name() != "c" || len(d.Fallback) != 0 {
		t.Errorf("%+v by %s", dec, d.Policy.Name())
	}
	if dec = d.Decide(st, 0); dec.Broken {
		t.Error("the fallback counts as broken")
	}
	d = &Decider{Policy: evenly{"a", nan}, Guard: &Guard{}}
	if dec = d.Decide(st, 0); !dec.Broken || dec.Combo != 0 {
		t.Errorf("with nothing to fall back on: %+v", dec)
	}
}
