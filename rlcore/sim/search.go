package sim

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Objective is what a search makes small, s.
type Objective func(*Result) float64

// Makespan is the time from the first arrival to the last end.
func Makespan(r *Result) float64 { return r.MakespanS }

// Turnaround is the mean time from a job's arrival to its end.
func Turnaround(r *Result) float64 { return r.MeanTurnaroundS }

// maxMembers of a GPU.
const maxMembers = 100 / shares

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
// that; what it finds is the mark to measure policies against. Contracts don't
// bind it; the card's own rules, owners who want a GPU alone and pairs that were
// never measured do. It is simulated annealing over lists (which job, on which
// GPU, beside how many), starting from the given results of policies on the same
// Config, so it is never worse than the best of those that lost no run, and from
// its own first list where there are none. It loses no run itself. It isn't
// proven optimal. tries is how many schedules are looked at.
func Clairvoyant(cfg Config, tries int, seed uint64, objective Objective, from ...*Result) (*Result, error) {
	cfg.Predictor, cfg.Observer, cfg.M, cfg.MaxDelayS = nil, nil, math.MaxInt, math.MaxFloat64
	track := cfg.Track
	cfg.Track = false
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	if len(s.jobs) == 0 {
		return s.Result()
	}
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	best := s.alone()
	bestRes, err := s.play(best)
	if err != nil {
		return nil, err
	}
	bestCost := cost(bestRes, objective)
	for _, res := range from {
		if res == nil || len(res.Jobs) != len(cfg.Jobs) || res.OOM > 0 {
			continue
		}
		p := s.asDone(res)
		if !s.possible(p) {
			continue
		}
		got, err := s.play(p)
		if err != nil {
			return nil, err
		}
		for _, x := range []*Result{got, res} {
			if c := cost(x, objective); c < bestCost {
				best, bestCost, bestRes = p, c, x
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
		if !s.possible(next) {
			continue
		}
		res, err := s.play(next)
		if err != nil {
			return nil, err
		}
		c := cost(res, objective)
		temp := heat * (1 - float64(t)/float64(tries))
		if c <= curCost || r.Float64() < math.Exp((curCost-c)/max(temp, 1e-9)) {
			cur, curCost = next, c
		}
		if c < bestCost {
			best, bestCost, bestRes = next, c, res
		}
		// A branch that leads nowhere is left.
		if t%max(tries/8, 1) == 0 {
			cur, curCost = best.clone(), bestCost
		}
	}
	if !track || bestRes.Track != nil {
		return bestRes, nil
	}
	s.cfg.Track = true
	res, err := s.play(best)
	if err != nil || cost(res, objective) > bestCost {
		return bestRes, err
	}
	return res, nil
}

// cost is the objective; one that loses a run is worse than any schedule.
func cost(r *Result, objective Objective) float64 {
	if r.OOM > 0 {
		return math.Inf(1)
	}
	return objective(r)
}

// alone gives every job a GPU of its own, in order of arrival, in turn.
func (s *Sim) alone() plan {
	p := make(plan, len(s.devs))
	for n, i := range s.order {
		g := n % len(p)
		for !s.jobs[i].MayUse(g) {
			g = (g + 1) % len(p)
		}
		p[g] = append(p[g], start{job: i})
	}
	return p
}

// possible reports whether each job is on a GPU that it may use.
func (s *Sim) possible(p plan) bool {
	for g := range p {
		for _, st := range p[g] {
			if !s.jobs[st.job].MayUse(g) {
				return false
			}
		}
	}
	return true
}

// asDone is the list of what a policy did.
func (s *Sim) asDone(res *Result) plan {
	p := make(plan, len(s.devs))
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

// play simulates a plan from the start. A job that fails runs again behind all
// others.
func (s *Sim) play(p plan) (*Result, error) {
	s.reset()
	at := make([]int, len(p))
	var one [1]int
	for s.Next() {
		g := s.gpu
		k := -1
		if at[g] < len(p[g]) {
			st := p[g][at[g]]
			if len(s.devs[g].members) <= st.beside && s.mayJoin(g, st.job) {
				k = slices.Index(s.wait, st.job)
			}
			if k >= 0 {
				at[g]++
			}
		} else if len(s.devs[g].members) == 0 {
			k = s.lost(g)
		}
		if k < 0 {
			s.Start(nil)
			continue
		}
		one[0] = k
		s.Start(one[:])
	}
	return s.Result()
}

// lost returns a pending job, by index in s.wait, that failed and may use GPU g;
// -1: none.
func (s *Sim) lost(g int) int {
	return slices.IndexFunc(s.wait, func(i int) bool { return s.jobs[i].failures > 0 && s.jobs[i].MayUse(g) })
}

// mayJoin reports whether job i may join those on GPU g, whatever comes of it.
func (s *Sim) mayJoin(g, i int) bool {
	d, j := &s.devs[g], &s.jobs[i]
	if n := len(d.members); n > 0 && (j.NoShare || n == maxMembers || n == d.spec.MaxClients) {
		return false
	}
	unmeasured, _ := s.truth.(interface{ Lacks(a, b string) bool })
	for k := range d.members {
		o := &s.jobs[d.members[k].job]
		if o.NoShare || d.spec.SameUser && o.User != j.User ||
			unmeasured != nil && unmeasured.Lacks(o.Truth.App, j.Truth.App) {
			return false
		}
	}
	return true
}
