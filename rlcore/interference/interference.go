// Package interference predicts how much each member of a group slows down, from
// solo profiles alone.
package interference

import (
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// Model predicts by a contention law averaged over how the members' phases may
// meet. It keeps scratch and is not safe for concurrent use.
type Model struct {
	law *contention.Law

	demands []contention.Demand
	slow    []float64
	bad     map[pair]bool
}

type pair struct{ a, b string }

// New returns a model of the given law.
func New(law *contention.Law) *Model { return &Model{law: law, bad: map[pair]bool{}} }

// meetings is how many ways for the phases to meet are averaged over.
const meetings = 16

// The law's own error on cells it was not fitted to (see contention.MPS), as a
// fraction of what exceeds 1, and at least.
const relSD, minSD = 0.15, 0.02

// Predict implements rlcore.Predictor. Where the members will be in their runs
// when they meet isn't known, so their phases are shifted against each other by
// an irrational part of the run (Weyl's sequence), and the law's slowdowns are
// averaged.
func (m *Model) Predict(dst []rlcore.Prediction, spec *rlcore.GPUSpec, members []*rlcore.Profile) {
	for i := range dst {
		dst[i] = rlcore.Prediction{}
	}
	if len(members) == 1 {
		dst[0].Slowdown = 1
		return
	}
	if cap(m.demands) < len(members) {
		m.demands = make([]contention.Demand, len(members))
	}
	m.demands = m.demands[:len(members)]
	const golden = 0.6180339887498949
	for k := range meetings {
		for i, p := range members {
			part := (float64(k)+0.5)/meetings + golden*float64(i)*float64(k+1)
			part -= float64(int(part))
			u := p.At(part * p.DurationS)
			d := contention.Demand{GPU: u.GPU, Core: u.Core, StepS: p.StepS}
			if spec.PCIeMBps > 0 {
				d.PCIe = min(1, u.PCIeMBps/spec.PCIeMBps)
			}
			m.demands[i] = d
		}
		m.slow = m.law.Slowdowns(m.slow, m.demands)
		for i, s := range m.slow {
			dst[i].Slowdown += s / meetings
		}
	}
	for i := range dst {
		dst[i].SD = max(minSD, relSD*(dst[i].Slowdown-1))
	}
}

// Forbid keeps two applications off one GPU from now on: they were seen to fail
// together.
func (m *Model) Forbid(a, b string) { m.bad[ordered(a, b)] = true }

func ordered(a, b string) pair {
	if a > b {
		a, b = b, a
	}
	return pair{a, b}
}

// Forbidden implements rlcore.Forbidder.
func (m *Model) Forbidden(_ *rlcore.GPUSpec, members []*rlcore.Profile) bool {
	if len(m.bad) == 0 {
		return false
	}
	for i, p := range members {
		for _, q := range members[:i] {
			if m.bad[ordered(p.App, q.App)] {
				return true
			}
		}
	}
	return false
}
