package main

import (
	"bytes"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
)

// A policy that this file alone knows is explained, configured and listed. It is registered
// here and not with the package: the manual is written by a test of it.
func TestRegisteredPolicy(t *testing.T) {
	made := policy.Register(policy.Spec{
		Name: "madeup", About: "decides for this test", Rank: 1000, Live: true, Alone: true,
		New: func(policy.Setup) (rlcore.Policy, error) { return baseline.SJF{}, nil },
	})
	t.Run("help", func(t *testing.T) {
		if _, out, _ := call("serve", "--help"); !strings.Contains(out, made.Name) || !strings.Contains(out, made.About) {
			t.Errorf("serve --help: %s", out)
		}
	})
	t.Run("configuration", func(t *testing.T) {
		cfg := must.Get(config.Load(conf(t, "policy: "+made.Name), nil))(t)
		policies, err := newPolicies(cfg, interference.New(&contention.MPS), nil)
		if err != nil || len(policies) != 3 || policies[0].Name() != "sjf" || policies[2].Name() != "exclusive" {
			t.Errorf("it and what to fall back on: %v, %v", policies, err)
		}
	})
	t.Run("an unknown name's error", func(t *testing.T) {
		if _, _, errOut := call("plan", "-c", conf(t, "policy: coin")); !strings.Contains(errOut, ", "+made.Name) {
			t.Errorf("it isn't listed: %s", errOut)
		}
	})
}

// A path names the file of a network. Without a usable one srpt decides, and the log names the setting.
func TestPolicyOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "site.json")
	must.OK(t, dqn.Save(file, must.Get(pretrained.Checkpoint(policy.Makespan))(t)))
	for _, c := range []struct{ path, decides, says string }{
		{file, "dqn", ""},
		{file + ".absent", "srpt", "slurmbridge.yaml:5: policy: "},
	} {
		cfg := must.Get(config.Load(conf(t, "policy: "+c.path), nil))(t)
		var logged bytes.Buffer
		log := slog.New(slog.NewTextHandler(&logged, nil))
		policies := must.Get(newPolicies(cfg, interference.New(&contention.MPS), log))(t)
		must.Equal(t, policies[0].Name(), c.decides, c.path)
		must.Equal(t, strings.Contains(logged.String(), c.says), true, logged.String())
		wanted, _ := policyOf(cfg)
		must.Equal(t, wanted, "dqn")
	}
}

// TestOnePolicy: serve and plan, which are wired alike, and experiment and replay,
// which let contenders compete, decide the same of the same State, value by value.
func TestOnePolicy(t *testing.T) {
	cfg := must.Get(config.Load("", nil))(t)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	model := interference.New(&contention.MPS)
	policies := must.Get(newPolicies(cfg, model, log))(t)
	live := newDecider(cfg, policies, model)
	cp := must.Get(pretrained.Checkpoint(policy.Turnaround))(t)
	net := must.Get(cp.Network(interference.New(&contention.MPS)))(t)
	world := &experiment.World{
		Model: func() *interference.Model { return interference.New(&contention.MPS) }, M: rlcore.DefaultWindow,
		Rules:   live.Guard.Rules,
		Trained: net,
	}
	contender := must.Get(world.Prepare(t.Context(), "dqn", nil, experiment.Effort{}, 1))(t)
	replayed := contender.Decider()
	scenario := must.Get(experiment.Thesis("random"))(t)
	job := must.Get(scenario(rand.New(rand.NewPCG(1, 2))))(t)
	s := must.Get(sim.New(job))(t)
	decisions, groups := 0, 0
	for s.Next() {
		a, b := live.Decide(s.State(), s.GPU()), replayed.Decide(s.State(), s.GPU())
		if a.Combo != b.Combo || a.Score != b.Score || !slices.Equal(a.Combos, b.Combos) ||
			!slices.Equal(a.Scores, b.Scores) {
			t.Fatalf("decision %d: the bridge takes %b of %b, the replay %b of %b", decisions, a.Combo, a.Combos, b.Combo,
				b.Combos)
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
