package dqn

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore/nn"
)

// learner takes gradient steps.
type learner struct {
	o      Options
	net    network
	target network
	memory *replay
	optims []*nn.Adam // by block of parameters
	beta   float64
	rnd    *rand.Rand
	taken  int // steps

	idx    []int
	weight []float64
	goal   []float64
	err    []float64 // by position in the batch
	obs    []*Obs
	q, d   []float64 // of the batch's combinations: values, and the loss's derivative
	next   []float64
	nextT  []float64
}

// network is what a learner needs of a Scorer.
type network interface {
	Values(dst []float64, obs []*Obs) []float64
	Learn(d []float64)
	Params() []nn.Block
}

func newLearner(o Options, net *Scorer) *learner {
	l := &learner{
		o: o, net: net, target: net.Twin(), memory: newReplay(o.Capacity, o.Alpha),
		rnd: rand.New(rand.NewPCG(o.Seed, seedOfLearner)), idx: make([]int, o.Batch), weight: make([]float64, o.Batch),
		goal: make([]float64, o.Batch), err: make([]float64, o.Batch),
	}
	for range net.Params() {
		l.optims = append(l.optims, &nn.Adam{Rate: o.Rate, Clip: o.Clip})
	}
	return l
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
	loss, value = l.gradient()
	for i, k := range l.idx {
		l.memory.update(k, l.err[i])
		meanErr += math.Abs(l.err[i]) / float64(l.o.Batch)
	}
	l.apply()
	l.taken++
	if l.taken%l.o.Target == 0 {
		restore(l.target, snapshot(l.net))
	}
	return loss, meanErr, value
}

// apply changes the parameters by the gradient.
func (l *learner) apply() {
	for b, m := range l.net.Params() {
		l.optims[b].Step(m.Theta, m.Grad)
	}
}

// gradient adds up the gradient of the batch drawn, and sets its errors.
func (l *learner) gradient() (loss, value float64) {
	l.goals()
	l.obs = l.obs[:0]
	for _, k := range l.idx {
		l.obs = append(l.obs, l.memory.items[k].obs)
	}
	l.values()
	n, most, at := float64(len(l.idx)), slices.Max(l.weight), 0
	for i, k := range l.idx {
		t := &l.memory.items[k]
		q := l.q[at+t.taken]
		err := q - l.goal[i]
		l.err[i] = err
		value += q / n
		weight := l.weight[i] / most
		// Huber's loss with its bend at 1.
		d := max(-1, min(1, err))
		loss += weight * (math.Abs(d) * (math.Abs(err) - math.Abs(d)/2)) / n
		l.d[at+t.taken] = weight * d / n
		at += len(t.obs.Combos)
	}
	l.net.Learn(l.d)
	return loss, value
}

// values sets the values of obs' combinations, and their derivatives to 0.
func (l *learner) values() {
	l.q = l.net.Values(l.q, l.obs)
	l.d = slices.Grow(l.d[:0], len(l.q))[:len(l.q)]
	clear(l.d)
}

// unit is that of an observation's values.
func (o *Obs) unit() float64 { return cmp.Or(o.Unit, 1) }

// goals sets the values that the combinations taken should have, each in its own observation's unit: the reward and the
// target network's value of what the network would choose next.
func (l *learner) goals() {
	l.obs = l.obs[:0]
	for _, k := range l.idx {
		if next := l.memory.items[k].next; next != nil {
			l.obs = append(l.obs, next)
		}
	}
	l.nextT = l.target.Values(l.nextT, l.obs)
	l.next = l.net.Values(l.next, l.obs)
	at := 0
	for i, k := range l.idx {
		t := &l.memory.items[k]
		goal := t.reward
		if t.next != nil {
			own := l.next[at:][:len(t.next.Combos)]
			goal += t.decay * t.next.unit() * l.nextT[at+best(own)]
			at += len(own)
		}
		l.goal[i] = goal / t.obs.unit()
	}
}
