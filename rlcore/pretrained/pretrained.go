// Package pretrained holds the networks that decide where the settings name none, one for each objective.
//
// That for the turnaround was made by
//
//	slurmbridge lab train --rounds 80 --seed 1
//
// of revision 123da82 on sites drawn at random, whose lengths were known within 30 %. On today's sites, where runs
// differ and lengths are foretold, no round of the same command is better than srpt, which it begins as. Of the worlds
// with measured slowdowns it has seen nothing; rlcore/LEARNING.md says how it does there.
//
// That for the makespan was made by
//
//	slurmbridge lab train --objective makespan --rounds 3000 --hidden 64 --seed 4
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

// ForMakespan is what that with the built-in network for the makespan is called.
const ForMakespan = Name + "-makespan"

// BuiltIn is what the network in the program is called.
const BuiltIn = "built in"

var _ = policy.Register(policy.Spec{
	Name: Name, Rank: 100,
	About: "a network taught by playouts to keep the mean turnaround small, with its best few combinations played out " +
		"where it is in doubt. A path decides by a network of your own",
	Live: true, Contender: true, Network: true,
	New: func(s policy.Setup) (rlcore.Policy, error) { return decide(Name, policy.Turnaround, s) },
})

var _ = policy.Register(policy.Spec{
	Name: ForMakespan, Rank: 101,
	About: "a network trained by Q-learning to keep the makespan small, the time until all jobs have ended",
	Live:  true, Network: true,
	New: func(s policy.Setup) (rlcore.Policy, error) { return decide(ForMakespan, policy.Makespan, s) },
})

// decide makes the policy of a network: of the one in a file, where one is named, else of the one that is built in for
// an objective.
func decide(name string, aim policy.Objective, s policy.Setup) (rlcore.Policy, error) {
	load, by := func() (*dqn.Checkpoint, error) { return Checkpoint(aim) }, BuiltIn
	if s.Model != "" {
		load, by = func() (*dqn.Checkpoint, error) { return dqn.Load(s.Model) }, filepath.Base(s.Model)
	}
	cp, err := load()
	if err != nil {
		return nil, err
	}
	net, err := cp.Network(s.Predictor)
	if err != nil {
		return nil, err
	}
	return dqn.Searching(name, net, s.Predictor).By(by), nil
}
