package dqn

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore/nn"
)

// network is what learning needs of a Scorer.
type network interface {
	Values(dst []float64, obs []*Obs) []float64
	Learn(d []float64)
	Params() []nn.Block
}

// descent changes a network's parameters by the gradient of a batch's loss.
type descent struct {
	net    network
	optims []*nn.Adam // by block of parameters
	obs    []*Obs     // of the batch
	q, d   []float64  // of the batch's combinations: values, and the loss's derivative
}

func newDescent(o Options, net network) descent {
	out := descent{net: net}
	for range net.Params() {
		out.optims = append(out.optims, &nn.Adam{Rate: o.Rate, Clip: o.Clip})
	}
	return out
}

func (x *descent) setRate(rate float64) {
	for _, adam := range x.optims {
		adam.Rate = rate
	}
}

// values sets the values of the batch's combinations, and their derivatives to 0.
func (x *descent) values() {
	x.q = x.net.Values(x.q, x.obs)
	x.d = slices.Grow(x.d[:0], len(x.q))[:len(x.q)]
	clear(x.d)
}

// apply changes the parameters by the gradient.
func (x *descent) apply() {
	for b, m := range x.net.Params() {
		x.optims[b].Step(m.Theta, m.Grad)
	}
}

func snapshot(n network) [][]float32 {
	var out [][]float32
	for _, m := range n.Params() {
		out = append(out, slices.Clone(m.Theta))
	}
	return out
}

func restore(n network, theta [][]float32) {
	for i, m := range n.Params() {
		copy(m.Theta, theta[i])
	}
}
