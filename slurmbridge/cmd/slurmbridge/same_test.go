package main

import (
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
)

// TestOnePolicy: serve and plan, which are wired alike, and experiment and replay,
// which let contenders compete, decide the same of the same State, value by value.
func TestOnePolicy(t *testing.T) {
	cfg, err := config.Load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	model := interference.New(&contention.MPS)
	policies, err := newPolicies(cfg, model, log)
	if err != nil {
		t.Fatal(err)
	}
	live := newDecider(cfg, policies, model)
	cp, err := pretrained.Checkpoint(policy.Turnaround)
	if err != nil {
		t.Fatal(err)
	}
	net, err := cp.Network(interference.New(&contention.MPS))
	if err != nil {
		t.Fatal(err)
	}
	world := &experiment.World{
		Model: func() *interference.Model { return interference.New(&contention.MPS) }, M: cfg.Window, Guard: *live.Guard,
	}
	replayed := world.Trained("dqn", net).Decider()
	scenario, err := experiment.Thesis("random")
	if err != nil {
		t.Fatal(err)
	}
	job, err := scenario(rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := sim.New(job)
	if err != nil {
		t.Fatal(err)
	}
	decisions, groups := 0, 0
	for s.Next() {
		a, b := live.Decide(s.State(), s.GPU()), replayed.Decide(s.State(), s.GPU())
		if a.Combo != b.Combo || a.Score != b.Score || !slices.Equal(a.Combos, b.Combos) || !slices.Equal(a.Scores, b.Scores) {
			t.Fatalf("decision %d: the bridge takes %b of %b, the replay %b of %b", decisions, a.Combo, a.Combos, b.Combo, b.Combos)
		}
		decisions++
		if a.Combo.Len() > 1 {
			groups++
		}
		s.Take(a)
	}
	if decisions < 20 || groups == 0 {
		t.Errorf("%d decisions, %d groups: nothing was compared", decisions, groups)
	}
}
