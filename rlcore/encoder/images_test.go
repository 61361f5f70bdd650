package encoder

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
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
			must.Equal(t, pixels(e, c.slot, c.resource, step), c.want, "slot %d, resource %d, step %d", c.slot, c.resource, step)
		}
	}
	if last := e.Pixels[len(e.Pixels)-1]; int(last) != 4*picture || e.Len() != 4*picture+Backlog {
		t.Errorf("one job of backlog is pixel %d of %d", last, e.Len())
	}
	for c, want := range []bool{true, true, true, false} { // 2 + 8 + 1 units of memory
		must.Equal(t, e.Fits(&w, rlcore.Combo(c)), want, "combination %b fits", c)
	}
	// DeepRM's demands are constant: a job that computes in the second half of its run only.
	late := flat(100, rlcore.Use{})
	late.PeriodS, late.Series = 50, append(late.Series, rlcore.Use{GPU: 0.8})
	s.Pending[0] = rlcore.Job{Profile: late}
	for demand, want := range map[Demand][2]int{OverTime: {0, 8}, Peak: {8, 8}, Mean: {4, 4}} {
		e := &Images{M: 2, Demand: demand}
		e.Encode(&w)
		must.Equal(t, [2]int{pixels(e, 1, 0, 0), pixels(e, 1, 0, 14)}, want, "demand %v", demand)
	}
	s.GPUs[0].Running, s.Pending[0] = nil, rlcore.Job{Profile: flat(100, rlcore.Use{MemMiB: 20000})}
	if e.Encode(&w); !e.Fits(&w, 1) || e.Fits(&w, 3) {
		t.Error("a job that exceeds the images must fit alone on an idle GPU, and not next to another one")
	}
}
