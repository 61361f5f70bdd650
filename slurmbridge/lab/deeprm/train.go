package deeprm

import (
	"context"
	"math/bits"
	"math/rand/v2"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/nn"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

const (
	jobSets  = 2  // an iteration
	episodes = 10 // for each job set (DeepRM: 20)
	imitated = 20 // episodes of shortest-job-first, before the first iteration
)

// visit is one decision of an episode.
type visit struct {
	pixels  []int32
	allowed []bool
	action  int
	ret     float64 // the return from here: −(time to the end) ÷ τ
	atS     float64
}

// course is a training under way. Two agents play, on two cores, and one optimiser steps.
type course struct {
	seed     uint64
	agent    *Agent
	scenario func(r *rand.Rand) (sim.Config, error)
	opt      nn.RMSProp
	workers  [2]worker
	checks   []sim.Config
}

type worker struct {
	*Agent
	guard *rlcore.Guard
}

// Train trains the agent on episodes drawn from the scenario: first by imitating shortest-job-first, as DeepRM does,
// then by REINFORCE. guard says what the card itself allows. The parameters of the best validation are kept. The same
// seed gives the same agent on any number of cores.
func (a *Agent) Train(ctx context.Context, seed uint64, iterations int, scenario func(r *rand.Rand) (sim.Config, error),
	guard func() *rlcore.Guard,
) error {
	c := &course{
		seed: seed, agent: a, scenario: scenario,
		opt: nn.RMSProp{Rate: 0.001, Decay: 0.9, Eps: 1e-9}, // DeepRM's published optimiser
	}
	for k := range c.workers {
		c.workers[k] = worker{a.Alias(), guard()}
	}
	if err := c.imitate(); err != nil {
		return err
	}
	for i := range 8 {
		cfg, err := c.draw(seed ^ 0xc0ffee + uint64(i))
		if err != nil {
			return err
		}
		c.checks = append(c.checks, cfg)
	}
	best, err := c.validate()
	if err != nil {
		return err
	}
	keep := slices.Clone(a.net.Theta)
	defer func() { copy(a.net.Theta, keep) }()
	for it := range iterations {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.iterate(it); err != nil {
			return err
		}
		if (it+1)%10 != 0 && it+1 != iterations {
			continue
		}
		check, err := c.validate()
		if err != nil {
			return err
		}
		if check < best {
			best = check
			keep = slices.Clone(a.net.Theta)
		}
	}
	return nil
}

func (c *course) draw(seed uint64) (sim.Config, error) {
	return c.scenario(rand.New(rand.NewPCG(seed, 0xdee9)))
}

// step applies the gradients that the workers gathered.
func (c *course) step() {
	for _, w := range c.workers {
		for i, g := range w.net.Grad {
			c.agent.net.Grad[i] += g
			w.net.Grad[i] = 0
		}
	}
	c.opt.Step(c.agent.net.Theta, c.agent.net.Grad)
}

// imitate takes a step for each of some episodes of shortest-job-first.
func (c *course) imitate() error {
	w := c.workers[0]
	for i := range imitated {
		cfg, err := c.draw(c.seed + uint64(i))
		if err != nil {
			return err
		}
		visits, _, err := w.play(cfg, w.guard, shortest)
		if err != nil {
			return err
		}
		for k := range visits {
			w.gradient(&visits[k], 1/float64(len(visits)), func(float64) float64 { return 1 })
		}
		c.step()
	}
	return nil
}

// validate is the mean makespan ÷ Σ solo time over the validation's job sets, greedily.
func (c *course) validate() (float64, error) {
	w := c.workers[0]
	sum := 0.0
	for i := range c.checks {
		_, x, err := w.play(c.checks[i], w.guard, likeliest)
		if err != nil {
			return 0, err
		}
		sum += x / float64(len(c.checks))
	}
	return sum, nil
}

// iterate plays an iteration's episodes and takes one step by them.
func (c *course) iterate(it int) error {
	sets := make([][][]visit, jobSets)
	for s := range sets {
		cfg, err := c.draw(c.seed + 1000 + uint64(it*jobSets+s))
		if err != nil {
			return err
		}
		sets[s] = make([][]visit, episodes)
		err = c.share(episodes, func(w worker, e int) (err error) {
			r := rand.New(rand.NewPCG(c.seed+uint64(it), uint64(s*episodes+e)))
			sets[s][e], _, err = w.play(cfg, w.guard,
				func(prob []float64, _ *rlcore.Window, _ *Agent) int { return sample(prob, r) })
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, set := range sets {
		base := baseline(set)
		_ = c.share(len(set), func(w worker, e int) error { // it can't fail
			for t := range set[e] {
				w.gradient(&set[e][t], 1/float64(len(set)*len(sets)), func(ret float64) float64 { return ret - base[t] })
			}
			return nil
		})
	}
	c.step()
	return nil
}

// share has the workers do every other of n episodes each, in their order.
func (c *course) share(n int, do func(w worker, episode int) error) error {
	var g errgroup.Group
	for k, w := range c.workers {
		g.Go(func() error {
			for e := k; e < n; e += len(c.workers) {
				if err := do(w, e); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// baseline is, for each decision of a job set's episodes, the mean return over
// those episodes that got so far: DeepRM's per-timestep baseline.
func baseline(set [][]visit) []float64 {
	var sum, n []float64
	for _, ep := range set {
		for t := range ep {
			if t == len(sum) {
				sum = append(sum, 0)
				n = append(n, 0)
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

// gradient adds one visit's gradient, weighted: that of −log π(a|s) times the advantage, 1 to imitate, which follows
// from the return.
//
// DeepRM: the advantage is v − b, v the return and b the per-timestep baseline. DqnGPU, the thesis's eq. 2: it is
// Q(s, a) − V, Q the return that the network predicts and V the empirical one of the policy, b; Q itself is drawn to v
// by half its squared error.
func (a *Agent) gradient(v *visit, weight float64, advantage func(ret float64) float64) {
	y := a.forward(v.pixels)
	dy := make([]float32, len(y))
	ret := v.ret
	if a.kind == DqnGPU {
		q := a.actions + v.action
		ret = float64(y[q])
		dy[q] = float32(weight * (ret - v.ret))
	}
	a.softmax(y, v.allowed)
	for i, p := range a.prob {
		if i == v.action {
			p--
		}
		dy[i] = float32(weight * advantage(ret) * p)
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
			x -= p
			if x < 0 {
				return i
			}
		}
	}
	return last
}

// shortest is the teacher: of the allowed single jobs the shortest, else wait.
func shortest(prob []float64, w *rlcore.Window, a *Agent) int {
	pick := 0
	least := 0.0
	for action := 1; action < a.actions; action++ {
		c := a.combo(action)
		if !a.allowed[action] || c.Len() != 1 {
			continue
		}
		d := w.Job(bits.TrailingZeros32(uint32(c)))
		if pick == 0 || d.Profile != nil && d.Profile.DurationS < least {
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

// play simulates an episode and returns its visits that left a choice, and its makespan over the jobs' solo time.
func (a *Agent) play(cfg sim.Config, g *rlcore.Guard, choose chooser) ([]visit, float64, error) {
	cfg.M = a.enc.M
	var out []visit
	s, res, err := sim.Play(cfg, g, func(s *sim.Sim, w *rlcore.Window, combos []rlcore.Combo) rlcore.Combo {
		choices := a.draw(w, combos)
		if choices == 0 {
			return 0
		}
		action := choose(a.distribution(a.enc.Pixels, a.allowed), w, a)
		if choices > 1 {
			v := visit{atS: s.NowS(), action: action}
			v.pixels = slices.Clone(a.enc.Pixels)
			v.allowed = slices.Clone(a.allowed)
			out = append(out, v)
		}
		return a.combo(action)
	})
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
