package dqn

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/rlcore/nn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Obs is a decision as a network sees it. It is immutable.
type Obs struct {
	Combos []rlcore.Combo
	// As in encoder.Features: the situation, ContextLen figures; the
	// combinations, len(Combos) × ComboLen; the throughput of each.
	Context, Rows []float32
	Prior         []float64
	// Unit is that of the values, in mean solo durations; 0 = 1. For the turnaround it is what a
	// second of work can be worth at most, so that a long queue makes no value large.
	Unit float64
}

// unit is that of an observation's values.
func (o *Obs) unit() float64 { return cmp.Or(o.Unit, 1) }

// Scorer values every combination with the same weights, so that neither M nor the
// number of GPUs is built into it. It is duelling (Wang et al., ICML 2016):
//
//	Q(s, c) = κ·(P(s, c) − 1) + V(s) + A(s, c) − mean over c' of A(s, c')
//
// P is the criterion of the best policy known that doesn't learn: for the turnaround baseline.Index, in units of
// Obs.Unit, which is srpt's; for the makespan the predicted throughput, in seconds of solo work per second, which is
// greedy's. The network starts as that policy (A = 0) and learns the difference. κ is about the time to the next
// decision, in mean solo durations.
type Scorer struct {
	Enc    encoder.Features
	value  *nn.MLP // V: ContextLen → hidden → 1
	better *nn.MLP // A: ContextLen+ComboLen → hidden → hidden → 1

	kappa float64
	aim   policy.Objective

	seen    Obs    // by the last Observe
	obs     []*Obs // of the last Values
	in, out batch
}

const (
	// defaultKappa is κ. On the random workload about 0.3 mean solo durations pass between two decisions on a shared GPU.
	defaultKappa = 0.5
	// shownCombos is how many combinations a Scorer describes.
	shownCombos = 32
)

// NewScorer returns a network that decides like srpt, or for the makespan like greedy, with hidden units per layer.
func NewScorer(aim policy.Objective, hidden int, p rlcore.Predictor, r *rand.Rand) *Scorer {
	return &Scorer{
		Enc:    encoder.Features{Predictor: p, Objective: aim, Max: shownCombos},
		value:  nn.New([]int{encoder.ContextLen, hidden, 1}, 0.1, r),
		better: nn.New([]int{inputs, hidden, hidden, 1}, 0, r),
		kappa:  defaultKappa, aim: aim,
	}
}

// Objective is what it learns to keep small.
func (s *Scorer) Objective() policy.Objective { return s.aim }

// Start is the policy that an untrained scorer decides like.
func Start(aim policy.Objective) string {
	if aim == policy.Makespan {
		return "greedy"
	}
	return "srpt"
}

// Params returns the parameters and their gradient, in blocks.
func (s *Scorer) Params() []nn.Block { return []nn.Block{s.value.Block, s.better.Block} }

// Twin returns a copy with its own parameters and scratch, which shares the predictor.
func (s *Scorer) Twin() *Scorer {
	t := s.Alias(s.Enc.Predictor)
	t.value, t.better = s.value.Twin(), s.better.Twin()
	return t
}

// Alias returns a network that shares the parameters but has its own gradient and scratch; it observes with p.
func (s *Scorer) Alias(p rlcore.Predictor) *Scorer {
	return &Scorer{
		Enc:   encoder.Features{Predictor: p, Objective: s.aim, Max: s.Enc.Max},
		value: s.value.Alias(), better: s.better.Alias(), kappa: s.kappa, aim: s.aim,
	}
}

// Observe describes a decision. The result is valid until the next call, unless fresh is set, which makes a copy.
func (s *Scorer) Observe(w *rlcore.Window, combos []rlcore.Combo, fresh bool) *Obs {
	s.Enc.Encode(w, combos)
	o := &s.seen
	if fresh {
		o = &Obs{}
	}
	prior, unit := s.Enc.Throughput, 1.0
	if s.aim != policy.Makespan {
		prior, unit = s.Enc.Index, s.Enc.Unit
	}
	o.Combos, o.Prior, o.Unit = append(o.Combos[:0], s.Enc.Combos...), append(o.Prior[:0], prior...), unit
	o.Context, o.Rows = narrow(o.Context, s.Enc.Context), narrow(o.Rows, s.Enc.Rows)
	return o
}

// narrow writes x as the networks' numbers into dst's storage.
func narrow(dst []float32, x []float64) []float32 {
	dst = slices.Grow(dst[:0], len(x))[:len(x)]
	for i, v := range x {
		dst[i] = float32(v)
	}
	return dst
}

// inputs is how many figures describe a combination in its situation.
const inputs = encoder.ContextLen + encoder.ComboLen

// batch is what the two networks see, or say, of some decisions: V has a column for each
// decision, A one for each of their combinations.
type batch struct{ value, better []float32 }

func (b *batch) size(value, better int) {
	b.value, b.better = slices.Grow(b.value[:0], value)[:value], slices.Grow(b.better[:0], better)[:better]
}

// Values writes the values of all observations' Combos, one after the other, into dst's
// storage. obs must not change before Learn.
func (s *Scorer) Values(dst []float64, obs []*Obs) []float64 {
	s.obs = obs
	n := 0
	for _, o := range obs {
		n += len(o.Combos)
	}
	s.in.size(encoder.ContextLen*len(obs), inputs*n)
	at := 0
	for j, o := range obs {
		for f, x := range o.Context {
			s.in.value[f*len(obs)+j] = x
			row := s.in.better[f*n+at:][:len(o.Combos)]
			for k := range row {
				row[k] = x
			}
		}
		for f := range encoder.ComboLen {
			row := s.in.better[(encoder.ContextLen+f)*n+at:][:len(o.Combos)]
			for k := range row {
				row[k] = o.Rows[k*encoder.ComboLen+f]
			}
		}
		at += len(o.Combos)
	}
	v, a := s.value.Forward(s.in.value, len(obs)), s.better.Forward(s.in.better, n)
	dst = dst[:0]
	for j, o := range obs {
		own := a[len(dst):][:len(o.Combos)]
		mean := 0.0
		for _, x := range own {
			mean += float64(x) / float64(len(own))
		}
		for k, x := range own {
			dst = append(dst, s.kappa*(o.Prior[k]-1)+float64(v[j])+float64(x)-mean)
		}
	}
	return dst
}

// Learn adds to the gradient that of a loss with derivative d with respect to the last Values.
func (s *Scorer) Learn(d []float64) {
	s.out.size(len(s.obs), len(d))
	at := 0
	for j, o := range s.obs {
		own := d[at:][:len(o.Combos)]
		sum := 0.0
		for _, x := range own {
			sum += x
		}
		s.out.value[j] = float32(sum)
		for k, x := range own {
			s.out.better[at+k] = float32(x - sum/float64(len(own)))
		}
		at += len(own)
	}
	s.value.Backward(s.out.value)
	s.better.Backward(s.out.better)
}
