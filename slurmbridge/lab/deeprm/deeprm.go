// Package deeprm holds the learners for comparison: DeepRM (Mao et al., HotNets 2016) with each job's peak or mean use
// as its constant demand, and DqnGPU, the thesis's variant with use over time, combinations of jobs and a critic (its
// eq. 2). All are policy gradients over images; LEARNING.md in rlcore lists where they deviate from what was published.
package deeprm

import (
	"math"
	"math/bits"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/rlcore/nn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Kind is one of the learners.
type Kind string

// The learners.
const (
	Max    Kind = "deeprm_max"  // peak use all the time, one job at a time
	Mean   Kind = "deeprm_mean" // mean use all the time, one job at a time
	DqnGPU Kind = "dqngpu"      // use over time, combinations, eq. 2
)

var (
	_ = register(Max, 40, "DeepRM, each job's peak use as its demand")
	_ = register(Mean, 50, "DeepRM, each job's mean use as its demand")
	_ = register(DqnGPU, 60, "the thesis's policy gradient over combinations of jobs")
)

// register registers a learner, which only training makes a policy of.
func register(kind Kind, rank int, about string) policy.Spec {
	return policy.Register(policy.Spec{Name: string(kind), About: about, Rank: rank, Contender: true, Unguarded: true})
}

// hidden is DeepRM's published network: one layer of 20 ReLU units.
const hidden = 20

// Agent is a stochastic policy over images. Output 0 waits; output a starts slot
// a. DqnGPU has as many outputs again: its predicted returns Q(s, a).
type Agent struct {
	kind    Kind
	enc     encoder.Images
	net     *nn.Sparse
	actions int

	allowed []bool
	prob    []float64
	picture [1][]int32
}

// New returns an untrained agent for windows of m jobs. DqnGPU's outputs and input grow with 2^m.
func New(kind Kind, m int, r *rand.Rand) *Agent {
	a := &Agent{
		kind: kind,
		enc: encoder.Images{M: m, Demand: map[Kind]encoder.Demand{
			Max: encoder.Peak, Mean: encoder.Mean,
			DqnGPU: encoder.OverTime,
		}[kind], Virtual: kind == DqnGPU},
	}
	a.actions = 1 + a.enc.Slots()
	out := a.actions
	active := 400 // about how many pixels are 1
	if a.enc.Virtual {
		out = 2 * out
		active = 2000
	}
	a.net = nn.NewSparse(a.enc.Len(), hidden, out, active, 0.1, r)
	a.scratch()
	return a
}

func (a *Agent) scratch() {
	a.allowed = make([]bool, a.actions)
	a.prob = make([]float64, a.actions)
}

// Alias returns an agent that shares the parameters; gradient and scratch are its own.
func (a *Agent) Alias() *Agent {
	b := &Agent{
		kind: a.kind, enc: encoder.Images{M: a.enc.M, Demand: a.enc.Demand, Virtual: a.enc.Virtual},
		net: a.net.Alias(), actions: a.actions,
	}
	b.scratch()
	return b
}

// Name implements rlcore.Policy.
func (a *Agent) Name() string { return string(a.kind) }

// combo is the combination an action starts.
func (a *Agent) combo(action int) rlcore.Combo {
	if action == 0 || a.enc.Virtual {
		return rlcore.Combo(action)
	}
	return 1 << (action - 1)
}

// draw draws the window and finds which actions may be taken: those among combos
// that keep to the images' amounts. It returns how many these are.
func (a *Agent) draw(w *rlcore.Window, combos []rlcore.Combo) (choices int) {
	v := *w
	v.Jobs = v.Jobs[:min(len(v.Jobs), a.enc.M)]
	a.enc.Encode(&v)
	clear(a.allowed)
	k := 0
	for action := range a.actions {
		c := a.combo(action)
		for k < len(combos) && combos[k] < c {
			k++
		}
		if k < len(combos) && combos[k] == c && a.enc.Fits(&v, c) {
			a.allowed[action] = true
			choices++
		}
	}
	return choices
}

// distribution returns the probability of each action; valid until the next call.
func (a *Agent) distribution(pixels []int32, allowed []bool) []float64 {
	a.softmax(a.forward(pixels), allowed)
	return a.prob
}

func (a *Agent) forward(pixels []int32) []float32 {
	a.picture[0] = pixels
	return a.net.Forward(a.picture[:])
}

// softmax sets prob from the network's outputs.
func (a *Agent) softmax(y []float32, allowed []bool) {
	for i, v := range y[:a.actions] {
		a.prob[i] = float64(v)
	}
	nn.Softmax(a.prob, allowed)
}

// Score implements rlcore.Policy: the logarithm of each combination's
// probability; −Inf for what the images say doesn't fit.
func (a *Agent) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	for i := range dst {
		dst[i] = math.Inf(-1)
	}
	if a.draw(w, combos) == 0 {
		return
	}
	p := a.distribution(a.enc.Pixels, a.allowed)
	for i, c := range combos {
		action := int(c)
		if !a.enc.Virtual && c != 0 {
			if c.Len() != 1 {
				continue
			}
			action = 1 + bits.TrailingZeros32(uint32(c))
		}
		if action < a.actions && a.allowed[action] {
			dst[i] = math.Log(max(p[action], 1e-300))
		}
	}
}
