// Package dqn learns which combination of jobs to start: Q-learning with double
// estimates (van Hasselt et al., AAAI 2016), duelling networks, n-step returns,
// prioritised replay and a target network, masked by the guard. LEARNING.md in
// rlcore explains every figure and choice.
package dqn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/slurmbridge/slurmbridge/rlcore/nn"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Options are the learner's settings. A zero field means its default.
type Options struct {
	Seed     uint64
	Rounds   int     // default 240
	Episodes int     // a round; default 4
	Steps    int     // gradient steps a round; default 64
	Batch    int     // transitions a step; default 32
	NStep    int     // decisions a return covers at least; default 4
	Span     float64 // and mean solo durations; default 1
	Gamma    float64 // discount for a mean solo duration; default 0.99
	Rate     float64 // of the optimiser, at the start; a tenth at the end; default 3e-3
	Clip     float64 // bound of the gradient's norm; default 5
	Capacity int     // of the replay memory, transitions; default 20000
	Alpha    float64 // priorities' exponent; default 0.6
	Beta     float64 // importance weights' exponent at the start, 1 at the end; default 0.4
	Target   int     // gradient steps between copies to the target network; default 100
	EpsFrom  float64 // chance of a random choice at the start; default 0.3
	EpsTo    float64 // and at the end; default 0.02
	Plain    bool    // no double estimates (for comparison)
	Check    int     // rounds between validations; default 5
	Checks   int     // episodes of a validation; default 16
	// RMSProp instead of Adam, with DeepRM's decay and eps.
	RMSProp bool
	M       int // window; default 5
}

func (o Options) orDefaults() Options {
	num := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	fl := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	num(&o.Rounds, 240)
	num(&o.Episodes, 4)
	num(&o.Steps, 64)
	num(&o.Batch, 32)
	num(&o.NStep, 4)
	num(&o.Capacity, 20000)
	num(&o.Target, 100)
	num(&o.Check, 5)
	num(&o.Checks, 16)
	num(&o.M, 5)
	fl(&o.Gamma, 0.99)
	fl(&o.Span, 1)
	fl(&o.Rate, 3e-3)
	fl(&o.Clip, 5)
	fl(&o.Alpha, 0.6)
	fl(&o.Beta, 0.4)
	fl(&o.EpsFrom, 0.3)
	fl(&o.EpsTo, 0.02)
	return o
}

// Point is one round of training, as it is logged.
type RoundStats struct {
	Round    int     `json:"round"`
	Episodes int     `json:"episodes"` // played so far
	Eps      float64 `json:"eps"`      // chance of a random choice
	Loss     float64 `json:"loss"`     // mean weighted Huber loss; NaN-free, 0 before learning starts
	Error    float64 `json:"error"`    // mean |temporal-difference error|, units of τ
	Value    float64 `json:"value"`    // mean value of the combinations taken, units of τ
	Train    float64 `json:"train"`    // mean makespan ÷ (Σ solo ÷ GPUs) of the round's episodes
	Check    float64 `json:"check"`    // the same over the validation episodes, without random choice; 0 = not this round
}

// Scenario draws an episode.
type Scenario func(r *rand.Rand) (sim.Config, error)

// Trainer trains a network on episodes.
type Trainer struct {
	Options  Options
	Net      Network
	Scenario Scenario
	// Tools makes the guard and the predictor for one player.
	Tools func() Tools
	// Progress, if set, is told of every round.
	Progress func(RoundStats)
	// Start is the number of rounds already done, in a training that goes on.
	Start int
	// State is where learning stands after Train. Where Start > 0, Train goes on
	// from the State given, if any; Net then has the parameters to beat.
	State *State
	// Curve is what was logged.
	Curve []RoundStats
	// Best is how the parameters that were kept did in the last validation, in the
	// terms of Check, and BestRound the round they are from.
	Best      float64
	BestRound int
}

// Train learns until Rounds are done or ctx ends. The network then has the
// parameters that did best in validation, if they are better than those it began
// with beyond doubt: training never ends with less than it began with, as far as
// 4·Checks episodes that it never learned from can tell. The same seed gives the same network, on any number of
// cores. If ctx ended, what was learned so far stays and ctx's error is returned.
func (t *Trainer) Train(ctx context.Context) error {
	o := t.Options.orDefaults()
	if t.Net == nil || t.Scenario == nil || t.Tools == nil {
		return errors.New("train: a network, a scenario and tools are needed")
	}
	l := newLearner(o, t.Net)
	players := make([]*player, o.Episodes)
	for i := range players {
		tools := t.Tools()
		players[i] = &player{net: t.Net.Alias(tools.Predictor), tools: tools, m: o.M}
	}
	check, err := t.episodes(o.Seed^0xc0ffee, o.Checks)
	if err != nil {
		return err
	}
	first, err := t.validate(players, check)
	if err != nil {
		return err
	}
	t.Best = mean(first)
	goesOn := t.Start > 0 && t.State != nil
	if !goesOn {
		t.BestRound = t.Start
	}
	finalists := []finalist{{t.BestRound, t.Best, snapshot(t.Net)}}
	var win finalist
	defer func() {
		if win.theta == nil { // training was broken off: what looked best stays
			win = finalists[0]
			if len(finalists) > 1 && finalists[1].check < win.check {
				win = finalists[1]
			}
			t.Best, t.BestRound = win.check, win.round
		}
		restore(t.Net, win.theta)
	}()
	if goesOn {
		if err := l.goOn(t.State); err != nil {
			return err
		}
	}
	defer func() { t.State = l.state() }()
	for round := t.Start; round < o.Rounds; round++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		done := float64(round) / float64(o.Rounds)
		p := RoundStats{Round: round + 1, Episodes: (round + 1) * o.Episodes, Eps: o.EpsTo + (o.EpsFrom-o.EpsTo)*math.Max(0, 1-1.5*done)}
		cfgs, err := t.episodes(o.Seed+uint64(round)*1_000_003, o.Episodes)
		if err != nil {
			return err
		}
		lots := make([][]transition, len(cfgs))
		ratio := make([]float64, len(cfgs))
		err = each(len(cfgs), func(i int) error {
			r := rand.New(rand.NewPCG(o.Seed+uint64(round), uint64(i)))
			visits, res, tau, err := players[i].play(cfgs[i], p.Eps, r)
			if err != nil {
				return err
			}
			for g := range visits {
				lots[i] = transitions(lots[i], visits[g], o.NStep, o.Span, o.Gamma, tau)
			}
			ratio[i] = relative(&cfgs[i], res)
			return nil
		})
		if err != nil {
			return err
		}
		for i := range lots {
			p.Train += ratio[i] / float64(len(lots))
			for _, tr := range lots[i] {
				l.memory.add(tr)
			}
		}
		l.beta = o.Beta + (1-o.Beta)*done
		l.rate(o.Rate * (1 - 0.9*done))
		l.steps(o.Steps, &p)
		if (round+1)%o.Check == 0 || round+1 == o.Rounds {
			ratio, err := t.validate(players, check)
			if err != nil {
				return err
			}
			p.Check = mean(ratio)
			if p.Check < t.Best {
				t.Best, t.BestRound = p.Check, round+1
			}
			finalists = enter(finalists, finalist{round + 1, p.Check, snapshot(t.Net)})
		}
		t.Curve = append(t.Curve, p)
		if t.Progress != nil {
			t.Progress(p)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if win, err = t.final(players, finalists); err != nil {
		return err
	}
	t.Best, t.BestRound = win.check, win.round
	return nil
}

// finalist is a set of parameters that may be kept; the first of a list is what
// training began with, the others follow by how well they did.
type finalist struct {
	round int
	check float64
	theta [][]float64
}

// finalists is how many are compared in the end.
const finalistsMax = 4

// enter puts f among the finalists if it is one.
func enter(list []finalist, f finalist) []finalist {
	i := 1
	for i < len(list) && list[i].check <= f.check {
		i++
	}
	list = slices.Insert(list, i, f)
	return list[:min(len(list), finalistsMax)]
}

// final plays more episodes with each finalist. The winner has the smallest mean,
// but takes the place of what training began with only where it is better by more
// than the standard error of the differences: a lucky round isn't an improvement.
func (t *Trainer) final(players []*player, list []finalist) (finalist, error) {
	o := t.Options.orDefaults()
	cfgs, err := t.episodes(o.Seed^0xf17a1, 4*o.Checks)
	if err != nil {
		return finalist{}, err
	}
	var base []float64
	win, best := list[0], 0.0
	for i, f := range list {
		restore(t.Net, f.theta)
		ratio, err := t.validate(players, cfgs)
		if err != nil {
			return finalist{}, err
		}
		f.check = mean(ratio)
		if i == 0 {
			base, win = ratio, f
			continue
		}
		gain, se := 0.0, 0.0
		for k := range ratio {
			gain += (base[k] - ratio[k]) / float64(len(ratio))
		}
		for k := range ratio {
			d := base[k] - ratio[k] - gain
			se += d * d
		}
		se = math.Sqrt(se) / float64(len(ratio))
		if gain > se && gain > best {
			win, best = f, gain
		}
	}
	return win, nil
}

func (t *Trainer) episodes(seed uint64, n int) ([]sim.Config, error) {
	out := make([]sim.Config, n)
	for i := range out {
		var err error
		if out[i], err = t.Scenario(rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
			return nil, fmt.Errorf("train: drawing an episode: %w", err)
		}
	}
	return out, nil
}

// validate plays the episodes without random choices.
func (t *Trainer) validate(players []*player, cfgs []sim.Config) ([]float64, error) {
	ratio := make([]float64, len(cfgs))
	err := each(len(players), func(k int) error {
		for i := k; i < len(cfgs); i += len(players) {
			_, res, _, err := players[k].play(cfgs[i], 0, nil)
			if err != nil {
				return err
			}
			ratio[i] = relative(&cfgs[i], res)
		}
		return nil
	})
	return ratio, err
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v / float64(len(x))
	}
	return sum
}

// relative is the makespan over what it is when every job runs alone and no GPU
// is ever idle.
func relative(cfg *sim.Config, res *sim.Result) float64 {
	return res.MakespanS / (soloS(cfg) / float64(len(cfg.GPUs)))
}

// each runs f for 0 … n−1 at the same time and returns the first error by index.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func snapshot(n Network) [][]float64 {
	var out [][]float64
	for _, m := range n.Params() {
		out = append(out, append([]float64(nil), m.Theta...))
	}
	return out
}

func restore(n Network, theta [][]float64) {
	for i, m := range n.Params() {
		copy(m.Theta, theta[i])
	}
}

// learner takes gradient steps.
type learner struct {
	o       Options
	net     Network
	workers []*worker
	target  Network
	memory  *replay
	optims  []nn.Optimiser
	beta    float64
	rnd     *rand.Rand
	taken   int // steps

	idx    []int
	weight []float64
}

// worker computes the gradient of a part of a batch. Parts are fixed, not by the
// number of cores, so that sums are too.
type worker struct {
	net, target    Network
	q, next, nextT []float64
	err            []float64
	value, loss    float64
}

const workers = 2

func newLearner(o Options, net Network) *learner {
	l := &learner{
		o: o, net: net, target: net.Twin(), memory: newReplay(o.Capacity, o.Alpha),
		rnd: rand.New(rand.NewPCG(o.Seed, 0x1ea4)), idx: make([]int, o.Batch), weight: make([]float64, o.Batch),
	}
	for range workers {
		l.workers = append(l.workers, &worker{net: net.Alias(nil), target: l.target.Alias(nil), err: make([]float64, o.Batch)})
	}
	for range net.Params() {
		if o.RMSProp {
			l.optims = append(l.optims, &nn.RMSProp{Rate: o.Rate, Decay: 0.9, Eps: 1e-9})
		} else {
			l.optims = append(l.optims, &nn.Adam{Rate: o.Rate, Clip: o.Clip})
		}
	}
	return l
}

// rate sets the optimisers' rate.
func (l *learner) rate(x float64) {
	for _, o := range l.optims {
		switch o := o.(type) {
		case *nn.Adam:
			o.Rate = x
		case *nn.RMSProp:
			o.Rate = x
		}
	}
}

// steps takes n gradient steps, once there is a batch to take them on.
func (l *learner) steps(n int, p *RoundStats) {
	if l.memory.len() < 4*l.o.Batch {
		return
	}
	for range n {
		loss, err, value := l.step()
		p.Loss += loss / float64(n)
		p.Error += err / float64(n)
		p.Value += value / float64(n)
	}
}

func (l *learner) step() (loss, meanErr, value float64) {
	l.memory.draw(l.idx, l.weight, l.beta, l.rnd)
	most := 0.0
	for _, w := range l.weight {
		most = max(most, w)
	}
	part := (l.o.Batch + workers - 1) / workers
	var wg sync.WaitGroup
	for k, w := range l.workers {
		wg.Go(func() { w.gradient(l, k*part, min((k+1)*part, l.o.Batch), most) })
	}
	wg.Wait()
	for k, w := range l.workers {
		loss, value = loss+w.loss, value+w.value
		for i := k * part; i < min((k+1)*part, l.o.Batch); i++ {
			l.memory.update(l.idx[i], w.err[i])
			meanErr += math.Abs(w.err[i]) / float64(l.o.Batch)
		}
	}
	for b, m := range l.net.Params() {
		for _, w := range l.workers {
			g := w.net.Params()[b].Grad
			for i, v := range g {
				m.Grad[i] += v
				g[i] = 0
			}
		}
		l.optims[b].Step(m.Theta, m.Grad)
	}
	l.taken++
	if l.taken%l.o.Target == 0 {
		restore(l.target, snapshot(l.net))
	}
	return loss, meanErr, value
}

// gradient adds up the gradient of items from … to of the batch.
func (w *worker) gradient(l *learner, from, to int, most float64) {
	w.loss, w.value = 0, 0
	n := float64(l.o.Batch)
	for i := from; i < to; i++ {
		t := &l.memory.items[l.idx[i]]
		goal := t.reward
		if t.next != nil {
			w.nextT = w.target.Values(w.nextT, t.next)
			k := best(w.nextT)
			if !l.o.Plain {
				w.next = w.net.Values(w.next, t.next)
				k = best(w.next)
			}
			goal += t.decay * w.nextT[k]
		}
		w.q = w.net.Values(w.q, t.obs)
		q := w.q[t.taken]
		err := q - goal
		w.err[i] = err
		w.value += q / n
		weight := l.weight[i] / most
		// Huber's loss with its bend at 1.
		d := max(-1, min(1, err))
		w.loss += weight * (math.Abs(d) * (math.Abs(err) - math.Abs(d)/2)) / n
		w.net.Learn(t.obs, t.taken, weight*d/n)
	}
}
