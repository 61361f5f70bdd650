package pretrained

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// TestBuiltIn: the file fits today's encoder, and decides something sensible.
func TestBuiltIn(t *testing.T) {
	for _, aim := range []policy.Objective{policy.Turnaround, policy.Makespan} {
		t.Run(string(aim), func(t *testing.T) { builtIn(t, aim) })
	}
	if name := BuiltInFor(policy.Makespan); name != "built in" {
		t.Errorf("the makespan's network is called %q", name)
	}
}

func builtIn(t *testing.T, aim policy.Objective) {
	t.Helper()
	cp, err := Checkpoint(aim)
	if err != nil || cp.Objective != aim {
		t.Fatal(cp, err)
	}
	m := interference.New(&contention.MPS)
	net := must.Get(cp.Network(m))(t)
	s := &rlcore.State{GPUs: []rlcore.GPU{{Spec: rlcore.TitanXp, FreeCPUs: -1, FreeHostMemMiB: -1}}}
	for _, n := range []string{"alexnet", "gromacs", "vgg16"} {
		p, _ := apps.ByName(n)
		s.Pending = append(s.Pending, rlcore.Job{ID: n, User: "u", Profile: p})
	}
	d := rlcore.Decider{Policy: dqn.NewPolicy("dqn", net), Guard: rlcore.NewGuard(rlcore.Rules{Predictor: m})}
	if dec := d.Decide(s, 0); dec.Combo.Len() < 2 || dec.Broken {
		t.Errorf("of alexnet, gromacs and vgg16 it starts %b", dec.Combo)
	}
}
