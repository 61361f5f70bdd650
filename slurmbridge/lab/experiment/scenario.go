package experiment

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Mix draws from several scenarios in turn, at random.
func Mix(of ...Scenario) Scenario {
	return func(r *rand.Rand) (sim.Config, error) { return of[r.IntN(len(of))](r) }
}

// General is the scenario of a network that shall do for any site: all of the
// thesis's workloads in equal parts. What is learned on one GPU holds on many,
// since the scorer's figures know nothing of their number.
func General() (Scenario, error) {
	var all []Scenario
	for _, wl := range Workloads() {
		s, err := Thesis(wl)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return Mix(all...), nil
}

// ErrNothingToLearn says that there are no profiles to draw jobs from.
var ErrNothingToLearn = errors.New("there are no profiles to draw jobs from")

// FromProfiles is the scenario of a site that knows these applications: jobs of
// them in equal parts, in a world that follows the law.
func FromProfiles(profiles []*rlcore.Profile, gpus []rlcore.GPUSpec, law *contention.Law) (Scenario, error) {
	var fit []*rlcore.Profile
	for _, p := range profiles {
		if p.Peak().MemMiB <= gpus[0].MemMiB {
			fit = append(fit, p)
		}
	}
	if len(fit) == 0 {
		return nil, ErrNothingToLearn
	}
	n := min(max(20, 15*len(gpus)), 60)
	return func(r *rand.Rand) (sim.Config, error) {
		cfg := sim.Config{GPUs: gpus, Truth: sim.Law{Law: law}}
		for i := range n {
			cfg.Jobs = append(cfg.Jobs, sim.Arrival{Job: rlcore.Job{ID: fmt.Sprint(i), User: "site", Profile: fit[r.IntN(len(fit))]}})
		}
		return cfg, nil
	}, nil
}

// Training is the scenario of a trace: job sets like its own.
func (t *Trace) Training(m int) (Scenario, *World, error) {
	r, err := t.Ready(m)
	if err != nil {
		return nil, nil, err
	}
	return r.believedLaw(t.law()), r.World, nil
}
