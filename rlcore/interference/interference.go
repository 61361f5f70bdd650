// Package interference predicts how much each member of a group slows down: from solo
// profiles by a contention law, corrected by observed co-runs of the applications.
package interference

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// Model predicts by a contention law averaged over how the members' phases may meet,
// corrected by what it learned from co-runs (see learn.go). It implements
// rlcore.Predictor, rlcore.Pacer and rlcore.Forbidder. It keeps scratch and is not safe
// for concurrent use.
type Model struct {
	law     *contention.Law
	learned learned
	site    learned // of whomever, by the application's name alone; see expect
	bad     map[pair]bool
	doubts  map[pair]float64 // by victim and aggressor, above 1; see Doubt
	kept    map[group]answer

	demands []contention.Demand
	slow    []float64
	x       []term
}

// pair is two applications; without owners they are everybody's.
type pair struct{ a, b rlcore.Identity }

// New returns a model of the given law that has learned nothing.
func New(law *contention.Law) *Model {
	return &Model{law: law, learned: newLearned(), site: newLearned(), bad: map[pair]bool{}}
}

const (
	// meetings is the number of ways for phases to meet that are averaged over.
	meetings = 16
	// floor is added to a slowdown's excess over 1 before its logarithm is taken: in a
	// member that hardly slows, hundredths are noise.
	floor = 0.1
	// minSD is the spread of measured slowdowns where nothing contends
	// (CentaurusInfra/alnair: 0.97 to 1.07 where utilisations sum to less than 1).
	minSD = 0.02
	// maxKept is the largest group whose predictions are kept, maxKeptGroups how many.
	maxKept       = 5
	maxKeptGroups = 1 << 14
)

// Predict implements rlcore.Predictor. It allocates nothing for a group that it has
// predicted before.
//
// The law's excess over 1, plus floor, is multiplied by the learned factor; the SD is
// that product times the SD of the factor's logarithm.
//
// Guard and policy query the same groups, and a queue has few applications, so
// predictions are kept until something is learned.
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
	if m.kept == nil || len(m.kept) >= maxKeptGroups {
		m.kept = make(map[group]answer)
	}
	var a answer
	copy(a[:], dst)
	m.kept[g] = a
}

// group identifies a prediction. Profiles are immutable, so pointers do.
type group struct {
	members [maxKept]*rlcore.Profile
	model   string
	link    float64
}

type answer [maxKept]rlcore.Prediction

func (m *Model) predict(dst []rlcore.Prediction, spec *rlcore.GPUSpec, members []*rlcore.Profile) {
	m.byLaw(dst, spec, members)
	if len(members) < 2 {
		return
	}
	for i := range dst {
		dst[i] = m.correct(dst[i].Slowdown, spec, members, i)
	}
}

// byLaw writes what the law alone predicts, without SD. How the members' phases will
// meet is unknown, so they are shifted against each other by irrational parts of the
// run (Weyl's sequence), and the law's slowdowns are averaged.
func (m *Model) byLaw(dst []rlcore.Prediction, spec *rlcore.GPUSpec, members []*rlcore.Profile) {
	for i := range dst {
		dst[i] = rlcore.Prediction{}
	}
	m.demands = slices.Grow(m.demands[:0], len(members))[:len(members)]
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

// Forbid keeps two users' applications from sharing a GPU, since they failed together; without
// owners everybody's.
func (m *Model) Forbid(a, b rlcore.Identity) { m.bad[ordered(a, b)] = true }

// Forgive revokes Forbid.
func (m *Model) Forgive(a, b rlcore.Identity) { delete(m.bad, ordered(a, b)) }

func ordered(a, b rlcore.Identity) pair {
	if a.Compare(b) > 0 {
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
			if m.bad[ordered(whose(p), whose(q))] || m.bad[ordered(anybody(p), anybody(q))] {
				return true
			}
		}
	}
	return false
}
