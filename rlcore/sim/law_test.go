package sim

import (
	"math"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// slowdowns are the law's for members that stay in their only segment.
func slowdowns(l *contention.Law, p ...*rlcore.Profile) []float64 {
	var d []contention.Demand
	for i := range p {
		u := p[i].Series[0]
		d = append(d, contention.Demand{
			GPU: u.GPU, Core: u.Core, PCIe: u.PCIeMBps / rlcore.TitanXp.PCIeMBps, StepS: p[i].StepS,
		})
	}
	return l.Slowdowns(nil, d)
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*max(1, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Two of constant use: the one with less to do at its speed ends first, the other
// has the GPU for itself from then on.
func TestTwoByHand(t *testing.T) {
	for _, l := range []*contention.Law{&contention.MPS, &contention.TimeSlice} {
		a, b := constant("a", 40, .6, 100), constant("b", 100, .9, 200)
		cfg := config(1, a, b)
		cfg.Truth = Law{l}
		r := run(t, cfg, &rlcore.Decider{Policy: choice(crowd), Guard: Bare()})
		s := slowdowns(l, a, b)
		if s[0] < 1.1 {
			t.Fatalf("%s: these don't slow each other: %v", l.Name, s)
		}
		endA := 40 * s[0]
		near(t, l.Name+" a", r.Jobs[0].EndS, endA)
		near(t, l.Name+" b", r.Jobs[1].EndS, endA+(100-endA/s[1]))
		near(t, l.Name+" makespan", r.MakespanS, r.Jobs[1].EndS)
		near(t, l.Name+" slowdown", r.Jobs[0].Slowdown, s[0])
		near(t, l.Name+" turnaround", r.MeanTurnaroundS, (r.Jobs[0].EndS+r.Jobs[1].EndS)/2)
		// Memory held: both until a ends, then b.
		near(t, l.Name+" memory", r.MemUtil, (300*endA+200*(r.MakespanS-endA))/rlcore.TitanXp.MemMiB/r.MakespanS)
		together := 1 - (1-.6)/s[0]*(1-.9)/s[1]
		near(t, l.Name+" busy", r.GPUUtil, (together*endA+.9*(r.MakespanS-endA))/r.MakespanS)
	}
}

func TestThreeByHand(t *testing.T) {
	a, b, c := constant("a", 20, .5, 100), constant("b", 60, .7, 100), constant("c", 200, .9, 100)
	r := run(t, config(1, a, b, c), &rlcore.Decider{Policy: choice(crowd), Guard: Bare()})
	s3 := slowdowns(&contention.MPS, a, b, c)
	endA := 20 * s3[0]
	s2 := slowdowns(&contention.MPS, b, c)
	endB := endA + (60-endA/s3[1])*s2[0]
	doneC := endA/s3[2] + (endB-endA)/s2[1]
	near(t, "a", r.Jobs[0].EndS, endA)
	near(t, "b", r.Jobs[1].EndS, endB)
	near(t, "c", r.Jobs[2].EndS, endB+200-doneC)
}

// A member with two phases: its first slows the other, its second doesn't.
func TestPhasesByHand(t *testing.T) {
	a := constant("a", 100, .8, 100)
	b := &rlcore.Profile{App: "b", DurationS: 100, PeriodS: 25, Series: []rlcore.Use{
		{GPU: .9}, {GPU: .9}, {}, {},
	}}
	r := run(t, config(1, a, b), &rlcore.Decider{Policy: choice(crowd), Guard: Bare()})
	phase := *b
	phase.Series = b.Series[:1]
	s := slowdowns(&contention.MPS, a, &phase)
	turn := 50 * s[1]
	idle := *b
	idle.Series = b.Series[2:]
	s2 := slowdowns(&contention.MPS, a, &idle)
	near(t, "one that asks for nothing", s2[1], 1)
	near(t, "b", r.Jobs[1].EndS, turn+50)
	near(t, "a", r.Jobs[0].EndS, turn+50+100-turn/s[0]-50/s2[0])
}

// Measured pairs as truth: more than one other adds up.
func TestPairsByHand(t *testing.T) {
	a, b, c := constant("a", 10, .5, 100), constant("b", 10, .5, 100), constant("c", 10, .5, 100)
	pairs := Pairs{
		{"a", "b"}: 1.5, {"b", "a"}: 1.25, {"a", "c"}: 1.25, {"c", "a"}: 2, {"b", "c"}: 0.9, {"c", "b"}: 1,
	}
	cfg := config(1, a, b, c)
	cfg.Truth = pairs
	r := run(t, cfg, &rlcore.Decider{Policy: choice(crowd), Guard: Bare()})
	near(t, "b", r.Jobs[1].EndS, 12.5)
	near(t, "a", r.Jobs[0].EndS, 12.5+(10-12.5/1.75)*1.25)
	left := 10 - r.Jobs[0].EndS/2
	near(t, "c", r.Jobs[2].EndS, r.Jobs[0].EndS+left)
	if pairs.Lacks("a", "b") || !pairs.Lacks("a", "d") {
		t.Error("Lacks is wrong about what was measured")
	}
}

// What n equal processes measured, of what two did: MunQ-Lee/ParvaGPU_SC24 (MIT), A100-80GB,
// slowdowns of networks at one batch size.
func TestPairsAddUp(t *testing.T) {
	for name, slow := range map[string][]float64{ // of two, three, four
		"vgg16 32":       {1.95, 2.92, 3.89},
		"resnet50 16":    {1.75, 2.52, 3.42},
		"mobilenetv2 32": {1.80, 2.66, 3.56},
		"inceptionv3 8":  {1.06, 1.05, 1.17},
		"bert 8":         {1.08, 1.21, 1.41},
	} {
		p := constant(name, 10, .5, 100)
		pairs := Pairs{{name, name}: slow[0]}
		for i, want := range slow[1:] {
			members := slices.Repeat([]*rlcore.Profile{p}, i+3)
			if got := pairs.Slowdowns(nil, members, nil)[0]; math.Abs(got/want-1) > 0.13 {
				t.Errorf("%d of %s slow by %.2f, measured %.2f", len(members), name, got, want)
			}
		}
	}
}
