package sim

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
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
	must.Near(t, got, want, 1e-9*max(1, want), what)
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
