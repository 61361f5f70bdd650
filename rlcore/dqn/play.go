package dqn

import (
	"cmp"
	"math"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// player plays episodes with a network.
type player struct {
	net     *Scorer
	guard   *rlcore.Guard
	m       int
	obs     [1]*Obs
	values  []float64
	teacher *teacher
}

// visit is a decision that left a choice.
type visit struct {
	obs   *Obs    // nil at the end of the episode
	taken int     // position in obs.Combos
	atS   float64 // when
	workS float64 // solo work done on the GPU until then, s
}

// episode is what became of a played job set.
type episode struct {
	visits [][]visit // of each GPU, the last without observation; nothing else where none are kept
	result *sim.Result
	tau    float64 // mean solo duration of the jobs, s: the unit of time
	aim    policy.Objective
}

// play simulates one job set, with random choices of probability eps. Where r is nil
// there are none, and no visits are kept; nor are they for a network with a teacher.
func (p *player) play(cfg sim.Config, eps float64, r *rand.Rand) (*episode, error) {
	cfg.M, cfg.Predictor = p.m, p.guard.Predictor
	visits := make([][]visit, len(cfg.GPUs))
	s, res, err := sim.Play(cfg, p.guard, func(s *sim.Sim, w *rlcore.Window, combos []rlcore.Combo) rlcore.Combo {
		combos = choices(w, combos)
		switch len(combos) {
		case 0:
			return 0
		case 1:
			return combos[0]
		}
		o := p.net.Observe(w, combos, r != nil)
		p.obs[0] = o
		p.values = p.net.Values(p.values, p.obs[:])
		if p.teacher != nil && r != nil {
			p.teacher.teach(p.guard, p.m, w, o, p.values, p.net.Enc.ScaleS)
		}
		k := best(p.values)
		if r != nil && r.Float64() < eps {
			k = r.IntN(len(o.Combos))
		}
		if r != nil && p.teacher == nil {
			v := visit{obs: o, taken: k, atS: s.NowS(), workS: s.WorkS(s.GPU())}
			visits[s.GPU()] = visited(visits[s.GPU()], v)
		}
		return o.Combos[k]
	})
	if err != nil {
		return nil, err
	}
	for g := range visits {
		visits[g] = append(visits[g], visit{atS: s.NowS(), workS: s.WorkS(g)})
	}
	return &episode{visits, res, soloS(&cfg) / float64(max(1, len(cfg.Jobs))), p.net.Objective()}, nil
}

// visited appends a visit. It replaces one at the same instant that chose to wait:
// another GPU took jobs, and the decision was due again.
func visited(list []visit, v visit) []visit {
	if n := len(list); n > 0 && list[n-1].atS == v.atS && list[n-1].obs.Combos[list[n-1].taken] == 0 {
		list = list[:n-1]
	}
	return append(list, v)
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

// transitions appends the visits of one GPU as n-step transitions.
//
// The reward between two visits is for the makespan: the solo work that the GPU did less the time that passed, in units
// of τ. Over an episode it sums to all solo work less the makespan on each GPU, so the largest return is the shortest
// makespan, and the effect of a decision shows soon after it.
//
// A transition covers at least n decisions and span·τ of time: with many GPUs, a decision is due whenever another GPU
// takes jobs, and n such decisions may pass before the first has any effect.
func (e *episode) transitions(out []transition, v []visit, n int, span, gamma float64) []transition {
	tau := e.tau
	reward := func(i int) float64 {
		return ((v[i+1].workS - v[i].workS) - (v[i+1].atS - v[i].atS)) / tau
	}
	for i := range len(v) - 1 {
		t := transition{obs: v[i].obs, taken: v[i].taken, decay: 1}
		last := min(i+n, len(v)-1)
		for last < len(v)-1 && v[last].atS-v[i].atS < span*tau {
			last++
		}
		for k := i; k < last; k++ {
			t.reward += t.decay * reward(k)
			t.decay = math.Pow(gamma, (v[k+1].atS-v[i].atS)/tau)
		}
		t.next = v[last].obs
		out = append(out, t)
	}
	return out
}
