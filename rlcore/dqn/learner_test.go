package dqn

import (
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/nn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// table is a network of given values.
type table map[*Obs][]float64

func (t table) Values(dst []float64, obs []*Obs) []float64 {
	dst = dst[:0]
	for _, o := range obs {
		dst = append(dst, t[o]...)
	}
	return dst
}
func (table) Learn([]float64)    {}
func (table) Params() []nn.Block { return nil }

// TestDoubleEstimates: the learning network chooses, the target network values.
func TestDoubleEstimates(t *testing.T) {
	now, later := &Obs{Combos: make([]rlcore.Combo, 3)}, &Obs{Combos: make([]rlcore.Combo, 3)}
	learning := table{now: {0, 2, 0}, later: {1, 9, 3}}
	target := table{now: {0, 0, 0}, later: {7, 4, 5}}
	items := []transition{
		{obs: now, taken: 1, reward: 0.5, decay: 0.5, next: later},
		{obs: now, taken: 1, reward: -1, decay: 0.5}, // ended: no value of what follows
	}
	l := &qLearner{
		descent: descent{net: learning}, o: Options{Batch: 2}, memory: &replay{items: items}, target: target,
		idx: []int{0, 1}, weight: []float64{2, 1}, goal: make([]float64, 2), err: make([]float64, 2),
	}
	loss, value := l.gradient()
	off := 2 - (0.5 + 0.5*4)
	must.Equal(t, l.err, []float64{off, 3}, "errors")
	// Huber's: half of the square up to 1, then a line. Weights are over the batch's largest, losses over its size.
	if want := (off*off/2 + (3-0.5)*0.5) / 2; math.Abs(loss-want) > 1e-12 || value != 2 {
		t.Errorf("loss %v, want %v; value %v", loss, want, value)
	}
}

// TestValuesOfABatch are those that each of its decisions has alone.
func TestValuesOfABatch(t *testing.T) {
	net := newNet()
	shake(net, 7)
	var obs []*Obs
	var alone []float64
	for m := range 60 {
		w := someWindow(1 + m%3)
		o := net.Observe(w, newGuard().Combos(nil, w), true)
		obs, alone = append(obs, o), append(alone, net.Values(nil, []*Obs{o})...)
	}
	must.Equal(t, net.Values(nil, obs), alone, "values together, and alone")
}

// TestLearnAgainstFiniteDifferences: what Learn adds to the gradient is the derivative of Values.
func TestLearnAgainstFiniteDifferences(t *testing.T) {
	net := newNet()
	shake(net, 7)
	var obs []*Obs
	var d []float64
	r := seeded(2)
	for m := range 3 {
		w := someWindow(m + 1)
		obs = append(obs, net.Observe(w, newGuard().Combos(nil, w), true))
		for range obs[m].Combos {
			d = append(d, r.NormFloat64())
		}
	}
	sum := func() (s float64) {
		for i, v := range net.Values(nil, obs) {
			s += d[i] * v
		}
		return s
	}
	mid := sum()
	net.Learn(d)
	checked, bent := 0, 0
	for n, b := range net.Params() {
		for i, was := range b.Theta {
			// Values are piecewise linear in a parameter: the step can be large beside what float32
			// rounds off, where no ReLU bends within it.
			const h = 1.0 / 512
			b.Theta[i] = was + h
			up := sum()
			b.Theta[i] = was - h
			down := sum()
			b.Theta[i] = was
			if checked++; math.Abs(up+down-2*mid) > 2e-3*h {
				bent++
				continue
			}
			want := (up - down) / (2 * h)
			if got := float64(b.Grad[i]); math.Abs(want-got) > 5e-3*math.Max(1, math.Abs(want)) {
				t.Fatalf("block %d, parameter %d: derivative %v, by differences %v", n, i, got, want)
			}
		}
	}
	if bent > checked/10 {
		t.Errorf("%d of %d parameters have a bend too near", bent, checked)
	}
}

// TestPrioritisedDraws: items come up in proportion to p^α, with weights (N·P)^−β.
func TestPrioritisedDraws(t *testing.T) {
	const alpha, beta = 0.6, 0.4
	r := newReplay(6, alpha)
	errs := []float64{0.1, 2, 0, -0.5, 4, 1}
	for range errs {
		r.add(transition{})
	}
	for i, e := range errs {
		r.update(i, e)
	}
	var p []float64
	sum := 0.0
	for _, e := range errs {
		p = append(p, math.Pow(math.Abs(e)+1e-3, alpha))
		sum += p[len(p)-1]
	}
	seen := make([]float64, len(errs))
	idx, weight := make([]int, 3), make([]float64, 3)
	rnd := seeded(5)
	const draws = 20000
	for range draws {
		r.draw(idx, weight, beta, rnd)
		for k, i := range idx {
			seen[i]++
			if want := math.Pow(6*p[i]/sum, -beta); math.Abs(weight[k]-want) > 1e-12 {
				t.Fatalf("item %d weighs %v, want %v", i, weight[k], want)
			}
		}
	}
	for i := range seen {
		want := p[i] / sum
		got := seen[i] / (3 * draws)
		must.Near(t, got, want, 4*math.Sqrt(want*(1-want)/(3*draws)), "how often item %d was drawn", i)
	}
	// A newcomer takes the oldest one's place, with the largest priority there was.
	r.add(transition{taken: 7})
	if r.items[0].taken != 7 || r.tree[r.size] != p[4] || r.len() != 6 {
		t.Errorf("the newcomer has priority %v, want %v", r.tree[r.size], p[4])
	}
}

// Lessons of one decision are learned: the one that is worth more is valued more.
func TestTheBetterActionIsValuedMore(t *testing.T) {
	guard := newGuard()
	net := NewScorer(policy.Turnaround, 8, guard.Predictor, seeded(1))
	w := someWindow(5)
	o := net.Observe(w, guard.Combos(nil, w), true)
	last := len(o.Combos) - 1
	lessons := make([]lesson, 200)
	for i := range lessons {
		lessons[i] = lesson{obs: o, of: []int{1, last}, want: []float64{0.3, -0.3}}
	}
	l := newPlayoutLearner(Options{Seed: 1}.orDefaults(), net)
	l.lessons = lessons
	first := l.step()
	for range 300 {
		l.step()
	}
	after := l.step()
	q := net.Values(nil, []*Obs{o})
	if after > first/10 || q[1]-q[last] < 0.4 {
		t.Errorf("loss %v, then %v; values %v and %v", first, after, q[1], q[last])
	}
}
