// Package pretrained holds the networks that decide where a site has trained none of its own,
// one for each objective.
//
// For the turnaround none has been found yet that beats the policy it starts from beyond
// chance, in worlds that it wasn't trained in: the network is an untrained one, which decides
// as srpt does (see rlcore/LEARNING.md).
//
// That for the makespan was made by
//
//	slurmbridge train --workload general --rounds 3000 --hidden 64 --seed 4
//
// of revision b179392 (the guard has changed since, and with it what the same
// command makes), and chosen from five such networks by 40 job sets of each of the
// thesis's workloads. On 100 others of each its makespan over tuned greedy's is
// 0.967 on gpu_heavy, 0.987 on gpu_light, 1.000 on mem_heavy, 0.994 on mem_light and
// 0.957 on random; it is at least as short in 92, 76, 100, 75 and 89 of them. The figures that
// the encoder has been given since weigh nothing in it.
package pretrained

import (
	"bytes"
	_ "embed"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
)

//go:embed makespan.json
var makespan []byte

// hidden is the size of the network for the turnaround, from which a site's own training
// goes on.
const hidden = 32

// Checkpoint returns the network that is built in for an objective.
func Checkpoint(aim rlcore.Objective) (*dqn.Checkpoint, error) {
	if aim == rlcore.Makespan {
		return dqn.Read(bytes.NewReader(makespan), "the built-in network for the makespan")
	}
	r := rand.New(rand.NewPCG(1, 0x5e7)) //nolint:gosec // the same network each time
	return dqn.FromTrainer(&dqn.Trainer{
		Options: dqn.Options{Seed: 1, M: rlcore.DefaultWindow}, Net: dqn.NewScorer(rlcore.Turnaround, hidden, nil, r),
	}, "nothing", "slurmbridge")
}

// Learned reports whether a network has learned anything; one that hasn't decides like the
// policy dqn.Start of its objective.
func Learned(c *dqn.Checkpoint) bool { return c.Trained.BestRound > 0 }
