package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// constant is a profile of constant use.
func constant(app string, seconds, gpu, mib float64) *rlcore.Profile {
	return &rlcore.Profile{
		App: app, DurationS: seconds, PeriodS: seconds, StepS: 0.2,
		Series: []rlcore.Use{{GPU: gpu, Core: .85 * gpu, MemMiB: mib, PCIeMBps: 500}},
	}
}

// config is a site with n Titan Xp and the law of MPS; all jobs are there at 0 s.
func config(n int, profiles ...*rlcore.Profile) Config {
	cfg := Config{Truth: Law{&contention.MPS}}
	for range n {
		cfg.GPUs = append(cfg.GPUs, rlcore.TitanXp)
	}
	for i, p := range profiles {
		cfg.Jobs = append(cfg.Jobs, Arrival{Job: rlcore.Job{ID: fmt.Sprint(i), User: "u", Profile: p}})
	}
	return cfg
}

// poisson lets the jobs arrive in their order, the first at 0 s, with exponentially
// distributed gaps of meanGapS on average, s.
func poisson(jobs []Arrival, meanGapS float64, r *rand.Rand) {
	t := 0.0
	for i := range jobs {
		jobs[i].SubmitS = t
		t += meanGapS * r.ExpFloat64()
	}
}

// decider is a named policy behind the guard, both with a model that has learned nothing beyond the law.
func decider(t testing.TB, name string) *rlcore.Decider {
	t.Helper()
	m := interference.New(&contention.MPS)
	p := must.Get(policy.New(name, policy.Setup{Predictor: m, Seed: 1}))(t)
	return &rlcore.Decider{Policy: p, Guard: rlcore.NewGuard(rlcore.Rules{Predictor: m})}
}

// choice is a rule for choosing among the combinations.
type choice func(w *rlcore.Window, c rlcore.Combo) float64

func (choice) Name() string { return "rule" }

func (p choice) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	for i, c := range combos {
		dst[i] = p(w, c)
	}
}

// crowd starts as many jobs as it may.
func crowd(_ *rlcore.Window, c rlcore.Combo) float64 { return float64(c.Len()) }

// never starts nothing as long as it may wait.
func never(_ *rlcore.Window, c rlcore.Combo) float64 { return -float64(c.Len()) }

func run(t testing.TB, cfg Config, d *rlcore.Decider) *Result {
	t.Helper()
	r := must.Get(Run(cfg, d))(t)
	return r
}

// catalogue is a site with n Titan Xp and jobs drawn from the eleven applications.
func catalogue(t testing.TB, gpus, jobs int, seed uint64) Config {
	t.Helper()
	names := must.Get(apps.Workload("random", jobs, rand.NewPCG(seed, 1)))(t)
	known := map[string]*rlcore.Profile{}
	var ps []*rlcore.Profile
	for _, n := range names {
		if known[n] == nil {
			known[n], _ = apps.ByName(n)
		}
		ps = append(ps, known[n])
	}
	return config(gpus, ps...)
}
