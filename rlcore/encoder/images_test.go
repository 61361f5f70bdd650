package encoder

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// pixels counts the ones of a picture's resource r in step t.
func pixels(e *Images, slot, r, t int) int {
	n := 0
	at := int32(slot*picture + r*plane + t*Units)
	for _, p := range e.Pixels {
		if p >= at && p < at+Units {
			n++
		}
	}
	return n
}

// TestImagesByHand: a card of 10 GB with a job on it, and one pending.
func TestImagesByHand(t *testing.T) {
	spec := rlcore.GPUSpec{MemMiB: 10000, PCIeMBps: 1000}
	flat := func(dur float64, u rlcore.Use) *rlcore.Profile {
		return &rlcore.Profile{DurationS: dur, PeriodS: dur, Series: []rlcore.Use{u}}
	}
	s := &rlcore.State{
		GPUs: []rlcore.GPU{{Spec: spec, Running: []rlcore.Running{{
			Job: rlcore.Job{Profile: flat(100, rlcore.Use{GPU: 0.35, MemMiB: 2000, Core: 0.1})}, DoneS: 60,
		}}}},
		Pending: []rlcore.Job{
			{Profile: flat(150, rlcore.Use{GPU: 0.5, MemMiB: 8000, PCIeMBps: 990})},
			{Profile: flat(20, rlcore.Use{GPU: 0.25, MemMiB: 1000})},
			{Profile: flat(1, rlcore.Use{})},
		},
	}
	w := rlcore.NewWindow(nil, s, 0, 2)
	e := &Images{M: 2, Virtual: true}
	e.Encode(&w)
	if e.StepS != 10 { // 150 s ÷ 15
		t.Fatalf("a column is %v s", e.StepS)
	}
	for _, c := range []struct {
		slot, resource, from, to, want int
	}{
		{0, 0, 0, 4, 4},
		{0, 0, 4, 20, 0}, // 40 s are left; 3.5 units count as 4
		{0, 1, 0, 4, 2},
		{0, 2, 0, 4, 1},
		{1, 0, 0, 15, 5},
		{1, 0, 15, 20, 0},
		{1, 1, 0, 15, 8},
		{1, 3, 0, 15, 10},
		{2, 0, 0, 2, 3},
		{2, 0, 2, 20, 0},
		{3, 0, 0, 2, 8},
		{3, 0, 2, 15, 5}, // both: 7.5 units, then 5
	} {
		for step := c.from; step < c.to; step++ {
			if n := pixels(e, c.slot, c.resource, step); n != c.want {
				t.Errorf("slot %d, resource %d, step %d: %d units, want %d", c.slot, c.resource, step, n, c.want)
			}
		}
	}
	if last := e.Pixels[len(e.Pixels)-1]; int(last) != 4*picture || e.Len() != 4*picture+Backlog {
		t.Errorf("one job of backlog is pixel %d of %d", last, e.Len())
	}
	for c, want := range []bool{true, true, true, false} { // 2 + 8 + 1 units of memory
		if got := e.Fits(&w, rlcore.Combo(c)); got != want {
			t.Errorf("combination %b fits: %v", c, got)
		}
	}
}

// TestImages of any state: pixels are in order and in bounds, each slot's columns
// hold as many as its timeline has units, and what fits never overflows.
func TestImages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := window(t, state(t, false, false))
		e := &Images{
			M: len(w.Jobs), Virtual: rapid.Bool().Draw(t, "virtual"),
			Demand: rapid.SampledFrom([]Demand{OverTime, Peak, Mean}).Draw(t, "demand"),
		}
		e.Encode(w)
		if !slices.IsSorted(e.Pixels) || len(slices.Compact(slices.Clone(e.Pixels))) != len(e.Pixels) {
			t.Fatal("pixels out of order, or twice")
		}
		if n := len(e.Pixels); n > 0 && (e.Pixels[0] < 0 || int(e.Pixels[n-1]) >= e.Len()) {
			t.Fatalf("pixels %d to %d of %d", e.Pixels[0], e.Pixels[n-1], e.Len())
		}
		all := make([]bool, e.Len())
		for _, p := range e.Pixels {
			all[p] = true
		}
		units := func(slot int, tl *timeline) {
			for r := range tl {
				for step := range tl[r] {
					n := 0
					for u := range Units {
						if all[slot*picture+r*plane+step*Units+u] {
							n++
						}
					}
					if want := min(Units, int(math.Ceil(tl[r][step]-1e-9))); n != want {
						t.Fatalf("slot %d, resource %d, step %d: %d pixels for %v units", slot, r, step, n, tl[r][step])
					}
				}
			}
		}
		units(0, &e.cluster)
		for slot := 1; slot <= e.Slots(); slot++ {
			if e.Virtual {
				e.add(rlcore.Combo(slot), len(w.Jobs))
				units(slot, &e.sum)
			} else {
				units(slot, &e.jobs[slot-1])
			}
		}
		for _, c := range every(w) {
			fits := e.Fits(w, c)
			e.add(c, len(w.Jobs))
			over := false
			for r := range e.sum {
				for step := range e.sum[r] {
					over = over || e.sum[r][step]+e.cluster[r][step] > Units+1e-9
				}
			}
			alone := c == 0 || c.Len() == 1 && len(w.Card().Running) == 0
			if fits != (alone || !over) {
				t.Fatalf("combination %b fits: %v", c, fits)
			}
			for i := range w.Jobs { // a part of what fits fits
				if part := c &^ (1 << i); fits && c.Len() > 1 && !e.Fits(w, part) {
					t.Fatalf("%b fits, its part %b doesn't", c, part)
				}
			}
		}
	})
}

// TestImagesHaveNoUnit: a column is a part of the longest run, so that nothing
// changes where everything takes longer. (Under 1 s the longest counts as 1 s.)
func TestImagesHaveNoUnit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := state(t, true, true)
		w := window(t, s)
		if len(w.Jobs) == 0 {
			t.Skip("nothing pending")
		}
		long := *w
		long.State = slower(s, 64)
		a, b := &Images{M: 6, Virtual: true}, &Images{M: 6, Virtual: true}
		a.Encode(w)
		b.Encode(&long)
		if b.StepS != 64*a.StepS || !slices.Equal(a.Pixels, b.Pixels) {
			t.Fatalf("a column is %v s and %v s", a.StepS, b.StepS)
		}
	})
}
