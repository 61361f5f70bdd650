package sim

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
)

// A job takes as long as it does on the model of its GPU, and what is foretold of a waiting one is of that model, too.
func TestRunsOnEachModel(t *testing.T) {
	app := &rlcore.Profile{App: "a", DurationS: 100, PeriodS: 100, Series: []rlcore.Use{{GPU: .5, Core: .5, MemMiB: 10}}}
	cfg := Config{
		GPUs: []rlcore.GPUSpec{{MemMiB: 100}, {MemMiB: 100}}, Cards: []string{"fast", "slow"}, Foretell: true, Truth: Law{},
		On: func(p *rlcore.Profile, card string) *rlcore.Profile {
			return p.Times(map[string]float64{"fast": 1, "slow": 3}[card])
		},
	}
	for _, id := range []string{"1", "2", "3"} {
		cfg.Jobs = append(cfg.Jobs, Arrival{Job: rlcore.Job{ID: id, Profile: app, LimitS: 1000}})
	}
	r := must.Get(Run(cfg, &rlcore.Decider{Policy: baseline.Exclusive{}, Guard: oneEach(), M: 1}))(t)
	for i, want := range []float64{100, 300, 200} {
		if got := r.Jobs[i]; got.EndS != want || got.Slowdown != 1 || got.SoloS != map[int]float64{0: 100, 1: 300}[got.GPU] {
			t.Errorf("%+v, want an end at %v s", got, want)
		}
	}
}

func oneEach() *rlcore.Guard {
	g := Bare()
	g.MaxMembers = 1
	return g
}
