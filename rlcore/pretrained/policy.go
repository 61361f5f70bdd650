package pretrained

import (
	"fmt"
	"path/filepath"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Name is what the policy is called that decides by a trained network.
const Name = "dqn"

// BuiltIn is what the network in the program is called.
const BuiltIn = "built in"

// BuiltInFor is what the network in the program is called for an objective: it says which
// policy decides where no network is known to be better.
func BuiltInFor(aim policy.Objective) string {
	if c, err := Checkpoint(aim); err != nil || Learned(c) {
		return BuiltIn
	}
	return dqn.Start(aim) + ", " + BuiltIn
}

var _ = policy.Register(policy.Spec{
	Name: Name, About: "a network that has learned which combinations pay, with its best few played out where it is in " +
		"doubt; see the setting model", Rank: 100,
	Live: true, Contender: true, Network: true,
	New: func(s policy.Setup) (rlcore.Policy, error) {
		if s.Model == "" {
			cp, err := Checkpoint(s.Objective)
			if err != nil {
				return nil, err
			}
			return Policy(cp, s.Predictor, BuiltInFor(s.Objective))
		}
		cp, err := dqn.Load(s.Model)
		if err != nil {
			return nil, err
		}
		if s.Objective != "" && cp.Objective != s.Objective {
			return nil, fmt.Errorf("%s was trained for the %s, not the %s: train one with --objective %s, or set objective: %s",
				s.Model, cp.Objective, s.Objective, s.Objective, cp.Objective)
		}
		return Policy(cp, s.Predictor, filepath.Base(s.Model))
	},
})

// Policy decides by a checkpoint; by is what Policy.By is given.
func Policy(cp *dqn.Checkpoint, p rlcore.Predictor, by string) (rlcore.Policy, error) {
	net, err := cp.Network(p)
	if err != nil {
		return nil, err
	}
	return dqn.Searching(Name, net, p).By(by), nil
}
