package pretrained

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
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
	net, err := cp.Network(m)
	if err != nil {
		t.Fatal(err)
	}
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

// Where the network is in doubt its best few combinations are played out: turnarounds are shorter
// than the network's own on average, and the same each time.
func TestPlayoutsShortenTurnarounds(t *testing.T) {
	cp, err := Checkpoint(policy.Turnaround)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		cfg := sim.Config{GPUs: []rlcore.GPUSpec{rlcore.TitanXp, rlcore.TitanXp}, Truth: sim.Law{Law: &contention.MPS}}
		at := 0.0
		for i := range 60 {
			p, _ := apps.ByName(apps.Names()[r.IntN(len(apps.Names()))])
			j := rlcore.Job{ID: fmt.Sprint(i), User: "u", Profile: p.Stretched(30 + 600*r.ExpFloat64()), SubmitS: at}
			cfg.Jobs = append(cfg.Jobs, sim.Arrival{Job: j})
			at += 250 * r.ExpFloat64()
		}
		run := func(of func(net *dqn.Scorer, m *interference.Model) rlcore.Policy) float64 {
			m := interference.New(&contention.MPS)
			net, err := cp.Network(m)
			if err != nil {
				t.Fatal(err)
			}
			known := cfg
			known.Predictor = m
			res, err := sim.Run(known,
				&rlcore.Decider{Policy: of(net, m), Guard: rlcore.NewGuard(rlcore.Rules{Predictor: m, MaxSlowdown: 2.5})})
			if err != nil {
				t.Fatal(err)
			}
			return res.MeanTurnaroundS
		}
		searching := func(net *dqn.Scorer, m *interference.Model) rlcore.Policy { return dqn.Searching(Name, net, m) }
		own := run(func(net *dqn.Scorer, _ *interference.Model) rlcore.Policy { return dqn.NewPolicy(Name, net) })
		took := run(searching)
		sum += math.Log(took / own)
		if again := run(searching); again != took {
			t.Errorf("seed %d: %v s, and once more %v s", seed, took, again)
		}
	}
	t.Logf("turnaround over the network's own: %.4f", math.Exp(sum/20))
	if sum > 0 {
		t.Errorf("turnaround over the network's own: %.4f", math.Exp(sum/20))
	}
}
