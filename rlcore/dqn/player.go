package dqn

import (
	"cmp"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// player plays episodes with a network.
type player struct {
	net    *Scorer
	guard  *rlcore.Guard
	m      int
	record recorder // of what it learns from; nil = it only validates
	obs    [1]*Obs
	values []float64
}

// decision is one that left a choice, as a recorder sees it.
type decision struct {
	sim    *sim.Sim
	window *rlcore.Window
	obs    *Obs
	values []float64 // of obs.Combos
	scaleS float64   // the unit of time, s
	taken  int       // position in obs.Combos
}

// play simulates one job set, with random choices of probability eps, and records it. Where r is nil there are none,
// and nothing is recorded.
func (p *player) play(cfg sim.Config, eps float64, r *rand.Rand) (*sim.Result, error) {
	cfg.M = p.m
	cfg.Predictor = p.guard.Predictor
	learns := r != nil && p.record != nil
	if learns {
		p.record.begin(&cfg)
	}
	s, res, err := sim.Play(cfg, p.guard, func(s *sim.Sim, w *rlcore.Window, combos []rlcore.Combo) rlcore.Combo {
		combos = choices(w, combos)
		switch len(combos) {
		case 0:
			return 0
		case 1:
			return combos[0]
		}
		o := p.net.Observe(w, combos, learns)
		p.obs[0] = o
		p.values = p.net.Values(p.values, p.obs[:])
		k := best(p.values)
		if r != nil && r.Float64() < eps {
			k = r.IntN(len(o.Combos))
		}
		if learns {
			p.record.decided(&decision{s, w, o, p.values, p.net.Enc.ScaleS, k})
		}
		return o.Combos[k]
	})
	if err != nil {
		return nil, err
	}
	if learns {
		p.record.end(s)
	}
	return res, nil
}

// soloS returns the sum of the jobs' solo durations, s.
func soloS(cfg *sim.Config) float64 {
	sum := 0.0
	for i := range cfg.Jobs {
		sum += cmp.Or(cfg.Jobs[i].Truth, cfg.Jobs[i].Profile).DurationS
	}
	return sum
}

// best returns the index of the largest value, among equals the first.
func best(v []float64) int {
	k := 0
	for i := range v {
		if v[i] > v[k] {
			k = i
		}
	}
	return k
}
