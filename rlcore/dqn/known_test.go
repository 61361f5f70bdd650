package dqn

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	_ "github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// The problem with a known answer: three light and three heavy jobs of 100 s, of
// which two fit on the card. Greedy pairs the light ones, because that is where
// the card does the most work, and is left with heavy ones, which gain nothing from
// each other; best is to give each heavy one a light one.
func mixed() Scenario { return shuffled(light, heavy, light, heavy, light, heavy) }

// known is a trainer for that problem.
func known(rounds int) *Trainer {
	return &Trainer{
		Options: Options{Seed: 1, M: 6, Rounds: rounds, Episodes: 8, Steps: 32, Rate: 3e-3, Checks: 8},
		Net:     NewScorer(policy.Makespan, 16, newTools().Predictor, seeded(1)), Scenario: mixed(), Tools: newTools,
	}
}

// shortest is the least makespan that any sequence of allowed decisions has, by
// trying all of them; jobs of the same profile are the same.
func shortest(t *testing.T, cfg sim.Config, m int) float64 {
	t.Helper()
	tools := newTools()
	cfg.M, cfg.Predictor = m, tools.Predictor
	best := math.Inf(1)
	var visit func(taken []rlcore.Combo)
	visit = func(taken []rlcore.Combo) {
		s, err := sim.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for k := 0; s.Next(); k++ {
			w := rlcore.NewWindow(nil, s.State(), s.GPU(), m)
			combos := tools.Guard.Combos(nil, &w)
			if k < len(taken) {
				s.Take(rlcore.Decision{Window: w, Combo: taken[k], Combos: combos})
				continue
			}
			if s.NowS() >= best {
				return
			}
			seen := map[[2]int]bool{}
			for _, c := range slices.Backward(combos) { // waiting last: a good end early spares much
				var kind [2]int
				for i := range w.Jobs {
					if c.Has(i) && w.Job(i).Profile == light {
						kind[0]++
					} else if c.Has(i) {
						kind[1]++
					}
				}
				if !seen[kind] && (c != 0 || !s.MustStart()) {
					seen[kind] = true
					visit(append(slices.Clone(taken), c))
				}
			}
			return
		}
		res, err := s.Result()
		if err != nil {
			t.Fatal(err)
		}
		best = min(best, res.MakespanS)
	}
	visit(nil)
	return best
}

func TestLearnsAProblemWithAKnownAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a network")
	}
	cfg, _ := mixed()(seeded(1))
	least := shortest(t, cfg, 6)
	p := newTools().Predictor
	makespan := func(policy rlcore.Policy, seed uint64) float64 {
		cfg, _ := mixed()(seeded(seed))
		cfg.M, cfg.Predictor = 6, p
		res, err := sim.Run(cfg, &rlcore.Decider{Policy: policy, Guard: newTools().Guard, M: 6})
		if err != nil {
			t.Fatal(err)
		}
		return res.MakespanS
	}
	greedy, err := policy.New("greedy", policy.Setup{Predictor: p})
	if err != nil {
		t.Fatal(err)
	}
	if g := makespan(greedy, 1); g < 1.05*least {
		t.Fatalf("greedy takes %.1f s, the best is %.1f s: there is nothing to learn", g, least)
	}
	tr := known(60)
	began := time.Now()
	if err := tr.Train(context.Background()); err != nil {
		t.Fatal(err)
	}
	worst := 0.0
	for seed := range uint64(20) { // other orders than those trained on
		worst = max(worst, makespan(NewPolicy("dqn", tr.Net), 100+seed))
	}
	t.Logf("greedy %.1f s, best %.1f s, learned %.1f s in %v (round %d)",
		makespan(greedy, 1), least, worst, time.Since(began).Round(time.Millisecond), tr.BestRound)
	if worst > 1.01*least {
		t.Errorf("after training %.1f s, the best is %.1f s", worst, least)
	}
}
