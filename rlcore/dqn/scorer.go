package dqn

import (
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/rlcore/nn"
)

// Obs is a decision as a network sees it. It is immutable.
type Obs struct {
	Combos []rlcore.Combo
	// For a Scorer, as in encoder.Features: the situation, ContextLen figures; the
	// combinations, len(Combos) × ComboLen; the throughput of each.
	Context, Rows, Prior []float64
	// Unit is that of the values, in mean solo durations; 0 = 1. For the turnaround it is what a
	// second of work can be worth at most, so that a long queue makes no value large.
	Unit float64
	// For a Flat: the pixels of the images that are 1, ascending.
	Pixels []int32
}

// Network values the combinations of an observation.
type Network interface {
	// Name is "scorer" or "flat".
	Name() string
	// Objective is what it learns to keep small.
	Objective() rlcore.Objective
	// Observe describes a decision. The result is valid until the next call, unless
	// fresh asks for a copy.
	Observe(w *rlcore.Window, combos []rlcore.Combo, fresh bool) *Obs
	// Values writes the value of each of o.Combos into dst's storage.
	Values(dst []float64, o *Obs) []float64
	// Learn adds to the gradient that of a loss whose derivative with respect to the
	// value of o.Combos[k] is d. Values(o) must have been the last call.
	Learn(o *Obs, k int, d float64)
	// Params returns the parameters and their gradient, in blocks.
	Params() []nn.Block
	// Twin returns a copy with its own parameters and scratch.
	Twin() Network
	// Alias returns a network that shares the parameters but has its own gradient and
	// scratch; it observes with p.
	Alias(p rlcore.Predictor) Network
}

// Scorer values every combination with the same weights, so that neither M nor the
// number of GPUs is built into it. It is duelling (Wang et al., ICML 2016):
//
//	Q(s, c) = κ·(P(s, c) − 1) + V(s) + A(s, c) − mean over c' of A(s, c')
//
// P is the criterion of the best policy known that doesn't learn: for the turnaround
// rlcore.Index, in units of Obs.Unit, which is srpt's; for the makespan the predicted
// throughput, in seconds of solo work per second, which is greedy's. The network starts as
// that policy (A = 0) and learns the difference. κ is about the time to the next decision, in
// mean solo durations.
type Scorer struct {
	Enc    encoder.Features
	value  *nn.MLP // V: ContextLen → hidden → 1
	better *nn.MLP // A: ContextLen+ComboLen → hidden → hidden → 1

	obs   Obs
	in    []float64
	dy    []float64
	one   [1]float64
	kappa float64
	aim   rlcore.Objective
}

const (
	// defaultKappa is κ. On the random workload about 0.3 mean solo durations pass
	// between two decisions on a shared GPU.
	defaultKappa = 0.5
	// shownCombos is how many combinations a Scorer describes.
	shownCombos = 32
)

// NewScorer returns a network that decides like srpt, or for the makespan like greedy, with
// hidden units per layer.
func NewScorer(aim rlcore.Objective, hidden int, p rlcore.Predictor, r *rand.Rand) *Scorer {
	return &Scorer{
		Enc:    encoder.Features{Predictor: p, Objective: aim, Max: shownCombos},
		value:  nn.New([]int{encoder.ContextLen, hidden, 1}, 0.1, r),
		better: nn.New([]int{encoder.ContextLen + encoder.ComboLen, hidden, hidden, 1}, 0, r),
		kappa:  defaultKappa, aim: aim,
	}
}

// Name implements Network.
func (s *Scorer) Name() string { return kindScorer }

// Objective implements Network.
func (s *Scorer) Objective() rlcore.Objective { return s.aim }

// Start is the policy that an untrained scorer decides like.
func Start(aim rlcore.Objective) string {
	if aim == rlcore.Makespan {
		return "greedy"
	}
	return "srpt"
}

// Params implements Network.
func (s *Scorer) Params() []nn.Block { return []nn.Block{s.value.Block(), s.better.Block()} }

// Twin implements Network. The twin shares the predictor.
func (s *Scorer) Twin() Network {
	return &Scorer{
		Enc:   encoder.Features{Predictor: s.Enc.Predictor, Objective: s.aim, Max: s.Enc.Max},
		value: s.value.Twin(), better: s.better.Twin(), kappa: s.kappa, aim: s.aim,
	}
}

// Alias implements Network.
func (s *Scorer) Alias(p rlcore.Predictor) Network {
	return &Scorer{
		Enc:   encoder.Features{Predictor: p, Objective: s.aim, Max: s.Enc.Max},
		value: s.value.Alias(), better: s.better.Alias(), kappa: s.kappa, aim: s.aim,
	}
}

// Observe implements Network.
func (s *Scorer) Observe(w *rlcore.Window, combos []rlcore.Combo, fresh bool) *Obs {
	s.Enc.Encode(w, combos)
	s.obs = Obs{Combos: s.Enc.Combos, Context: s.Enc.Context, Rows: s.Enc.Rows, Prior: s.Enc.Throughput, Unit: 1}
	if s.aim != rlcore.Makespan {
		s.obs.Prior, s.obs.Unit = s.Enc.Index, s.Enc.Unit
	}
	if !fresh {
		return &s.obs
	}
	return &Obs{
		Combos:  append([]rlcore.Combo(nil), s.obs.Combos...),
		Context: append([]float64(nil), s.obs.Context...),
		Rows:    append([]float64(nil), s.obs.Rows...),
		Prior:   append([]float64(nil), s.obs.Prior...),
		Unit:    s.obs.Unit,
	}
}

// Values implements Network.
func (s *Scorer) Values(dst []float64, o *Obs) []float64 {
	const width = encoder.ContextLen + encoder.ComboLen
	n := len(o.Combos)
	s.in = s.in[:0]
	for k := range n {
		s.in = append(append(s.in, o.Context...), o.Rows[k*encoder.ComboLen:(k+1)*encoder.ComboLen]...)
	}
	v := s.value.Forward(o.Context, 1)[0]
	a := s.better.Forward(s.in[:n*width], n)
	mean := 0.0
	for _, x := range a {
		mean += x / float64(n)
	}
	dst = dst[:0]
	for k, x := range a {
		dst = append(dst, s.kappa*(o.Prior[k]-1)+v+x-mean)
	}
	return dst
}

// Learn implements Network.
func (s *Scorer) Learn(o *Obs, k int, d float64) {
	n := len(o.Combos)
	s.one[0] = d
	s.value.Backward(s.one[:])
	s.dy = s.dy[:0]
	for i := range n {
		g := -d / float64(n)
		if i == k {
			g += d
		}
		s.dy = append(s.dy, g)
	}
	s.better.Backward(s.dy)
}
