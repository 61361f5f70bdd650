// Package interference predicts how much each member of a group slows down: from solo
// profiles by a contention law, corrected by observed co-runs of the applications.
package interference

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/recent"
)

// Model predicts by a contention law averaged over how the members' phases may meet, corrected by what it learned from
// co-runs (see learn.go). It implements rlcore.Predictor, rlcore.Pacer and rlcore.Forbidder. It keeps scratch and is
// not safe for concurrent use.
type Model struct {
	law  *contention.Law // where a card's way of sharing isn't known
	ways map[string]*way // by GPUSpec.Sharing
	// standings holds the applications' standings. strict: one of them may forbid or doubt something.
	standings *recent.Map[rlcore.Identity, Standing]
	strict    bool
	cache     map[group]*answer // predictions for cachedOn
	cachedOn  kindOfCard
	caches    map[kindOfCard]map[group]*answer
	sketches  map[*rlcore.Profile]*sketch // see look

	demands  []contention.Demand
	slow     []float64
	x        []term
	believed []belief
	drawn    []*sketch
	traits   traits
}

// way is what is believed of one way of sharing.
type way struct {
	law     *contention.Law
	learned learned
	site    learned // of whomever, by the application's name alone; see expect
}

// New returns a model that has learned nothing. It follows the law of a card's way of
// sharing, and the given one where that isn't known.
func New(law *contention.Law) *Model {
	owner := func(i rlcore.Identity) string { return i.Owner }
	return &Model{
		law: law, ways: map[string]*way{},
		standings: recent.New[rlcore.Identity, Standing](mostStandings, standingsOfUser, owner),
	}
}

// way returns what is believed of the card's way of sharing.
func (m *Model) way(spec *rlcore.GPUSpec) *way {
	return m.wayOf(spec.Sharing)
}

func (m *Model) wayOf(sharing string) *way {
	law := m.law
	if sharing != "" {
		law = contention.Of(sharing)
		sharing = law.Name
	}
	if law != nil && law == m.law {
		sharing = "" // the same
	}
	w := m.ways[sharing]
	if w == nil {
		w = &way{law, newLearned(law), newLearned(law)}
		m.ways[sharing] = w
	}
	return w
}

const (
	// meetings is the number of ways for phases to meet that are averaged over.
	meetings = 16
	// Floor is added to a slowdown's excess over 1 before its logarithm is taken: in a
	// member that hardly slows, hundredths are noise.
	Floor = 0.2
	// sdFloor is added to it before it is multiplied by a standard deviation: slowdowns near 1
	// are predicted better than it makes believe.
	sdFloor = 0.1
	// minSD is the spread of measured slowdowns where nothing contends
	// (CentaurusInfra/alnair: 0.97 to 1.07 where utilisations sum to less than 1).
	minSD = 0.02
	// maxKept is the size of the largest group with stored predictions, maxKeptGroups the number of groups.
	maxKept       = 5
	maxKeptGroups = 1 << 14
)

// Predict implements rlcore.Predictor. It allocates nothing for a group that it has predicted before.
//
// The law's excess over 1, plus Floor, is multiplied by the learned factor; the SD is
// the predicted excess, plus sdFloor, times the SD of the factor's logarithm.
//
// Guard and policy query the same groups, and a queue has few applications, so
// predictions are kept until something is learned.
func (m *Model) Predict(dst []rlcore.Prediction, spec *rlcore.GPUSpec, members []*rlcore.Profile) {
	if len(members) > maxKept {
		m.predict(dst, spec, members, m.beliefs(len(members)))
		return
	}
	a := m.answer(spec, members)
	copy(dst, a.predictions[:len(members)])
}

// answer returns what is predicted of at most maxKept members.
func (m *Model) answer(spec *rlcore.GPUSpec, members []*rlcore.Profile) *answer {
	var g group
	copy(g[:], members)
	on := kindOfCard{spec.Model, spec.Sharing, spec.PCIeMBps}
	if m.cache == nil || on != m.cachedOn { // mostly the same card many times
		if m.caches == nil {
			m.caches = map[kindOfCard]map[group]*answer{}
		}
		if m.caches[on] == nil {
			m.caches[on] = map[group]*answer{}
		}
		m.cache, m.cachedOn = m.caches[on], on
	}
	if a := m.cache[g]; a != nil {
		return a
	}
	a := &answer{}
	m.predict(a.predictions[:len(members)], spec, members, a.beliefs[:len(members)])
	for i := range members {
		a.law[i] = math.Exp(a.beliefs[i].z) - Floor + 1
	}
	if len(m.cache) >= maxKeptGroups {
		clear(m.cache)
	}
	m.cache[g] = a
	return a
}

// group and kindOfCard identify a prediction. Profiles are immutable, so pointers do.
type (
	group      [maxKept]*rlcore.Profile
	kindOfCard struct {
		model, sharing string
		link           float64
	}
)

// forget forgets all kept predictions.
func (m *Model) forget() { m.cache, m.caches = nil, nil }

type answer struct {
	predictions [maxKept]rlcore.Prediction
	beliefs     [maxKept]belief
	law         [maxKept]float64 // slowdowns that the law alone predicts
}

// predict writes what is predicted of the members, and what is believed of each.
func (m *Model) predict(dst []rlcore.Prediction, spec *rlcore.GPUSpec, members []*rlcore.Profile, beliefs []belief) {
	m.byLaw(dst, spec, members)
	if len(members) < 2 {
		return
	}
	var pairs [][maxKept]pairing
	if n := len(members); n > 2 && n <= maxKept {
		pairs = m.pairings(spec, members)
	}
	w, drawn := m.way(spec), m.sketch(members)
	for i := range dst {
		z := excess(dst[i].Slowdown)
		m.traits.set(drawn, i, z)
		beliefs[i] = w.expect(m, spec, members, i, &m.traits, z, pairs)
		dst[i] = beliefs[i].correct(dst[i].Slowdown, beliefs[i].mean)
	}
}

// beliefs returns scratch for n.
func (m *Model) beliefs(n int) []belief {
	m.believed = slices.Grow(m.believed[:0], n)[:n]
	return m.believed
}

// byLaw writes what the law alone predicts, without SD. How the members' phases will meet is unknown, so they are
// shifted against each other by irrational parts of the run (Weyl's sequence), and the law's slowdowns are averaged.
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
	law := m.way(spec).law
	for k := range ways {
		for i, p := range members {
			part := (float64(k)+0.5)/meetings + golden*float64(i)*float64(k+1)
			part -= float64(int(part))
			m.demands[i] = demand(spec, p, part*p.DurationS)
		}
		m.slow = law.Slowdowns(m.slow, m.demands)
		for i, s := range m.slow {
			dst[i].Slowdown += s / float64(ways)
		}
	}
}
