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
}

// A site may have a card that nobody has described. No policy fails there: the one that did would decide nowhere else.
func TestACardOfUnknownMemory(t *testing.T) {
	for _, spec := range policy.Live() {
		m := interference.New(&contention.MPS)
		d := rlcore.Decider{
			Policy: must.Get(policy.New(spec.Name, policy.Setup{Predictor: m}))(t),
			Guard:  rlcore.NewGuard(rlcore.Rules{Predictor: m}),
		}
		s := state()
		s.GPUs[0].Spec = rlcore.GPUSpec{Model: "new", SameUser: true, MaxClients: 1}
		for i := range s.Pending {
			s.Pending[i].PlainEndS = 1000
		}
		if dec := d.Decide(s, 0); dec.Broken || dec.Combo.Len() != 1 {
			t.Errorf("%s starts %b, broken: %v", spec.Name, dec.Combo, dec.Broken)
		}
	}
}

// state is a card with three jobs that wait.
func state() *rlcore.State {
	s := &rlcore.State{GPUs: []rlcore.GPU{{Spec: rlcore.TitanXp, FreeCPUs: -1, FreeHostMemMiB: -1}}}
	for _, n := range []string{"alexnet", "gromacs", "vgg16"} {
		p, _ := apps.ByName(n)
		s.Pending = append(s.Pending, rlcore.Job{ID: n, User: "u", Profile: p})
	}
	return s
}

func builtIn(t *testing.T, aim policy.Objective) {
	t.Helper()
	cp, err := Checkpoint(aim)
	if err != nil || cp.Objective != aim || cp.Trained.BestRound == 0 {
		t.Fatal(cp, err)
	}
	m := interference.New(&contention.MPS)
	net := must.Get(cp.Network(m))(t)
	d := rlcore.Decider{Policy: dqn.NewPolicy("dqn", net), Guard: rlcore.NewGuard(rlcore.Rules{Predictor: m})}
	if dec := d.Decide(state(), 0); dec.Combo.Len() < 2 || dec.Broken {
		t.Errorf("of alexnet, gromacs and vgg16 it starts %b", dec.Combo)
	}
}
