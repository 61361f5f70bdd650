package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Objective is what a search minimises, s.
type Objective func(*Result) float64

// Makespan is the time from the first arrival to the last end.
func Makespan(r *Result) float64 { return r.MakespanS }

// CostOf is what an objective keeps small.
func CostOf(o policy.Objective) Objective {
	if o == policy.Makespan {
		return Makespan
	}
	return Turnaround
}

// Turnaround is the mean time from a job's arrival to its end.
func Turnaround(r *Result) float64 { return r.MeanTurnaroundS }

// maxMembers is the most jobs on one GPU.
const maxMembers = 100 / shares

// start is one entry of a GPU's list: the job starts after the entries before it have started, when
// no more than this many other jobs are on the GPU.
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

// Clairvoyant searches for the best schedule with knowledge that no live scheduler can have: every
// job's profile, every arrival, the law itself. What it finds is a bound to measure policies
// against; it isn't proven optimal.
//
// It is simulated annealing over lists (which job, on which GPU, next to how many), over tries
// schedules. It starts from the given results of policies on the same Config, so it is never worse
// than the best of those without lost runs, or from one job at a time where there are none. It
// loses no run itself for want of memory, and as few jobs as it can at limits and deadlines
// (Result.Lost). Contracts don't bind it; the card's rules, jobs that must not share, pairs that
// were never measured and the turns of foreign jobs do.
func Clairvoyant(cfg Config, tries int, seed uint64, objective Objective, from ...*Result) (*Result, error) {
	cfg.Predictor, cfg.Observer, cfg.M, cfg.MaxDelayS = nil, nil, math.MaxInt, math.MaxFloat64
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	if len(s.jobs) == 0 {
		return s.Result()
	}
	h := &search{sim: s, objective: objective}
	if err := h.begin(from); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(s.jobs, func(j jobState) bool { return !j.Foreign }) {
		if err := h.anneal(tries, rand.New(rand.NewPCG(seed, 0x5eed))); err != nil {
			return nil, err
		}
	}
	return h.best.res, nil
}

// search is a search for a schedule of small cost.
type search struct {
	sim       *Sim
	objective Objective
	best      candidate
}

// candidate is a plan with its result and cost.
type candidate struct {
	plan plan
	res  *Result
	cost float64
}

// cost is the objective; a lost job is worse than any schedule, a lost run than any number
// of them.
func (h *search) cost(r *Result) float64 {
	if r.OOM > 0 {
		return math.Inf(1)
	}
	cost := h.objective(r)
	if n := r.Lost(); n > 0 {
		cost += float64(n) * h.sim.cfg.Horizon
	}
	return cost
}

func (h *search) try(p plan) (candidate, error) {
	res, err := h.sim.play(p)
	if err != nil {
		return candidate{}, err
	}
	return candidate{p, res, h.cost(res)}, nil
}

// begin sets the best of one job at a time and what policies did.
func (h *search) begin(from []*Result) error {
	var err error
	if h.best, err = h.try(h.sim.oneAtATime()); err != nil {
		return err
	}
	for _, res := range from {
		if res == nil || len(res.Jobs) != len(h.sim.jobs) || res.OOM > 0 {
			continue
		}
		p := h.sim.planOf(res)
		if !h.sim.possible(p) {
			continue
		}
		got, err := h.try(p)
		if err != nil {
			return err
		}
		for _, x := range []candidate{got, {p, res, h.cost(res)}} {
			if x.cost < h.best.cost {
				h.best = x
			}
		}
	}
	return nil
}

func (h *search) anneal(tries int, r *rand.Rand) error {
	cur := h.best
	cur.plan = cur.plan.clone()
	heat := h.objective(h.best.res) / 50
	for t := range tries {
		p := cur.plan.clone()
		for range 1 + r.IntN(2) {
			mutate(p, r)
		}
		if !h.sim.possible(p) {
			continue
		}
		next, err := h.try(p)
		if err != nil {
			return err
		}
		temp := heat * (1 - float64(t)/float64(tries))
		if next.cost <= cur.cost || r.Float64() < math.Exp((cur.cost-next.cost)/max(temp, 1e-9)) {
			cur = next
		}
		if next.cost < h.best.cost {
			h.best = next
		}
		if t%max(tries/8, 1) == 0 { // leave a branch that leads nowhere
			cur = h.best
			cur.plan = cur.plan.clone()
		}
	}
	return nil
}

// oneAtATime runs each job alone, in order of arrival, on the GPUs in turn.
func (s *Sim) oneAtATime() plan {
	p := make(plan, len(s.devs))
	for n, i := range s.order {
		if s.jobs[i].Foreign {
			continue
		}
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

// planOf returns the lists of what a policy did.
func (s *Sim) planOf(res *Result) plan {
	p := make(plan, len(s.devs))
	order := make([]int, len(res.Jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(res.Jobs[a].StartS, res.Jobs[b].StartS) })
	for at, i := range order {
		if s.jobs[i].Foreign {
			continue // it starts without a plan
		}
		o := &res.Jobs[i]
		beside := 0
		for _, k := range order[:at] {
			if q := &res.Jobs[k]; q.GPU == o.GPU && q.EndS > o.StartS {
				beside++
			}
		}
		g := o.GPU
		if g < 0 { // it never ran
			for g = 0; !s.jobs[i].MayUse(g); {
				g++
			}
		}
		p[g] = append(p[g], start{i, beside})
	}
	return p
}

// mutate changes one thing about a plan.
func mutate(p plan, r *rand.Rand) {
	g := r.IntN(len(p))
	for len(p[g]) == 0 {
		g = (g + 1) % len(p)
	}
	i := r.IntN(len(p[g]))
	switch r.IntN(4) {
	case 0: // one job more or less next to this one
		s := &p[g][i]
		s.beside = max(0, min(maxMembers-1, s.beside+2*r.IntN(2)-1))
	case 1: // two jobs change places
		h := r.IntN(len(p))
		if len(p[h]) == 0 {
			return
		}
		k := r.IntN(len(p[h]))
		p[g][i].job, p[h][k].job = p[h][k].job, p[g][i].job
	case 2: // a job moves to a near position
		k := max(0, min(len(p[g])-1, i+r.IntN(7)-3))
		s := p[g][i]
		p[g] = slices.Insert(slices.Delete(p[g], i, i+1), k, s)
	default: // a job moves anywhere
		s := p[g][i]
		p[g] = slices.Delete(p[g], i, i+1)
		h := r.IntN(len(p))
		s.beside = r.IntN(maxMembers)
		p[h] = slices.Insert(p[h], r.IntN(len(p[h])+1), s)
	}
}

// play simulates a plan from the start. A job that fails runs again at the end.
func (s *Sim) play(p plan) (*Result, error) {
	s.reset()
	at := make([]int, len(p))
	var one [1]int
	for s.Next() {
		g := s.gpu
		k := -1
		for at[g] < len(p[g]) && s.jobs[p[g][at[g]].job].ended >= 0 { // its deadline has passed
			at[g]++
		}
		if at[g] < len(p[g]) {
			st := p[g][at[g]]
			if len(s.devs[g].members) <= st.beside && s.mayJoin(g, st.job) {
				k = slices.Index(s.wait, st.job)
			}
			if k >= 0 {
				at[g]++
			}
		} else if len(s.devs[g].members) == 0 {
			k = s.failed(g)
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

// failed returns the index in s.wait of a job that has failed and may use GPU g; −1
// if there is none.
func (s *Sim) failed(g int) int {
	return slices.IndexFunc(s.wait, func(i int) bool { return s.jobs[i].failures > 0 && s.jobs[i].MayUse(g) })
}

// mayJoin reports whether job i may join the members of GPU g, memory aside.
func (s *Sim) mayJoin(g, i int) bool {
	d, j := &s.devs[g], &s.jobs[i]
	if n := len(d.members); n > 0 && (j.NoShare || n == maxMembers || n == d.spec.MaxClients) {
		return false
	}
	for k := range d.members {
		o := &s.jobs[d.members[k].job]
		if o.NoShare || d.spec.SameUser && o.User != j.User || lacks(s.cfg.Truth, o.Truth.App, j.Truth.App) {
			return false
		}
	}
	return true
}
