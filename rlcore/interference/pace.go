package interference

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// Pace implements rlcore.Pacer: the law's slowdowns for the members' demands at these
// positions of their runs, each corrected by what was learned of the member with these
// co-runners. It allocates nothing after the first group of that size.
func (m *Model) Pace(dst []rlcore.Prediction, spec *rlcore.GPUSpec, members []*rlcore.Profile, at []float64) {
	beliefs := m.beliefs(len(members))
	switch {
	case len(members) > maxKept:
		m.predict(dst, spec, members, beliefs)
	case len(members) > 1:
		a := m.answer(spec, members)
		copy(beliefs, a.beliefs[:])
	}
	m.demands = slices.Grow(m.demands[:0], len(members))[:len(members)]
	for i, p := range members {
		m.demands[i] = demand(spec, p, at[i])
	}
	m.slow = m.way(spec).law.Slowdowns(m.slow, m.demands)
	for i, s := range m.slow {
		dst[i] = rlcore.Prediction{Slowdown: s}
		if len(members) > 1 {
			dst[i] = beliefs[i].correct(s, beliefs[i].at(excess(s)))
		}
	}
}

// correct returns the law's slowdown s, corrected by a mean of z − z_law.
func (b *belief) correct(s, mean float64) rlcore.Prediction {
	s = max(1, s+(s-1+Floor)*math.Expm1(mean))
	return rlcore.Prediction{
		Slowdown: s, First: b.first,
		SD: max(minSD, (s-1+sdFloor+b.unseen*b.sd*b.sd/b.prior)*b.sd) * b.doubt,
	}
}

// demand returns a member's demand after t seconds of solo work.
func demand(spec *rlcore.GPUSpec, p *rlcore.Profile, t float64) contention.Demand {
	u := p.At(t)
	d := contention.Demand{GPU: u.GPU, Core: u.Core, StepS: p.StepS}
	if spec.PCIeMBps > 0 {
		d.PCIe = min(1, u.PCIeMBps/spec.PCIeMBps)
	}
	return d
}
