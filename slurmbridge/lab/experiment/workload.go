package experiment

import (
	"fmt"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Workloads names the thesis's five, in its order.
func Workloads() []string {
	return []string{"gpu_heavy", "gpu_light", "mem_heavy", "mem_light", "random"}
}

// JobsPerWorkload is the thesis's number of jobs.
const JobsPerWorkload = 30

// Thesis is the scenario of a workload: 30 jobs drawn at random, all submitted at
// once by one user, on one Titan Xp under MPS.
func Thesis(workload string) (Scenario, error) {
	if _, ok := apps.Workloads[workload]; !ok {
		return nil, fmt.Errorf("%w: there is no workload %q; there are %v", ErrOptions, workload, Workloads())
	}
	profiles := map[string]*rlcore.Profile{}
	for _, n := range apps.Names() {
		profiles[n], _ = apps.ByName(n)
	}
	return func(r *rand.Rand) (sim.Config, error) {
		names, err := apps.Workload(workload, JobsPerWorkload, rand.NewPCG(r.Uint64(), r.Uint64()))
		if err != nil {
			return sim.Config{}, err
		}
		cfg := sim.Config{GPUs: []rlcore.GPUSpec{rlcore.TitanXp}, Truth: sim.Law{Law: &contention.MPS}}
		for i, n := range names {
			cfg.Jobs = append(cfg.Jobs, sim.Arrival{Job: rlcore.Job{ID: fmt.Sprint(i + 1), User: "thesis", Profile: profiles[n]}})
		}
		return cfg, nil
	}, nil
}
