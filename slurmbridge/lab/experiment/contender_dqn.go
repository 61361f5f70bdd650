package experiment

import (
	"cmp"
	"context"
	"fmt"
	"image/color"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
)

// ours is the policy of the trade-off figure and of checkpoints.
const ours = pretrained.Name

// The daemon's network is trained here on the competition's own kind of job sets.
var _ = addTraining(ours, func(ctx context.Context, c *Contender, train Scenario, e Effort, seed uint64) error {
	return c.learn(ctx, train, e.Rounds, e.Checks, seed, func(p rlcore.Predictor, r *rand.Rand) dqn.Network {
		return dqn.NewScorer(cmp.Or(c.world.Objective, policy.Turnaround), 32, p, r)
	})
})

var dqnFlat = policy.Register(policy.Spec{
	Name: "dqn_flat", About: "dqn over the thesis's images instead of the scorer's figures", Rank: 90,
	Colour: color.RGBA{136, 34, 85, 255}, Contender: true, Network: true, Minor: true,
})

var _ = addTraining(dqnFlat.Name, func(ctx context.Context, c *Contender, train Scenario, e Effort, seed uint64) error {
	return c.learn(ctx, train, e.FlatRounds, e.Checks, seed, func(_ rlcore.Predictor, r *rand.Rand) dqn.Network { return dqn.NewFlat(c.world.M, 20, r) })
})

// Trained returns a contender that decides by a network learned before.
func (w *World) Trained(name string, net dqn.Network) *Contender {
	return &Contender{Name: name, world: w, policy: func(m *interference.Model) rlcore.Policy { return dqn.NewPolicy(name, net.Alias(m)) }}
}

func (c *Contender) learn(ctx context.Context, train Scenario, rounds, checks int, seed uint64, build func(rlcore.Predictor, *rand.Rand) dqn.Network) error {
	net := build(c.world.Model(), rand.New(rand.NewPCG(seed, 0x0e7)))
	t := &dqn.Trainer{
		Options: dqn.Options{Seed: seed, Rounds: rounds, M: c.world.M, Checks: checks},
		Net:     net, Scenario: train, Tools: c.world.tools,
	}
	if err := t.Train(ctx); err != nil {
		return err
	}
	c.Note = fmt.Sprintf("best of %d rounds: %d (validation %.3f of %s)", rounds, t.BestRound, t.Best, t.Against())
	c.policy = c.world.Trained(c.Name, net).policy
	return nil
}
