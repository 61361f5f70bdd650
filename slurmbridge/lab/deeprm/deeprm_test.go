package deeprm

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

func scenario(r *rand.Rand) (sim.Config, error) {
	names, err := apps.Workload("random", 12, rand.NewPCG(r.Uint64(), r.Uint64()))
	cfg := sim.Config{GPUs: []rlcore.GPUSpec{rlcore.TitanXp}, Truth: sim.Law{Law: &contention.MPS}}
	for i, n := range names {
		p, _ := apps.ByName(n)
		cfg.Jobs = append(cfg.Jobs, sim.Arrival{Job: rlcore.Job{ID: fmt.Sprint(i), User: "u", Profile: p}})
	}
	return cfg, err
}

func TestLearnersTrainAndAreReproducible(t *testing.T) {
	for _, k := range []Kind{Max, Mean, DqnGPU} {
		var theta [2][]float32
		for i := range theta {
			a := New(k, 4, rand.New(rand.NewPCG(1, 1)))
			must.OK(t, a.Train(t.Context(), 1, 2, scenario, sim.Bare))
			theta[i] = a.net.Theta
		}
		for i := range theta[0] {
			if theta[0][i] != theta[1][i] {
				t.Fatalf("%s: two trainings with one seed differ at parameter %d", k, i)
			}
		}
	}
}
