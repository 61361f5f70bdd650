package deeprm

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/nn"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Options are a training's settings. A zero field means its default.
type Options struct {
	Seed       uint64
	Iterations int // default 60
	JobSets    int // an iteration; default 2
	Episodes   int // for each job set; default 10 (DeepRM: 20)
	Imitate    int // episodes of shortest-job-first to imitate first; default 20
}

// Point is one iteration as it is logged.
type Point struct {
	Iteration int     `json:"iteration"`
	Train     float64 `json:"train"` // mean makespan ÷ Σ solo time of the iteration's episodes
	Check     float64 `json:"check"` // the same over the validation episodes, greedily; 0 = not this time
}

// visit is one decision of an episode.
type visit struct {
	pixels  []int32
	allowed []bool
	action  int
	ret     float64 // the return from here: −(time to the end) ÷ τ
	atS     float64
}

// Train trains the agent on episodes drawn from the scenario: first by imitating
// shortest-job-first, as DeepRM does, then by REINFORCE. guard says what the card
// itself allows. The parameters of the best validation are kept. The same seed
// gives the same agent on any number of cores.
func (a *Agent) Train(ctx context.Context, o Options, scenario func(r *rand.Rand) (sim.Config, error), guard func() *rlcore.Guard) ([]Point, error) {
	for _, d := range []struct {
		v *int
		d int
	}{{&o.Iterations, 60}, {&o.JobSets, 2}, {&o.Episodes, 10}, {&o.Imitate, 20}} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	// DeepRM's published optimiser.
	opt := &nn.RMSProp{Rate: 0.001, Decay: 0.9, Eps: 1e-9}
	draw := func(seed uint64) (sim.Config, error) { return scenario(rand.New(rand.NewPCG(seed, 0xdee9))) }
	workers := []*Agent{a.Alias(), a.Alias()}
	guards := []*rlcore.Guard{guard(), guard()}
	gather := func() {
		for _, w := range workers {
			for i, g := range w.net.Grad {
				a.net.Grad[i] += g
				w.net.Grad[i] = 0
			}
		}
		opt.Step(a.net.Theta, a.net.Grad)
	}
	for i := range o.Imitate {
		cfg, err := draw(o.Seed + uint64(i))
		if err != nil {
			return nil, err
		}
		visits, _, err := workers[0].play(cfg, guards[0], shortest)
		if err != nil {
			return nil, err
		}
		for k := range visits {
			workers[0].imitate(&visits[k], 1/float64(len(visits)))
		}
		gather()
	}
	var checks []sim.Config
	for i := range 8 {
		cfg, err := draw(o.Seed ^ 0xc0ffee + uint64(i))
		if err != nil {
			return nil, err
		}
		checks = append(checks, cfg)
	}
	validate := func() (float64, error) {
		sum := 0.0
		for i := range checks {
			_, x, err := workers[0].play(checks[i], guards[0], likeliest)
			if err != nil {
				return 0, err
			}
			sum += x / float64(len(checks))
		}
		return sum, nil
	}
	best, err := validate()
	if err != nil {
		return nil, err
	}
	keep := slices.Clone(a.net.Theta)
	defer func() { copy(a.net.Theta, keep) }()
	var curve []Point
	for it := range o.Iterations {
		if err := ctx.Err(); err != nil {
			return curve, err
		}
		p := Point{Iteration: it + 1}
		sets := make([][][]visit, o.JobSets)
		ratio := make([]float64, o.JobSets*o.Episodes)
		for s := range sets {
			cfg, err := draw(o.Seed + 1000 + uint64(it*o.JobSets+s))
			if err != nil {
				return curve, err
			}
			sets[s] = make([][]visit, o.Episodes)
			err = both(func(k int) error {
				for e := k; e < o.Episodes; e += len(workers) {
					r := rand.New(rand.NewPCG(o.Seed+uint64(it), uint64(s*o.Episodes+e)))
					v, x, err := workers[k].play(cfg, guards[k], func(prob []float64, _ *rlcore.Window, _ *Agent) int { return sample(prob, r) })
					if err != nil {
						return err
					}
					sets[s][e], ratio[s*o.Episodes+e] = v, x
				}
				return nil
			})
			if err != nil {
				return curve, err
			}
		}
		for _, x := range ratio {
			p.Train += x / float64(len(ratio))
		}
		err = both(func(k int) error {
			for _, set := range sets {
				base := baseline(set)
				for e := k; e < len(set); e += len(workers) {
					for t := range set[e] {
						workers[k].reinforce(&set[e][t], base[t], 1/float64(len(set)*len(sets)))
					}
				}
			}
			return nil
		})
		if err != nil {
			return curve, err
		}
		gather()
		if (it+1)%10 == 0 || it+1 == o.Iterations {
			if p.Check, err = validate(); err != nil {
				return curve, err
			}
			if p.Check < best {
				best = p.Check
				keep = slices.Clone(a.net.Theta)
			}
		}
		curve = append(curve, p)
	}
	return curve, nil
}

func both(f func(k int) error) error {
	var errs [2]error
	var wg sync.WaitGroup
	for k := range errs {
		wg.Go(func() { errs[k] = f(k) })
	}
	wg.Wait()
	if errs[0] != nil {
		return errs[0]
	}
	return errs[1]
}

// baseline is, for each decision of a job set's episodes, the mean return over
// those episodes that got so far: DeepRM's per-timestep baseline.
func baseline(set [][]visit) []float64 {
	var sum, n []float64
	for _, ep := range set {
		for t := range ep {
			if t == len(sum) {
				sum, n = append(sum, 0), append(n, 0)
			}
			sum[t] += ep[t].ret
			n[t]++
		}
	}
	for t := range sum {
		sum[t] /= n[t]
	}
	return sum
}

// reinforce adds one visit's gradient, weighted.
//
// DeepRM: ∇ log π(a|s) · (v − b), v the return and b the per-timestep baseline.
// DqnGPU, the thesis's eq. 2: ∇ log π(a|s) · (Q(s, a) − V), Q the return the
// network predicts and V the empirical one of the policy, b; Q itself is drawn to
// v by half its squared error.
func (a *Agent) reinforce(v *visit, base, weight float64) {
	y := a.net.Forward(v.pixels)
	dy := make([]float64, len(y))
	advantage := v.ret - base
	if a.kind == DqnGPU {
		q := y[a.actions+v.action]
		dy[a.actions+v.action] = weight * (q - v.ret)
		advantage = q - base
	}
	copy(a.prob, y[:a.actions])
	nn.Softmax(a.prob, v.allowed)
	for i, p := range a.prob {
		d := p
		if i == v.action {
			d--
		}
		dy[i] = weight * advantage * d
	}
	a.net.Backward(dy)
}

// imitate adds the gradient of −log π(action|s).
func (a *Agent) imitate(v *visit, weight float64) {
	y := a.net.Forward(v.pixels)
	dy := make([]float64, len(y))
	copy(a.prob, y[:a.actions])
	nn.Softmax(a.prob, v.allowed)
	for i, p := range a.prob {
		d := p
		if i == v.action {
			d--
		}
		dy[i] = weight * d
	}
	if a.kind == DqnGPU {
		k := a.actions + v.action
		dy[k] = weight * (y[k] - v.ret)
	}
	a.net.Backward(dy)
}

// chooser picks an action from the probabilities of those allowed.
type chooser func(prob []float64, w *rlcore.Window, a *Agent) int

func likeliest(prob []float64, _ *rlcore.Window, _ *Agent) int {
	k := 0
	for i, p := range prob {
		if p > prob[k] {
			k = i
		}
	}
	return k
}

func sample(prob []float64, r *rand.Rand) int {
	x := r.Float64()
	last := 0
	for i, p := range prob {
		if p > 0 {
			last = i
			if x -= p; x < 0 {
				return i
			}
		}
	}
	return last
}

// shortest is the teacher: of the allowed single jobs the shortest, else wait.
func shortest(prob []float64, w *rlcore.Window, a *Agent) int {
	pick, least := 0, 0.0
	for action := 1; action < a.actions; action++ {
		c := a.combo(action)
		if !a.allowed[action] || c.Len() != 1 {
			continue
		}
		i := 0
		for !c.Has(i) {
			i++
		}
		if d := w.Job(i); pick == 0 || d.Profile != nil && d.Profile.DurationS < least {
			pick = action
			if d.Profile != nil {
				least = d.Profile.DurationS
			}
		}
	}
	if pick == 0 && !a.allowed[0] {
		return likeliest(prob, w, a)
	}
	return pick
}

// play simulates an episode and returns its visits that left a choice, and its
// makespan over the jobs' solo time.
func (a *Agent) play(cfg sim.Config, g *rlcore.Guard, choose chooser) ([]visit, float64, error) {
	cfg.M = a.enc.M
	s, err := sim.New(cfg)
	if err != nil {
		return nil, 0, err
	}
	var out []visit
	var combos []rlcore.Combo
	var jobs []int
	for s.Next() {
		w := rlcore.NewWindow(jobs, s.State(), s.GPU(), a.enc.M)
		jobs = w.Jobs
		combos = g.Combos(combos[:0], &w)
		usable := combos
		if s.MustStart() && len(usable) > 1 && usable[0] == 0 {
			usable = usable[1:]
		}
		dec := rlcore.Decision{Window: w, Combos: combos}
		if a.look(&w, usable) {
			v := visit{atS: s.NowS()}
			choices := 0
			for _, ok := range a.allowed {
				if ok {
					choices++
				}
			}
			prob := a.distribution(a.enc.Pixels, a.allowed)
			v.action = choose(prob, &w, a)
			dec.Combo = a.combo(v.action)
			if choices > 1 {
				v.pixels, v.allowed = slices.Clone(a.enc.Pixels), slices.Clone(a.allowed)
				out = append(out, v)
			}
		}
		s.Take(g, dec)
	}
	res, err := s.Result()
	if err != nil {
		return nil, 0, err
	}
	solo := 0.0
	for i := range res.Jobs {
		solo += res.Jobs[i].SoloS
	}
	tau := solo / float64(len(res.Jobs))
	for i := range out {
		out[i].ret = -(s.NowS() - out[i].atS) / tau
	}
	return out, res.MakespanS / solo * float64(len(cfg.GPUs)), nil
}
