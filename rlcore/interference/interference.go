// Package interference predicts how much each member of a group slows down: from
// solo profiles by a contention law, and from what was seen of the applications
// together, as far as anything was.
package interference

import (
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// Model predicts by a contention law averaged over how the members' phases may
// meet, corrected by what Observe learned (see learn.go). It keeps scratch and is
// not safe for concurrent use.
type Model struct {
	law     *contention.Law
	learned learned
	bad     map[pair]bool
	doubts  map[pair]float64 // by victim and aggressor, above 1; see Doubt
	kept    map[group]answer

	demands []contention.Demand
	slow    []float64
	x       []term
}

type pair struct{ a, b string }

// New returns a model of the given law that has seen nothing.
func New(law *contention.Law) *Model {
	return &Model{law: law, learned: newLearned(), bad: map[pair]bool{}}
}

const (
	// meetings is how many ways for the phases to meet are averaged over.
	meetings = 16
	// floor is what is added to the part of a slowdown above 1 before its logarithm
	// is taken: to a member that hardly slows, hundredths are noise.
	floor = 0.1
	// minSD is the spread that measured slowdowns have where nothing contends
	// (CentaurusInfra/alnair: 0.97 to 1.07 where utilisations sum to less than 1).
	minSD = 0.02
)

// Predict implements rlcore.Predictor. It allocates nothing for a group
// that it has met.
//
// The excess over 1 that the law foretells, plus floor, is multiplied by what was
// learned; the SD is that sum times the SD of the learned factor's logarithm.
//
// The guard and a policy ask about the same groups one after the other, and a
// queue has few applications: answers are kept until something is learned.
func (m *Model) Predict(dst []rlcore.Prediction, spec *rlcore.GPUSpec, members []*rlcore.Profile) {
	if len(members) > len(group{}.members) {
		m.predict(dst, spec, members)
		return
	}
	var g group
	copy(g.members[:], members)
	if spec != nil {
		g.model, g.link = spec.Model, spec.PCIeMBps
	}
	if kept, ok := m.kept[g]; ok {
		copy(dst, kept[:len(members)])
		return
	}
	m.predict(dst, spec, members)
	if m.kept == nil || len(m.kept) >= keep {
		m.kept = make(map[group]answer)
	}
	var a answer
	copy(a[:], dst)
	m.kept[g] = a
}

// group is whom a prediction is for. Profiles don't change once they are built.
type group struct {
	members [maxKept]*rlcore.Profile
	model   string
	link    float64
}

type answer [maxKept]rlcore.Prediction

// maxKept is the largest group whose predictions are kept, keep how many are.
const maxKept, keep = 5, 1 << 14

func (m *Model) predict(dst []rlcore.Prediction, spec *rlcore.GPUSpec, members []*rlcore.Profile) {
	m.byLaw(dst, spec, members)
	if len(members) < 2 {
		return
	}
	for i := range dst {
		dst[i] = m.correct(dst[i].Slowdown, spec, members, i)
	}
}

// byLaw writes what the law alone foretells, without an SD. Where the members
// will be in their runs when they meet isn't known, so their phases are shifted
// against each other by an irrational part of the run (Weyl's sequence), and the
// law's slowdowns are averaged.
func (m *Model) byLaw(dst []rlcore.Prediction, spec *rlcore.GPUSpec, members []*rlcore.Profile) {
	for i := range dst {
		dst[i] = rlcore.Prediction{}
	}
	if cap(m.demands) < len(members) {
		m.demands = make([]contention.Demand, len(members))
	}
	m.demands = m.demands[:len(members)]
	ways := 1
	for _, p := range members {
		if len(p.Series) > 1 {
			ways = meetings
		}
	}
	const golden = 0.6180339887498949
	for k := range ways {
		for i, p := range members {
			part := (float64(k)+0.5)/meetings + golden*float64(i)*float64(k+1)
			part -= float64(int(part))
			m.demands[i] = demand(spec, p, part*p.DurationS)
		}
		m.slow = m.law.Slowdowns(m.slow, m.demands)
		for i, s := range m.slow {
			dst[i].Slowdown += s / float64(ways)
		}
	}
}

// Forbid keeps two applications off one GPU from now on: they were seen to fail
// together.
func (m *Model) Forbid(a, b string) { m.bad[ordered(a, b)] = true }

// Forgive takes a Forbid back.
func (m *Model) Forgive(a, b string) { delete(m.bad, ordered(a, b)) }

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
