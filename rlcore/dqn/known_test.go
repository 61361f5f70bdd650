package dqn

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	_ "github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// The problem with a known answer: three light and three heavy jobs of 100 s, of which two fit on the card. Greedy
// pairs the light ones, because that is where the card does the most work, and is left with heavy ones, which gain
// nothing from each other; it is best to give each heavy one a light one.
func mixed() Scenario { return shuffled(light, heavy, light, heavy, light, heavy) }

// known is a trainer for that problem.
func known(rounds int) *Trainer {
	return &Trainer{
		Options: Options{Seed: 1, M: 6, Rounds: rounds, Episodes: 8, Steps: 32, Rate: 3e-3, Checks: 8},
		Net:     NewScorer(policy.Makespan, 16, newGuard().Predictor, seeded(1)), Scenario: mixed(), Guard: newGuard,
	}
}

// mixing keeps a light job next to a heavy one, as long as there are both. The best of all orders, 328.0 s, takes half
// a percent less.
type mixing struct{}

func (mixing) Name() string { return "mixing" }

func (mixing) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	kind := map[*rlcore.Profile]float64{light: 1, heavy: -1}
	for k, c := range combos {
		more := 0.0
		for i := range w.Card().Running {
			more += kind[w.Card().Running[i].Profile]
		}
		for i := range w.Jobs {
			if c.Has(i) {
				more += kind[w.Job(i).Profile]
			}
		}
		dst[k] = float64(c.Len()) - 10*math.Abs(more)
	}
}

func TestLearnsAProblemWithAKnownAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a network")
	}
	p := newGuard().Predictor
	makespan := func(policy rlcore.Policy, seed uint64) float64 {
		cfg, _ := mixed()(seeded(seed))
		cfg.M, cfg.Predictor = 6, p
		res := must.Get(sim.Run(cfg, &rlcore.Decider{Policy: policy, Guard: newGuard(), M: 6}))(t)
		return res.MakespanS
	}
	least := makespan(mixing{}, 1)
	greedy := must.Get(policy.New("greedy", policy.Setup{Predictor: p}))(t)
	if g := makespan(greedy, 1); g < 1.05*least {
		t.Fatalf("greedy takes %.1f s, the best is %.1f s: there is nothing to learn", g, least)
	}
	tr := known(60)
	began := time.Now()
	must.OK(t, tr.Train(context.Background()))
	worst := 0.0
	for seed := range uint64(20) { // other orders than those trained on
		worst = max(worst, makespan(NewPolicy("dqn", tr.Net), 100+seed))
	}
	t.Logf("greedy %.1f s, best %.1f s, learned %.1f s in %v (round %d)",
		makespan(greedy, 1), least, worst, time.Since(began).Round(time.Millisecond), tr.BestRound)
	if worst > 1.005*least {
		t.Errorf("after training %.1f s, the best is %.1f s", worst, least)
	}
}
