package interference

import (
	"cmp"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// The model learns the factor by which members slow more, or less, than the law
// predicts. With z = log(slowdown − 1 + floor), for victim v with co-runners A on card c
//
//	z_seen − z_law = card_c + victim_v + mean_{a∈A} aggressor_a + cell_{c,v,A} + noise
//
// Each term is Gaussian around 0, so the posterior is exact, has a closed form, doesn't
// depend on the order of observations, and is the law where there were none. A cell is
// one application with the same co-runners on the same model of card. All observations
// of a cell count as one observation of the other terms, with less noise the more there
// are.
//
// The standard deviations are those at which errors on unseen cells are as large as
// predicted, on CentaurusInfra/alnair without iteration times and on
// stanford-futuredata/gavel, both before any co-run and after three per application.
// The means depend on their ratios only, and little: with half of appSD, or twice
// cellSD, the median error grows by at most 1.5 %. An application that slows others more
// than predicted has longer kernels than predicted, and is slowed less itself: hence the
// slight negative correlation.
//
// Median error on unseen co-runs, before any and after three per application: alnair
// without iteration times 5.6 and 3.9 %, with them 3.4 and 3.8 % (nothing is left to
// learn there; TestLearnsAlnair); gavel, under the law of time-slicing and with 0.85 for
// every job's unpublished utilisation, 14.2 and 7.8 % on the P100, 11.1 and 6.3 % on the
// K80 (20 random splits).
const (
	cardSD    = 0.15
	appSD     = 0.3 // as victim, and as aggressor
	cellSD    = 0.15
	noiseSD   = 0.1
	roleCorr  = -0.3 // of an application's two factors
	surprise  = 1.5  // bound of |z_seen − z_law| for a cell with one or two observations
	surpriseN = 4.0  // bound of it for every observation
	maxOthers = 15   // MPS before Volta serves 16 clients
	maxParams = 1024 // factors, of about 500 applications; their covariances take 8 MiB
	maxCells  = 1 << 16
)

type role int8

const (
	victim role = iota
	aggressor
	card
)

// term is one factor of a prediction, and its weight.
type term struct {
	role   role
	name   rlcore.Identity // application, or model of card
	at     int             // index of the factor in mean and cov; −1 = never observed
	weight float64
}

// key names a cell by its factors' indexes: card, victim, others in ascending order.
type key [2 + maxOthers]int32

// cell is what was observed of one application with the same co-runners.
type cell struct {
	key  key
	n    int
	sum  float64 // of z_seen − z_law
	lo   float64 // the lowest and the highest of them
	hi   float64
	slow float64 // sum of the slowdowns
}

// value returns the cell's mean z_seen − z_law without outliers: the lowest and the
// highest are left out once there are others.
func (c *cell) value() float64 {
	if c.n < 3 {
		return clamp(c.sum/float64(c.n), surprise)
	}
	return clamp((c.sum-c.lo-c.hi)/float64(c.n-2), surpriseN)
}

// variance returns that of value around the sum of the other terms.
func (c *cell) variance() float64 { return cellSD*cellSD + noiseSD*noiseSD/float64(c.n) }

func clamp(v, bound float64) float64 { return max(-bound, min(bound, v)) }

// learned is the posterior of the factors.
type learned struct {
	apps  map[rlcore.Identity]int // index of the factor as victim; the one as aggressor follows
	cards map[rlcore.Identity]int
	names []rlcore.Identity // by index
	cov   [][]float64       // symmetric
	shift []float64         // Σ x·value/variance over the cells
	mean  []float64         // cov · shift
	cells map[key]*cell
	// places counts the applications that each user introduced.
	places map[string]int
}

func newLearned() learned {
	return learned{apps: map[rlcore.Identity]int{}, cards: map[rlcore.Identity]int{}, cells: map[key]*cell{}, places: map[string]int{}}
}

// terms returns the factors of member i's slowdown in l, in the model's scratch, with the
// members as name has them.
func (m *Model) terms(l *learned, name func(*rlcore.Profile) rlcore.Identity, spec *rlcore.GPUSpec, members []*rlcore.Profile, i int) []term {
	var model rlcore.Identity
	if spec != nil {
		model.App = spec.Model
	}
	of := name(members[i])
	m.x = append(m.x[:0],
		term{card, model, l.find(card, model), 1},
		term{victim, of, l.find(victim, of), 1})
	for j, p := range members {
		if j != i {
			of = name(p)
			m.x = append(m.x, term{aggressor, of, l.find(aggressor, of), 1 / float64(len(members)-1)})
		}
	}
	sortOthers(m.x)
	return m.x
}

// whose names an application as its owner's, anybody as everybody's.
func whose(p *rlcore.Profile) rlcore.Identity   { return p.Identity() }
func anybody(p *rlcore.Profile) rlcore.Identity { return rlcore.Identity{App: p.App} }

// expect returns mean and SD of z − z_law of member i. Where nothing was observed of a user's
// application, what was observed of others' of that name stands in as the mean of the prior,
// within its standard deviation: names are free, and a user's co-runs may teach anything. Where
// nothing was observed of any of them, all that others taught counts for two at most.
func (m *Model) expect(spec *rlcore.GPUSpec, members []*rlcore.Profile, i int) (mean, sd float64) {
	x := m.terms(&m.learned, whose, spec, members, i)
	mean, sd = m.learned.predict(x)
	if len(m.site.names) == 0 {
		return mean, sd
	}
	strangers := true
	for _, t := range x {
		if t.role == card {
			continue
		}
		if t.at >= 0 {
			strangers = false
			continue
		}
		if at := m.site.find(t.role, rlcore.Identity{App: t.name.App}); at >= 0 {
			mean += t.weight * clamp(m.site.mean[at], appSD)
		}
	}
	if strangers {
		mean = clamp(mean, 2*appSD)
	}
	return mean, sd
}

// look updates the factors' indexes after meet.
func (l *learned) look(x []term) {
	for i := range x {
		x[i].at = l.find(x[i].role, x[i].name)
	}
	sortOthers(x)
}

// sortOthers sorts the aggressors, so that neither sums nor a cell's key depend on the
// members' order.
func sortOthers(x []term) {
	slices.SortFunc(x[2:], func(a, b term) int {
		return cmp.Or(cmp.Compare(a.at, b.at), a.name.Compare(b.name))
	})
}

func (l *learned) find(r role, name rlcore.Identity) int {
	in := l.apps
	if r == card {
		in = l.cards
	}
	at, ok := in[name]
	if !ok {
		return -1
	}
	if r == aggressor {
		at++
	}
	return at
}

// prior returns the covariance of two factors before any observation.
func prior(a, b term) float64 {
	switch {
	case a.name != b.name || (a.role == card) != (b.role == card):
		return 0
	case a.role == card:
		return cardSD * cardSD
	case a.role == b.role:
		return appSD * appSD
	}
	return roleCorr * appSD * appSD
}

// predict returns mean and SD of z − z_law; 0 and the prior's before any observation.
func (l *learned) predict(x []term) (mean, sd float64) {
	v := 0.0
	known := true
	for i := range x {
		a := x[i]
		if a.at < 0 {
			known = false
		} else {
			mean += a.weight * l.mean[a.at]
		}
		for j := range x[:i+1] {
			b, c := x[j], 0.0
			switch {
			case a.at >= 0 && b.at >= 0:
				c = l.cov[a.at][b.at]
			case a.at < 0 && b.at < 0:
				c = prior(a, b)
			}
			if i != j {
				c *= 2
			}
			v += a.weight * b.weight * c
		}
	}
	v = max(v, 0)
	if known {
		if k, ok := keyOf(x); ok {
			if c := l.cells[k]; c != nil {
				// The cell's own term given the others, exact; see Gelman et al., Bayesian
				// Data Analysis, ch. 5.
				noise := noiseSD * noiseSD / float64(c.n)
				own := cellSD * cellSD / (cellSD*cellSD + noise)
				return mean + own*(c.value()-mean), math.Sqrt((1-own)*(1-own)*v + own*noise)
			}
		}
	}
	return mean, math.Sqrt(v + cellSD*cellSD)
}

func keyOf(x []term) (key, bool) {
	var k key
	if len(x) > len(k) {
		return k, false
	}
	for i := range k {
		k[i] = -1
		if i < len(x) {
			k[i] = int32(x[i].at) //nolint:gosec // below maxParams
		}
	}
	return k, true
}
