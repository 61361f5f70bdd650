package dqn

import (
	"math"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Tools are what a simulated site decides with. They keep scratch, so that
// everyone who works at the same time needs their own.
type Tools struct {
	Guard     *rlcore.Guard
	Predictor rlcore.Predictor
}

// player plays episodes with a network.
type player struct {
	net    Network
	tools  Tools
	m      int
	values []float64
	combos []rlcore.Combo
	jobs   []int
}

// visit is a decision that left a choice.
type visit struct {
	obs   *Obs
	taken int
	atS   float64
	workS float64
}

// play simulates one episode, choosing at random with probability eps, and
// returns what was visited on each GPU, with a last visit without observation at
// the end. τ, the unit of time, is the mean solo duration of the jobs.
func (p *player) play(cfg sim.Config, eps float64, r *rand.Rand) ([][]visit, *sim.Result, float64, error) {
	cfg.M, cfg.Predictor = p.m, p.tools.Predictor
	s, err := sim.New(cfg)
	if err != nil {
		return nil, nil, 0, err
	}
	visits := make([][]visit, len(cfg.GPUs))
	for s.Next() {
		w := rlcore.NewWindow(p.jobs, s.State(), s.GPU(), p.m)
		p.jobs = w.Jobs
		p.combos = p.tools.Guard.Combos(p.combos[:0], &w)
		combos := choices(&w, p.combos)
		if s.MustStart() && len(combos) > 1 && combos[0] == 0 {
			combos = combos[1:]
		}
		dec := rlcore.Decision{Window: w, Combos: p.combos}
		switch len(combos) {
		case 0:
		case 1:
			dec.Combo = combos[0]
		default:
			o := p.net.Observe(&w, combos, r != nil)
			k := 0
			if r != nil && r.Float64() < eps {
				k = r.IntN(len(o.Combos))
			} else {
				p.values = p.net.Values(p.values, o)
				k = best(p.values)
			}
			dec.Combo = o.Combos[k]
			if r != nil {
				visits[s.GPU()] = visited(visits[s.GPU()], visit{o, k, s.NowS(), s.WorkS(s.GPU())})
			}
		}
		s.Take(p.tools.Guard, dec)
	}
	res, err := s.Result()
	if err != nil {
		return nil, nil, 0, err
	}
	for g := range visits {
		visits[g] = append(visits[g], visit{atS: s.NowS(), workS: s.WorkS(g)})
	}
	return visits, res, soloS(&cfg) / float64(max(1, len(cfg.Jobs))), nil
}

// visited appends a visit. One at the same instant that chose to wait was no
// choice: another GPU took jobs, and this one is asked anew.
func visited(list []visit, v visit) []visit {
	if n := len(list); n > 0 && list[n-1].atS == v.atS && list[n-1].obs.Combos[list[n-1].taken] == 0 {
		list = list[:n-1]
	}
	return append(list, v)
}

// soloS is the sum of the jobs' solo durations, s.
func soloS(cfg *sim.Config) float64 {
	sum := 0.0
	for i := range cfg.Jobs {
		p := cfg.Jobs[i].Truth
		if p == nil {
			p = cfg.Jobs[i].Profile
		}
		sum += p.DurationS
	}
	return sum
}

// best is the index of the largest value, of equals the first.
func best(v []float64) int {
	k := 0
	for i := range v {
		if v[i] > v[k] {
			k = i
		}
	}
	return k
}

// transitions joins the visits of one GPU into n-step transitions.
//
// The reward of the time between two visits is the solo work the GPU did in it
// less the time itself, in units of τ. Over an episode it sums to all solo work
// less the makespan on each GPU, so that the largest return is the shortest
// makespan; and what a decision adds shows soon after it, not only at the end.
//
// A transition covers at least n decisions and span·τ of time: with many GPUs one
// GPU is asked whenever another one takes jobs, and n such decisions may pass
// before anything comes of the first.
func transitions(out []transition, v []visit, n int, span, gamma, tau float64) []transition {
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
