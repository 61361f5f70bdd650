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
	m.demands = slices.Grow(m.demands[:0], len(members))[:len(members)]
	for i, p := range members {
		m.demands[i] = demand(spec, p, at[i])
	}
	m.slow = m.law.Slowdowns(m.slow, m.demands)
	for i, s := range m.slow {
		dst[i] = rlcore.Prediction{Slowdown: s}
	}
	if len(members) < 2 {
		return
	}
	for i := range dst {
		dst[i] = m.correct(dst[i].Slowdown, spec, members, i)
	}
}

// correct returns the law's slowdown s of member i, corrected by what was learned.
func (m *Model) correct(s float64, spec *rlcore.GPUSpec, members []*rlcore.Profile, i int) rlcore.Prediction {
	mean, sd := m.expect(spec, members, i)
	s = max(1, s+(s-1+floor)*math.Expm1(mean))
	return rlcore.Prediction{Slowdown: s, SD: max(minSD, (s-1+floor)*sd) * m.doubt(members, i)}
}

// demand returns a member's demand after t seconds of solo work.
func demand(spec *rlcore.GPUSpec, p *rlcore.Profile, t float64) contention.Demand {
	u := p.At(t)
	d := contention.Demand{GPU: u.GPU, Core: u.Core, StepS: p.StepS}
	if spec != nil && spec.PCIeMBps > 0 {
		d.PCIe = min(1, u.PCIeMBps/spec.PCIeMBps)
	}
	return d
}
