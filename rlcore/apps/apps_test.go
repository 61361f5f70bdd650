package apps

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// The thesis's rules, applied to the profiles, give the thesis's groups.
func TestGroups(t *testing.T) {
	for _, name := range Names() {
		p, ok := ByName(name)
		if !ok {
			t.Fatal(name)
		}
		must.OK(t, p.Validate())
		m := p.Mean()
		must.Near(t, p.DurationS, float64(len(p.Series)), 1e-9, name)
		for group, rule := range map[string]bool{
			"gpu_heavy": m.GPU >= 0.4, "gpu_light": m.GPU < 0.4,
			"mem_heavy": m.MemMiB >= 0.5*rlcore.TitanXp.MemMiB, "mem_light": m.MemMiB < 0.5*rlcore.TitanXp.MemMiB,
		} {
			for _, in := range Workloads[group] {
				if in == name && !rule {
					t.Errorf("%s is in %s with GPU %.2f and %.0f MiB", name, group, m.GPU, m.MemMiB)
				}
			}
		}
	}
}

func TestThesis(t *testing.T) {
	peak := func(name string) float64 { p, _ := ByName(name); return p.Peak().MemMiB }
	for _, pair := range [][2]string{{"lammps", "lammps"}, {"vgg16", "vgg16"}} {
		if peak(pair[0])+peak(pair[1]) <= rlcore.TitanXp.MemMiB {
			t.Errorf("%v must overflow the card", pair)
		}
	}
	if 3*peak("gromacs") > rlcore.TitanXp.MemMiB {
		t.Error("three GROMACS must fit")
	}
	l, _ := ByName("lammps")
	if m := l.Mean().GPU; math.Abs(m-0.4) > 0.05 || l.Peak().GPU != 1 {
		t.Errorf("LAMMPS uses %.2f on average, %.2f at its peak", m, l.Peak().GPU)
	}
	sum, n := 0.0, 0
	for seed := range uint64(200) {
		names := must.Get(Workload("random", 30, rand.NewPCG(seed, 0)))(t)
		for _, name := range names {
			p, _ := ByName(name)
			sum += p.DurationS
		}
		n++
	}
	must.Near(t, sum/float64(n)/2416, 1, 0.03, "how long 30 random jobs take, beside the thesis's")
	must.Fail(t, must.Err(Workload("none", 3, rand.NewPCG(1, 1))), "", "a workload that isn't")
}
