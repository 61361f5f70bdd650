package dqn

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/slurmbridge/slurmbridge/rlcore/nn"
)

// learner takes gradient steps.
type learner struct {
	o       Options
	net     Network
	workers []*worker
	target  Network
	memory  *replay
	optims  []nn.Optimiser // by block of parameters
	beta    float64
	rnd     *rand.Rand
	taken   int // steps

	idx    []int
	weight []float64
}

// workers is into how many parts a batch is divided. It doesn't follow the number of
// cores, so that sums don't depend on it.
const workers = 2

func newLearner(o Options, net Network) *learner {
	l := &learner{
		o: o, net: net, target: net.Twin(), memory: newReplay(o.Capacity, o.Alpha),
		rnd: rand.New(rand.NewPCG(o.Seed, seedOfLearner)), idx: make([]int, o.Batch), weight: make([]float64, o.Batch),
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

func (l *learner) setRate(x float64) {
	for _, o := range l.optims {
		switch o := o.(type) {
		case *nn.Adam:
			o.Rate = x
		case *nn.RMSProp:
			o.Rate = x
		}
	}
}

// steps takes n gradient steps, once the memory holds enough for them.
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

// step takes one gradient step and returns the batch's weighted loss, and its mean
// |temporal-difference error| and value.
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

// worker computes the gradient of a part of a batch.
type worker struct {
	net, target    Network
	q, next, nextT []float64
	err            []float64 // by position in the batch
	value, loss    float64
}

// gradient adds up the gradient of the batch's items from … to−1; most is the largest
// importance weight of the batch.
func (w *worker) gradient(l *learner, from, to int, most float64) {
	w.loss, w.value = 0, 0
	n := float64(l.o.Batch)
	for i := from; i < to; i++ {
		t := &l.memory.items[l.idx[i]]
		goal := w.goal(t, l.o.Plain)
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

// unit is that of an observation's values.
func (o *Obs) unit() float64 { return cmp.Or(o.Unit, 1) }

// goal returns the value that a transition's taken combination should have, in its own
// observation's unit: its reward and the target network's value of what the network would
// choose next.
func (w *worker) goal(t *transition, plain bool) float64 {
	if t.next == nil {
		return t.reward / t.obs.unit()
	}
	w.nextT = w.target.Values(w.nextT, t.next)
	k := best(w.nextT)
	if !plain {
		w.next = w.net.Values(w.next, t.next)
		k = best(w.next)
	}
	return (t.reward + t.decay*t.next.unit()*w.nextT[k]) / t.obs.unit()
}

// State is what a training can be resumed from: the parameters reached, which needn't
// be those of the best validation, and the optimiser's memory of each block of them.
//
// The replay memory isn't part of it: a resumed training refills it from episodes of
// its own, and copies the parameters to the target network. It is reproducible, but
// differs from what an uninterrupted training would have been.
type State struct {
	Theta  [][]float64
	Optims []nn.State
}

func (l *learner) state() *State {
	s := &State{Theta: snapshot(l.net)}
	for _, o := range l.optims {
		s.Optims = append(s.Optims, o.State())
	}
	return s
}

// resume sets the learner to s. Errors wrap nn.ErrShape.
func (l *learner) resume(s *State) error {
	blocks := l.net.Params()
	if len(s.Theta) != len(blocks) || len(s.Optims) != len(blocks) {
		return fmt.Errorf("train: going on: %w: %d blocks and %d optimisers for a network of %d", nn.ErrShape, len(s.Theta), len(s.Optims), len(blocks))
	}
	for i, b := range blocks {
		if n := len(s.Optims[i].V); len(s.Theta[i]) != len(b.Theta) || n != 0 && n != len(b.Theta) {
			return fmt.Errorf("train: going on: %w: %d parameters and %d mean squares for a block of %d", nn.ErrShape, len(s.Theta[i]), n, len(b.Theta))
		}
		if err := l.optims[i].Restore(s.Optims[i]); err != nil {
			return fmt.Errorf("train: going on: %w", err)
		}
	}
	restore(l.net, s.Theta)
	restore(l.target, s.Theta)
	return nil
}
