package sim

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Objective is what a search makes small, s.
type Objective func(*Result) float64

// Makespan and Turnaround are the two objectives there are.
func Makespan(r *Result) float64   { return r.MakespanS }
func Turnaround(r *Result) float64 { return r.MeanTurnaroundS }

// start is one entry of a GPU's list: the job starts once the ones before it have
// started and at most beside others are on the GPU.
type start struct{ job, beside int }

// plan holds one list per GPU.
type plan [][]start

func (p plan) clone() plan {
	out := make(plan, len(p))
	for g := range p {
		out[g] = slices.Clone(p[g])
	}
	return out
}

// Clairvoyant looks for the best schedule with the truth in hand: every job's
// profile, every arrival, the law itself. Nobody who schedules live can know
// that; what it finds is the mark to measure policies against. It is simulated
// annealing over lists (which job, on which GPU, beside how many), starting from
// the given results of policies on the same Config, so it is never worse than
// the best of them, and from its own first list where there are none. It isn't
// proven optimal. tries is how many schedules are simulated.
func Clairvoyant(cfg Config, tries int, seed uint64, objective Objective, from ...*Result) (*Result, error) {
	cfg.Predictor, cfg.M = nil, math.MaxInt
	track := cfg.Track
	cfg.Track = false
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	var best plan
	var bestRes *Result
	bestCost := math.Inf(1)
	consider := func(p plan) error {
		res, err := cfg.run(p)
		if err != nil {
			return err
		}
		if c := cost(res, objective); best == nil || c < bestCost {
			best, bestCost, bestRes = p.clone(), c, res
		}
		return nil
	}
	if err := consider(cfg.alone()); err != nil {
		return nil, err
	}
	for _, res := range from {
		if res != nil && len(res.Jobs) == len(cfg.Jobs) && res.OOM == 0 {
			if err := consider(cfg.asDone(res)); err != nil {
				return nil, err
			}
			if c := cost(res, objective); c < bestCost {
				bestCost, bestRes = c, res
			}
		}
	}
	cur, curCost := best.clone(), bestCost
	heat := bestCost / 50
	for t := range tries {
		next := cur.clone()
		for range 1 + r.IntN(2) {
			mutate(next, r)
		}
		res, err := cfg.run(next)
		if err != nil {
			return nil, err
		}
		c := cost(res, objective)
		temp := heat * (1 - float64(t)/float64(tries))
		if c <= curCost || r.Float64() < math.Exp((curCost-c)/max(temp, 1e-9)) {
			cur, curCost = next, c
		}
		if c < bestCost {
			best, bestCost, bestRes = next.clone(), c, res
		}
		// A branch that leads nowhere is left.
		if t%max(tries/8, 1) == 0 {
			cur, curCost = best.clone(), bestCost
		}
	}
	if !track || cost(bestRes, objective) == 0 {
		return bestRes, nil
	}
	cfg.Track = true
	res, err := cfg.run(best)
	if err != nil || cost(res, objective) > bestCost {
		return bestRes, err
	}
	return res, nil
}

// cost is the objective; a lost run is worse than any schedule.
func cost(r *Result, objective Objective) float64 {
	return objective(r) * (1 + 10*float64(r.OOM))
}

// alone gives every job a GPU of its own, in order of arrival, in turn.
func (cfg *Config) alone() plan {
	p := make(plan, len(cfg.GPUs))
	for i := range cfg.Jobs {
		g := i % len(p)
		for k := range p { // the first from there with the memory
			if fitsAny(cfg.GPUs[(g+k)%len(p):(g+k)%len(p)+1], cfg.Jobs[i].PeakMiB()) {
				g = (g + k) % len(p)
				break
			}
		}
		p[g] = append(p[g], start{job: i})
	}
	return p
}

// PeakMiB is the most memory the job really holds, MiB.
func (j *Job) PeakMiB() float64 {
	if j.Truth != nil {
		return j.Truth.Peak().MemMiB
	}
	return j.Profile.Peak().MemMiB
}

// asDone is the list of what a policy did.
func (cfg *Config) asDone(res *Result) plan {
	p := make(plan, len(cfg.GPUs))
	order := make([]int, len(res.Jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch x, y := &res.Jobs[a], &res.Jobs[b]; {
		case x.StartS < y.StartS:
			return -1
		case x.StartS > y.StartS:
			return 1
		}
		return 0
	})
	for at, i := range order {
		o := &res.Jobs[i]
		beside := 0
		for _, k := range order[:at] {
			if q := &res.Jobs[k]; q.GPU == o.GPU && q.EndS > o.StartS {
				beside++
			}
		}
		p[o.GPU] = append(p[o.GPU], start{i, beside})
	}
	return p
}

// mutate changes one thing about a plan: a job's place, two jobs' places, or how
// many a job starts beside.
func mutate(p plan, r *rand.Rand) {
	g := r.IntN(len(p))
	for len(p[g]) == 0 {
		g = (g + 1) % len(p)
	}
	i := r.IntN(len(p[g]))
	switch r.IntN(4) {
	case 0:
		s := &p[g][i]
		s.beside = max(0, min(4, s.beside+2*r.IntN(2)-1))
	case 1: // two jobs change places
		h := r.IntN(len(p))
		if len(p[h]) == 0 {
			return
		}
		k := r.IntN(len(p[h]))
		p[g][i].job, p[h][k].job = p[h][k].job, p[g][i].job
	case 2: // a job moves near
		k := max(0, min(len(p[g])-1, i+r.IntN(7)-3))
		s := p[g][i]
		p[g] = slices.Insert(slices.Delete(p[g], i, i+1), k, s)
	default: // a job moves anywhere
		s := p[g][i]
		p[g] = slices.Delete(p[g], i, i+1)
		h := r.IntN(len(p))
		s.beside = r.IntN(5)
		p[h] = slices.Insert(p[h], r.IntN(len(p[h])+1), s)
	}
}

// run simulates a plan. A job that fails runs again behind all others.
func (cfg *Config) run(p plan) (*Result, error) {
	s, err := New(*cfg)
	if err != nil {
		return nil, err
	}
	at := make([]int, len(p))
	var one [1]int
	for s.Next() {
		g := s.gpu
		members := len(s.devs[g].members)
		if at[g] < len(p[g]) {
			st := p[g][at[g]]
			if k := slices.Index(s.wait, st.job); k >= 0 && members <= st.beside {
				at[g]++
				one[0] = k
				s.Start(one[:])
				continue
			}
			s.Start(nil)
			continue
		}
		// Lists done: what is left has failed before.
		if k := s.lost(); k >= 0 && members == 0 {
			one[0] = k
			s.Start(one[:])
			continue
		}
		s.Start(nil)
	}
	return s.Result()
}

// lost returns a pending job that failed and that this GPU can hold; -1: none.
func (s *Sim) lost() int {
	for k, i := range s.wait {
		if s.jobs[i].failures > 0 && s.devs[s.gpu].spec.MemMiB >= s.jobs[i].Truth.Peak().MemMiB {
			return k
		}
	}
	return -1
}
