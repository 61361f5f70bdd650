package experiment

import (
	"context"
	"fmt"
	"image/color"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/deeprm"
)

var (
	_ = addGradient(deeprm.Max, 40, color.RGBA{230, 159, 0, 255}, "DeepRM, each job's peak use as its demand")
	_ = addGradient(deeprm.Mean, 50, color.RGBA{204, 121, 167, 255}, "DeepRM, each job's mean use as its demand")
	_ = addGradient(deeprm.DqnGPU, 60, color.RGBA{0, 158, 115, 255}, "the thesis's policy gradient over combinations of jobs")
)

// addGradient registers one of the learners that dqn is compared with.
func addGradient(kind deeprm.Kind, rank int, colour color.RGBA, about string) training {
	spec := policy.Register(policy.Spec{
		Name: string(kind), About: about, Rank: rank, Colour: colour, Contender: true, Unguarded: true,
	})
	return addTraining(spec.Name, func(ctx context.Context, c *Contender, train Scenario, e Effort, seed uint64) error {
		a, err := deeprm.New(kind, c.world.M, rand.New(rand.NewPCG(seed, 0xd3)))
		if err != nil {
			return err
		}
		curve, err := a.Train(ctx, deeprm.Options{Seed: seed, Iterations: e.Iterations}, train, c.world.bare)
		if err != nil {
			return err
		}
		c.Note = fmt.Sprintf("%d iterations", len(curve))
		c.policy = func(*interference.Model) rlcore.Policy { return a.Alias() }
		return nil
	})
}
