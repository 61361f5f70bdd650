package main

import (
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
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
		cfg, err := config.Load(conf(t, "policy: "+made.Name), nil)
		if err != nil {
			t.Fatal(err)
		}
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
