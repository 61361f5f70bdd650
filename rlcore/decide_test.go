package rlcore

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
)

func TestFallback(t *testing.T) {
	st := &State{GPUs: []GPU{card()}, Pending: []Job{{ID: "1", User: "u", Profile: flat("a", 10, 100)}}}
	broken := scores{1: math.NaN()}
	d := &Decider{Policy: broken, Fallback: []Policy{broken, scores{1: 7}}, Guard: NewGuard(Rules{})}
	if dec := d.Decide(st, 0); !dec.Broken || dec.Score != 7 || len(d.Fallback) != 0 {
		t.Errorf("%+v, and %d are left to fall back on", dec, len(d.Fallback))
	}
	if dec := d.Decide(st, 0); dec.Broken || dec.Score != 7 {
		t.Errorf("the fallback's next decision: %+v", dec)
	}
	d = &Decider{Policy: broken, Guard: NewGuard(Rules{})}
	if dec := d.Decide(st, 0); !dec.Broken || dec.Combo != 0 {
		t.Errorf("with nothing to fall back on: %+v", dec)
	}
}

// What a decision finds doesn't depend on the decisions before it, as long as they take nothing: each of the GPUs, of
// two models on which applications differ, gets what it would get as the first.
func TestADecisionDoesNotDependOnTheOneBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &State{NowS: 100}
		n := rapid.IntRange(2, 6).Draw(t, "GPUs")
		for g := range n {
			gpu := card()
			gpu.ID, gpu.Node, gpu.Model = fmt.Sprint(g), fmt.Sprint("n", g),
				rapid.SampledFrom([]string{"fast", "slow"}).Draw(t, "model")
			if rapid.Bool().Draw(t, "busy") {
				gpu.Running = []Running{{Job: Job{ID: fmt.Sprint("r", g), User: "u", Profile: flat("r", 500, 1000)}, Shares: 40}}
			}
			s.GPUs = append(s.GPUs, gpu)
		}
		some := NewGPUSet(0, n-1)
		for i := range rapid.IntRange(1, 12).Draw(t, "jobs") {
			takes := rapid.Float64Range(10, 1000).Draw(t, "takes")
			j := Job{ID: fmt.Sprint(i), User: "u", Profile: flat(fmt.Sprint(i), takes, 2000), LimitS: 3600}
			switch rapid.IntRange(0, 3).Draw(t, "known") {
			case 0:
				j.ByModel = &ProfilesByModel{"fast": j.Profile, "slow": nil}
			case 1:
				j.ByModel = &ProfilesByModel{"fast": j.Profile, "slow": flat(fmt.Sprint(i), 3*takes, 9000)}
			}
			if rapid.IntRange(0, 4).Draw(t, "choosy") == 0 {
				j.GPUs = some
			}
			j.PlainEndS = s.NowS + takes*rapid.Float64Range(1, 3).Draw(t, "due")
			s.Pending = append(s.Pending, j)
		}
		rules := Rules{Predictor: pairwise(rapid.Float64Range(1, 1.6).Draw(t, "slowdown"))}
		after := &Decider{Policy: byLength{}, Guard: NewGuard(rules), M: 6}
		after.Guard.Begin(s)
		for g := range n {
			fresh := &Decider{Policy: byLength{}, Guard: NewGuard(rules), M: 6}
			want := fresh.Decide(s, g)
			got := after.Choose(NewWindow(nil, s, g, 6))
			if got.Combo != want.Combo || got.Score != want.Score || !slices.Equal(got.Vetoes, want.Vetoes) {
				t.Fatalf("GPU %d gets %b, and as the first GPU %b; refused %v and %v", g, got.Combo, want.Combo, got.Vetoes,
					want.Vetoes)
			}
		}
	})
}

// byLength wants long jobs together.
type byLength struct{}

func (byLength) Name() string { return "by length" }

func (byLength) Score(dst []float64, w *Window, combos []Combo) {
	for k, c := range combos {
		dst[k] = 0
		for i := range w.Jobs {
			if j := w.Job(i); c.Has(i) && j.Profile != nil {
				dst[k] += j.Profile.DurationS
			}
		}
	}
}

// An idle GPU isn't kept from the job that has its turn there by as many jobs in front of it as the window has, which
// have their turns elsewhere.
func TestATurnBehindTheWindow(t *testing.T) {
	first, second := NewGPUSet(0), NewGPUSet(1)
	on := func(j Job, gpu int, startS float64) Job {
		j.PlainSlot = &schedule.Slot{On: []int{gpu}, StartS: startS}
		return plainly(j, startS+j.Profile.DurationS)
	}
	mine := on(lasting("mine", 500), 0, 50)
	mine.GPUs = first
	s := &State{
		GPUs: []GPU{card(), card(running(lasting("r", 100), 0, 0)...)}, Sets: []*GPUSet{first, second},
		Pending:    []Job{on(lasting("a", 500), 1, 100), on(lasting("b", 500), 1, 600), on(lasting("c", 500), 1, 1100), mine},
		PlainFreeS: []float64{550, 1600},
	}
	for m, want := range map[int][]int{1: {3}, 2: {0, 3}, 3: {0, 1, 3}, 4: {0, 1, 2, 3}} {
		d := &Decider{Policy: byLength{}, Guard: NewGuard(Rules{}), M: m}
		dec := d.Decide(s, 0)
		if !slices.Equal(dec.Window.Jobs, want) || !slices.Equal(dec.Jobs(), []int{3}) {
			t.Errorf("of the first %d: window %v, decision %v; want %v, and the last job", m, dec.Window.Jobs, dec.Jobs(), want)
		}
		must.Equal(t, d.Again(s, 1).Window.Jobs, []int{0, 1, 2}[:min(m, 3)], "the window of a busy GPU, of the first %d", m)
	}
}

// Of combinations with equal scores waiting comes first, then those with the job of highest priority.
func TestTheOrderOfEqualScores(t *testing.T) {
	var all []Combo
	for c := range Combo(8) {
		all = append(all, c)
	}
	slices.SortFunc(all, Combo.compare)
	// Job 0 is in the first four after waiting, job 1 in the first two of these.
	must.Equal(t, fmt.Sprintf("%03b", all), "[000 111 011 101 001 110 010 100]", "combinations in order")
}
