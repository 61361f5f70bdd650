// Package pretrained holds the networks that decide where the settings name none, one for each objective.
//
// That for the turnaround was made by
//
//	slurmbridge train --rounds 80 --seed 1
//
// of revision 123da82 on sites drawn at random, whose lengths were known within 30 %. On today's sites, where runs
// differ and lengths are foretold, no round of the same command is better than srpt, which it begins as. Of the worlds
// with measured slowdowns it has seen nothing; rlcore/LEARNING.md says how it does there.
//
// That for the makespan was made by
//
//	slurmbridge train --objective makespan --rounds 3000 --hidden 64 --seed 4
//
// of revision b179392 (the guard has changed since, and with it what the same command makes), and
// chosen from five such networks by 40 job sets of each of the thesis's workloads. On 100 more of
// each its makespan over tuned greedy's is 0.967 on gpu_heavy, 0.987 on gpu_light, 1.000 on
// mem_heavy, 0.994 on mem_light and 0.957 on random; it is at least as short in 92, 76, 100, 75 and
// 89 of them. The figures that the encoder has been given since weigh nothing in it.
package pretrained

import (
	"bytes"
	_ "embed"
	"fmt"
	"path/filepath"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

//go:embed turnaround.json
var turnaround []byte

//go:embed makespan.json
var makespan []byte

// Checkpoint returns the network that is built in for an objective.
func Checkpoint(aim policy.Objective) (*dqn.Checkpoint, error) {
	file := turnaround
	if aim == policy.Makespan {
		file = makespan
	}
	return dqn.Read(bytes.NewReader(file), "the built-in network")
}

// Name is what the policy is called that decides by a trained network.
const Name = "dqn"

// BuiltIn is what the network in the program is called.
const BuiltIn = "built in"

var _ = policy.Register(policy.Spec{
	Name: Name, About: "a network that has learned which combinations pay, with its best few played out where it is in " +
		"doubt; see the setting model", Rank: 100,
	Live: true, Contender: true, Network: true,
	New: func(s policy.Setup) (rlcore.Policy, error) {
		load, by := func() (*dqn.Checkpoint, error) { return Checkpoint(s.Objective) }, BuiltIn
		if s.Model != "" {
			load, by = func() (*dqn.Checkpoint, error) { return dqn.Load(s.Model) }, filepath.Base(s.Model)
		}
		cp, err := load()
		if err != nil {
			return nil, err
		}
		if s.Model != "" && s.Objective != "" && cp.Objective != s.Objective {
			return nil, fmt.Errorf("%s was trained for the %s, not the %s: train one with --objective %s, or set objective: %s",
				s.Model, cp.Objective, s.Objective, s.Objective, cp.Objective)
		}
		net, err := cp.Network(s.Predictor)
		if err != nil {
			return nil, err
		}
		return dqn.Searching(Name, net, s.Predictor).By(by), nil
	},
})
