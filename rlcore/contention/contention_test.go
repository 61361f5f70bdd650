package contention

import (
	"math"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"

	"pgregory.net/rapid"
)

func draw(t *rapid.T, n int) []Demand {
	d := make([]Demand, n)
	for i := range d {
		d[i] = Demand{
			GPU: rapid.Float64Range(0, 1).Draw(t, "gpu"), Core: rapid.Float64Range(0, 1).Draw(t, "core"),
			PCIe:  rapid.Float64Range(0, 1).Draw(t, "pcie"),
			StepS: rapid.SampledFrom([]float64{0, 0.01, 0.1, 1}).Draw(t, "step"),
		}
	}
	return d
}

func TestLaw(t *testing.T) {
	for _, l := range []*Law{&MPS, &TimeSlice} {
		rapid.Check(t, func(t *rapid.T) {
			d := draw(t, rapid.IntRange(1, 5).Draw(t, "n"))
			s := l.Slowdowns(nil, d)
			for i, v := range s {
				if !(v >= 1) || math.IsInf(v, 0) {
					t.Fatalf("member %d slows by %v", i, v)
				}
			}
			if len(d) == 1 && s[0] != 1 {
				t.Fatalf("alone it slows by %v", s[0])
			}
			// No set buys more than a second's worth in a second.
			sold := 0.0
			for i, v := range s {
				sold += l.Use(&d[i]) / v
			}
			if sold > l.Capacity*(1+1e-9) {
				t.Fatalf("%v does %v of %v", d, sold, l.Capacity)
			}
			// The order of members doesn't matter.
			r := slices.Clone(d)
			slices.Reverse(r)
			back := l.Slowdowns(nil, r)
			for i := range s {
				if math.Abs(s[i]-back[len(d)-1-i]) > 1e-9*s[i] {
					t.Fatalf("%v reversed is %v", s, back)
				}
			}
			// A busier neighbour never makes it better, nor one with longer iterations.
			if len(d) > 1 {
				busier, longer := slices.Clone(d), slices.Clone(d)
				busier[1].GPU = min(1, busier[1].GPU+rapid.Float64Range(0, 0.3).Draw(t, "busier"))
				longer[1].StepS *= 3
				if l.Slowdowns(nil, busier)[0] < s[0]-1e-9 || l.Slowdowns(nil, longer)[0] < s[0]-1e-9 {
					t.Fatal("a neighbour helps that is busier, or has longer iterations")
				}
			}
		})
	}
}

// Some of the cells that the law was fitted to, and what others saw of more than two sharers.
func TestLawAgainstMeasurements(t *testing.T) {
	two := MPS.Slowdowns(nil, []Demand{{GPU: 0.43, StepS: 0.0074629}, {GPU: 1, StepS: 0.0363744}})
	must.Near(t, two[0]/2.71, 1, 0.15) // CentaurusInfra/alnair: cf10-inc batch 1 with batch 32
	if s := MPS.Slowdowns(nil, []Demand{{GPU: 0.43}, {GPU: 0.43}}); s[0] > 1.07 {
		t.Errorf("a card that isn't full slows by %.2f", s[0])
	}
	// MunQ-Lee/ParvaGPU_SC24: throughput of one of n VGG-16 at batch 32, A100-80GB.
	alone, vgg := 1677.453, []float64{860.145, 574.834, 431.614, 343.681}
	for k, each := range vgg {
		d := make([]Demand, k+2)
		for i := range d {
			d[i] = Demand{GPU: 1, StepS: 0.019}
		}
		must.Near(t, MPS.Slowdowns(nil, d)[0]*each/alone, 1, 0.08, "%d equal processes, measured %.2f", len(d), alone/each)
	}
	// stanford-futuredata/gavel, P100: the median pair; that such a job keeps the
	// card busy 85 % of the time is an assumption.
	must.Near(t, TimeSlice.Slowdowns(nil, []Demand{{GPU: 0.85}, {GPU: 0.85}})[0], 1.69, 0.05,
		"time-slicing's measured median")
}

// What all get done in a second is conserved where the card is full, however it is divided.
func TestCapacityIsConserved(t *testing.T) {
	for _, d := range [][]Demand{
		{{GPU: 1}, {GPU: 1}},
		{{GPU: 1}, {GPU: 1}, {GPU: 0.1}},
		{{GPU: 1, StepS: 0.1}, {GPU: 0.9, StepS: 0.01}, {GPU: 0.5, StepS: 0.01}, {GPU: 0.2, StepS: 1}},
		{{GPU: 1}, {GPU: 1}, {GPU: 1}, {GPU: 0.15}, {GPU: 0.05}},
	} {
		for _, l := range []*Law{&MPS, &TimeSlice} {
			done := 0.0
			for i, s := range l.Slowdowns(nil, d) {
				done += d[i].GPU / s
			}
			must.Near(t, done/l.Capacity, 1, 0.08, "%s, %v: %.2f done of a capacity of %.2f", l.Name, d, done, l.Capacity)
		}
	}
}

// Kernels that leave SMs idle make room for others', under MPS alone; one of which that isn't known gets no credit.
func TestIdleSMs(t *testing.T) {
	slow := func(l *Law, core float64) float64 {
		return l.Slowdowns(nil, []Demand{{GPU: 0.9, Core: core}, {GPU: 0.9, Core: core}})[0]
	}
	if few, usual := slow(&MPS, 0.2), slow(&MPS, usualCore*0.9); few > usual-0.3 {
		t.Errorf("a fifth of the SMs: %.2f, most of them: %.2f", few, usual)
	}
	must.Near(t, slow(&MPS, 0), slow(&MPS, 0.9), 1e-12, "SM activity that isn't known is not credited")
	must.Near(t, slow(&TimeSlice, 0.2), slow(&TimeSlice, 0.9), 1e-12, "turns don't overlap, whatever SMs they leave idle")
}

// An iteration's time says how long kernels are where the card is always busy, and how many there are elsewhere.
func TestIterationTimes(t *testing.T) {
	slow := func(busy, stepS float64) float64 {
		return MPS.Slowdowns(nil, []Demand{{GPU: 0.95, StepS: 0.01}, {GPU: busy, StepS: stepS}})[0]
	}
	if short, long := slow(1, 0.01), slow(1, 0.08); long < 1.5*short {
		t.Errorf("next to eight times as long iterations %.2f, next to equal ones %.2f", long, short)
	}
	must.Near(t, slow(0.7, 0.08), slow(0.7, 0.01), 0.01, "iterations of many launches, beside those of few")
}
