package interference

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// The model learns the factor by which members slow more, or less, than the law predicts. With z =
// log(slowdown − 1 + Floor), for victim v with co-runners A on card c
//
//	z_seen − z_law = w·x + card_c + victim_v + mean_{a∈A} aggressor_a + cell_{c,v,A} + noise
//
// x are the traits (traits.go): what the members' profiles and the law say. Their weights w are the site's, so that the
// first co-runs of any application teach something about all. Each term is Gaussian around 0, so the posterior is
// exact, has a closed form, doesn't depend on the order of observations, and is the law where there were none. A cell
// is one application with the same co-runners on the same model of card. All observations of a cell count as one
// observation of the other terms, with less noise the more there are. What is learned of one way of sharing doesn't
// hold for another.
//
// The standard deviations are compromises between what predicts best and what predicts its own errors best on
// CentaurusInfra/alnair, boringlee24/socc22-miso and stanford-futuredata/gavel, with and without iteration times,
// before any co-run and after some; LEARNING.md has the figures. Results depend little on any of the standard
// deviations. An application that slows its co-runners more than predicted has longer kernels than predicted, and is
// slowed less itself: hence the slight negative correlation.
const (
	cardSD      = 0.1
	appSD       = 0.25 // as victim, and as aggressor
	cellSD      = 0.17
	noiseSD     = 0.1
	roleCorr    = -0.3 // of an application's two factors
	surprise    = 2.5  // bound of |z_seen − z_law| for a cell with one or two observations
	surpriseN   = 4.0  // bound of it for every observation
	mostShared  = 1.5  // bound of w·x: users' lessons count for all users there
	mostStrange = 0.6  // bound of all that other users' lessons say of strangers
	maxOthers   = 15   // MPS before Volta serves 16 clients
	maxParams   = 1024 // weights and factors, of about 490 applications; their covariances take 8 MiB
	maxCells    = 1 << 16
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

// key names a cell by its factors' indexes: card, victim, aggressors in ascending order.
type key [2 + maxOthers]int32

// cell is what was observed of one application with the same co-runners.
type cell struct {
	key key
	n   float64 // sum of the observations' weights
	sum float64 // of weight · (z_seen − z_law)
	lo  sight   // the lowest and the highest of them
	hi  sight
	// miss is by how many standard deviations the first observation differed from what was predicted; 0 = not known.
	miss float64
	// x is the mean of the observations' traits: profiles change a little with every run alone.
	x traits
}

// sight is z_seen − z_law of one observation, and its weight, up to 1.
type sight struct {
	Off    float64 `json:"off"`
	Weight float64 `json:"weight"`
}

// value returns the cell's mean z_seen − z_law without outliers: the lowest and the highest are
// left out if there are more.
func (c *cell) value() float64 {
	if c.n < 3 {
		return clamp(c.sum/c.n, surprise)
	}
	rest := c.sum - c.lo.Weight*c.lo.Off - c.hi.Weight*c.hi.Off
	return clamp(rest/(c.n-c.lo.Weight-c.hi.Weight), surpriseN)
}

// variance returns that of value around the sum of the other terms.
func (c *cell) variance() float64 { return cellSD*cellSD + noiseSD*noiseSD/c.n }

func clamp(v, bound float64) float64 { return max(-bound, min(bound, v)) }

// learned is the posterior of the weights and factors. The weights are the first of them,
// once there was an observation.
type learned struct {
	apps  map[rlcore.Identity]int // index of the factor as victim; the one as aggressor follows
	cards map[rlcore.Identity]int
	names []rlcore.Identity // by index
	cov   [][]float64       // symmetric
	shift []float64         // Σ x·value/variance over the cells
	mean  []float64         // cov · shift
	cells map[key]*cell
	// misses are by how many predicted standard deviations the last mostMisses new pairs differed from what was
	// predicted before, and scale is the factor on standard deviations that follows from them.
	misses []float64
	scale  float64
	unseen float64 // the law's
	// places counts the applications that each user introduced, held the cells of each.
	places, held map[string]int
}

func newLearned(law *contention.Law) learned {
	return learned{
		apps: map[rlcore.Identity]int{}, cards: map[rlcore.Identity]int{}, cells: map[key]*cell{},
		places: map[string]int{}, held: map[string]int{}, scale: 1, unseen: law.Unseen,
	}
}

// terms returns the factors of member i's slowdown in l, in the model's scratch, with the members as name has them.
func (m *Model) terms(l *learned, name func(*rlcore.Profile) rlcore.Identity, spec *rlcore.GPUSpec,
	members []*rlcore.Profile, i int,
) []term {
	model, of := rlcore.Identity{App: spec.Model}, name(members[i])
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

// ofAnyUser is an application of that name, of any user.
func ofAnyUser(p *rlcore.Profile) rlcore.Identity { return rlcore.Identity{App: p.App} }

// belief is what is believed of one member's z − z_law.
type belief struct {
	z      float64 // of the law's average slowdown
	mean   float64 // where the law says z
	slope  float64 // by how much more for each further z
	sd     float64
	doubt  float64 // factor on a prediction's SD
	prior  float64 // the variance before any observation
	unseen float64 // the law's Unseen
	first  bool    // the member was never seen with some other member
}

// known returns how much of the prior's variance observations have resolved, 0..1.
func (b *belief) known() float64 { return max(0, 1-b.sd*b.sd/b.prior) }

// at returns the mean where the law says the given z, at an instant of the run.
func (b *belief) at(z float64) float64 { return b.mean + clamp(b.slope*(z-b.z), mostSteep) }

// expect returns what is believed of member i with traits f, with an average z of the law. If a
// user's application was never observed, observations of other users' applications of that name are
// the mean of the prior, within its standard deviation: names are free, and a user's co-runs may
// teach anything. If none was observed, other users' lessons count for up to mostStrange.
//
// pairs is what is known of each member next to each other one alone, where they are three or more; nil = not known.
func (w *way) expect(m *Model, spec *rlcore.GPUSpec, members []*rlcore.Profile, i int, f *traits, z float64,
	pairs [][maxKept]pairing,
) belief {
	x := m.terms(&w.learned, (*rlcore.Profile).Identity, spec, members, i)
	b := belief{z: z, doubt: m.doubt(members, i) * w.learned.scale, unseen: w.law.Unseen}
	mean, v := w.learned.fromFactors(x, f)
	if pairs != nil {
		mean, v = w.learned.compose(pairs, i, z, mean, v)
	}
	b.mean, b.sd = w.learned.withCell(x, mean, v)
	b.prior = priorVariance(x, f)
	if len(w.learned.mean) > 0 {
		b.slope = slopeSD * w.learned.mean[slope]
	}
	b.first = w.learned.cellOf(x) == nil
	if b.first && pairs != nil {
		b.first = slices.ContainsFunc(pairs[i][:len(members)], func(p pairing) bool { return p.first })
	}
	if len(w.site.names) == 0 {
		return b
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
		if at := w.site.find(t.role, rlcore.Identity{App: t.name.App}); at >= 0 {
			b.mean += t.weight * clamp(w.site.mean[at], appSD)
		}
	}
	if strangers {
		b.mean = clamp(b.mean, mostStrange)
	}
	return b
}

// sortOthers sorts the aggressors, so that neither sums nor a cell's key depend on the members' order.
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

// priorVariance returns the variance of z − z_law before any observation.
func priorVariance(x []term, f *traits) float64 {
	v := floats.Dot(f[:], f[:]) + cellSD*cellSD
	for i := range x {
		for j := range x {
			v += x[i].weight * x[j].weight * prior(x[i], x[j])
		}
	}
	return v
}

// fromFactors returns mean and variance of z − z_law, but for what is the cell's own.
func (l *learned) fromFactors(x []term, f *traits) (mean, v float64) {
	if c := l.cellOf(x); c != nil {
		f = &c.x
	}
	v = l.common(x, f)
	if len(l.mean) > 0 {
		mean = clamp(floats.Dot(f[:], l.mean[:len(f)]), mostShared)
	}
	for i := range x {
		a := x[i]
		if a.at >= 0 {
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
	return mean, max(v, 0)
}

// withCell adds the cell's own term to what the factors say.
func (l *learned) withCell(x []term, mean, v float64) (z, sd float64) {
	c := l.cellOf(x)
	if c == nil {
		return mean, math.Sqrt(v + cellSD*cellSD)
	}
	// The cell's own term given the other terms, exact; see Gelman et al., Bayesian Data Analysis, ch. 5.
	noise := noiseSD * noiseSD / c.n
	own := cellSD * cellSD / (cellSD*cellSD + noise)
	return mean + own*(c.value()-mean), math.Sqrt((1-own)*(1-own)*v + own*noise)
}

// How sure predictions are is learned, too: their standard deviations are scaled so that 68 % of what a site has seen
// for the first time was within one and 95 % within two (conformal prediction with two quantiles). The logarithm of the
// scale counts as if trustMisses more pairs had been as predicted.
const (
	mostMisses  = 256
	trustMisses = 10
	mostScale   = 2.0 // and 1/mostScale: users' co-runs count for all users
)

// miss is by how many standard deviations what was seen of a new cell of two in most of a run differs from what is
// believed of it; 0 = it isn't such a one.
func (l *learned) miss(x []term, seen *cell) float64 {
	if len(x) != 3 || l.cellOf(x) != nil || seen.n < 0.5 {
		return 0
	}
	b := belief{z: seen.x[slope]/slopeSD + usualZ, doubt: 1, prior: priorVariance(x, &seen.x), unseen: l.unseen}
	mean, v := l.fromFactors(x, &seen.x)
	b.mean, b.sd = l.withCell(x, mean, v)
	law := math.Exp(b.z) - Floor + 1
	p := b.correct(law, b.mean)
	return math.Abs(max(1, law+(law-1+Floor)*math.Expm1(seen.value()))-p.Slowdown) / p.SD
}

// judge learns how sure predictions are by how far one missed; 0 = it isn't known.
func (l *learned) judge(miss float64) {
	if miss == 0 {
		return
	}
	l.misses = append(l.misses, miss)
	l.misses = l.misses[max(0, len(l.misses)-mostMisses):]
	sorted := slices.Sorted(slices.Values(l.misses))
	n := float64(len(sorted))
	one, two := stat.Quantile(0.68, stat.LinInterp, sorted, nil), stat.Quantile(0.95, stat.LinInterp, sorted, nil)/2
	l.scale = min(mostScale, max(1/mostScale, math.Pow(one*two, n/(n+trustMisses)/2)))
}

// cellOf returns the cell of these terms, nil where it wasn't observed.
func (l *learned) cellOf(x []term) *cell {
	for i := range x {
		if x[i].at < 0 {
			return nil
		}
	}
	if k, ok := keyOf(x); ok {
		return l.cells[k]
	}
	return nil
}

// common returns the variance of w·x and twice its covariance with the factors.
func (l *learned) common(x []term, f *traits) float64 {
	if len(l.cov) == 0 {
		return floats.Dot(f[:], f[:])
	}
	v := 0.0
	for i, p := range f { // the lower triangle
		v += p * (2*floats.Dot(l.cov[i][:i], f[:i]) + p*l.cov[i][i])
	}
	for _, t := range x {
		if t.at >= 0 {
			v += 2 * t.weight * floats.Dot(l.cov[t.at][:len(f)], f[:])
		}
	}
	return v
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
