package interference

import (
	"cmp"
	"math"

	"gonum.org/v1/gonum/floats"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Observe learns from one co-run on a card of the given kind: members[0] was slowed by slowdown, its run time together
// ÷ alone, where Pace had predicted predicted over the run as it was, so that a phase without contention isn't taken
// for co-runners that never contend. With predicted NaN the law's average over how phases may meet stands in. A
// slowdown that isn't a positive finite number teaches nothing; one below 1 counts as 1. Nothing is learned from a
// single member, nor from more than 16. The observation counts as so much of one as weight says, above 0 and up to 1.
func (m *Model) Observe(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdown, predicted, weight float64) {
	if observable(members) && known(slowdown) {
		_, off, f := m.compare(spec, members, slowdown, predicted)
		one := seen(off, weight, &f)
		one.miss = m.miss(spec, members, &one)
		m.learn(m.way(spec), spec, members, one, members[0].Owner != "")
	}
}

// compare returns what the law says of the slowdown s of members[0], the member's z_seen − z_law, and its traits.
func (m *Model) compare(spec *rlcore.GPUSpec, members []*rlcore.Profile, s, predicted float64,
) (law, off float64, f traits) {
	by := make([]rlcore.Prediction, len(members))
	m.byLaw(by, spec, members)
	law = by[0].Slowdown
	f = traitsOf(m.sketch(members), 0, excess(law))
	if !known(predicted) {
		return law, surplus(s, law), f
	}
	already := m.way(spec).expect(m, spec, members, 0, &f, excess(law), nil)
	return law, already.mean + surplus(s, predicted), f
}

// known reports whether a slowdown was measured.
func known(s float64) bool { return s > 0 && !math.IsInf(s, 1) }

// surplus returns z of slowdown s less z of the expected one (see learn.go).
func surplus(s, expected float64) float64 {
	return math.Log((max(s, 1) - 1 + Floor) / (max(expected, 1) - 1 + Floor))
}

// observable reports whether a co-run of these members can teach anything.
func observable(members []*rlcore.Profile) bool {
	if len(members) < 2 || len(members) > maxOthers+1 {
		return false
	}
	for _, p := range members {
		if p == nil || len(p.Series) == 0 {
			return false
		}
	}
	return true
}

// seen returns one observation of a cell: z_seen − z_law = off, with traits f.
func seen(off, weight float64, f *traits) cell {
	one := sight{clamp(off, surpriseN), weight}
	return cell{n: weight, sum: weight * one.Off, lo: one, hi: one, x: *f}
}

// miss is that of one observation of members[0].
func (m *Model) miss(spec *rlcore.GPUSpec, members []*rlcore.Profile, one *cell) float64 {
	l := &m.way(spec).learned
	return l.miss(m.terms(l, (*rlcore.Profile).Identity, spec, members, 0), one)
}

// learn adds an observation of members[0], and with others also one for any user's application of that name.
func (m *Model) learn(w *way, spec *rlcore.GPUSpec, members []*rlcore.Profile, seen cell, others bool) {
	if math.IsNaN(seen.sum) {
		return
	}
	m.forget()
	w.learned.learn(m.terms(&w.learned, (*rlcore.Profile).Identity, spec, members, 0), "", seen)
	if others {
		w.site.learn(m.terms(&w.site, ofAnyUser, spec, members, 0), members[0].Owner, seen)
	}
}

// mostOfOwner is how many applications there is room for of one user: names are free.
const mostOfOwner = 64

// mostCells bounds the cells of one user: what they teach about the site's weights counts for all users.
const mostCells = 512

// learn adds an observation, where there is room for it. New applications are taken down as
// introduced by the given user, "" = each by its own.
func (l *learned) learn(x []term, by string, seen cell) {
	if !l.room(x) {
		return
	}
	for _, t := range x {
		if t.role == card || t.at >= 0 {
			continue
		}
		if of := cmp.Or(by, t.name.Owner); of != "" && l.places[of] >= mostOfOwner {
			return
		}
	}
	l.meet(x, by)
	for i := range x {
		x[i].at = l.find(x[i].role, x[i].name)
	}
	sortOthers(x)
	of := cmp.Or(by, x[1].name.Owner) // the victim's
	if k, _ := keyOf(x); l.cells[k] == nil && of != "" {
		if l.held[of] >= mostCells {
			return
		}
		l.held[of]++
	}
	l.judge(seen.miss)
	l.add(x, seen)
}

// room reports whether there is room for x's new factors and cell.
func (l *learned) room(x []term) bool {
	return max(len(l.names), len(traits{}))+2*len(x) <= maxParams && len(l.cells) < maxCells
}

// meet adds the factors of x that are new, with their prior; see learn.
func (l *learned) meet(x []term, by string) {
	if len(l.names) == 0 {
		for i := range (traits{}) {
			l.grow(term{})
			l.cov[i][i] = 1
		}
	}
	for i := range x {
		t := x[i]
		if l.find(t.role, t.name) >= 0 {
			continue
		}
		if t.role == card {
			l.cards[t.name] = l.grow(t)
			continue
		}
		v := l.grow(term{role: victim, name: t.name})
		a := l.grow(term{role: aggressor, name: t.name})
		l.apps[t.name] = v
		if of := cmp.Or(by, t.name.Owner); of != "" {
			l.places[of]++
		}
		c := prior(term{role: victim, name: t.name}, term{role: aggressor, name: t.name})
		l.cov[v][a], l.cov[a][v] = c, c
	}
}

// grow adds one factor with its prior variance and returns its index.
func (l *learned) grow(t term) int {
	n := len(l.names)
	for i := range l.cov {
		l.cov[i] = append(l.cov[i], 0)
	}
	l.cov = append(l.cov, make([]float64, n+1))
	l.cov[n][n] = prior(t, t)
	l.names = append(l.names, t.name)
	l.shift, l.mean = append(l.shift, 0), append(l.mean, 0)
	return n
}

// record adds observations to a cell. It returns the cell, and a copy of what it was; with n = 0 it is new.
func (l *learned) record(x []term, extra *cell) (c *cell, was cell) {
	k, _ := keyOf(x)
	c = l.cells[k]
	if c == nil {
		c = &cell{key: k, lo: extra.lo, hi: extra.hi}
		l.cells[k] = c
	}
	was = *c
	c.add(extra)
	return c, was
}

// add adds observations.
func (c *cell) add(extra *cell) {
	c.n += extra.n
	c.sum += extra.sum
	if extra.lo.Off < c.lo.Off {
		c.lo = extra.lo
	}
	if extra.hi.Off > c.hi.Off {
		c.hi = extra.hi
	}
	part := extra.n / c.n
	floats.Scale(1-part, c.x[:])
	floats.AddScaled(c.x[:], part, extra.x[:])
}

// add updates the posterior with more observations of a cell, by rank-one changes of the covariance (Sherman and
// Morrison): one if the cell's traits stay, otherwise its earlier contribution is removed first.
func (l *learned) add(x []term, extra cell) {
	c, was := l.record(x, &extra)
	precision := 1 / c.variance()
	l.weigh(x, &c.x, c.value()*precision)
	if was.n > 0 {
		less := 1 / was.variance()
		l.weigh(x, &was.x, -was.value()*less)
		if floats.EqualApprox(was.x[:], c.x[:], 1e-12) {
			precision -= less
		} else {
			l.update(x, &was.x, -less)
		}
	}
	l.update(x, &c.x, precision)
	for i, row := range l.cov {
		l.mean[i] = floats.Dot(row, l.shift)
	}
}

// weigh adds v times the cell's terms to shift.
func (l *learned) weigh(x []term, f *traits, v float64) {
	floats.AddScaled(l.shift[:len(f)], v, f[:])
	for _, t := range x {
		l.shift[t.at] += t.weight * v
	}
}

// update adds to the precision, the inverse of cov, d times the square of the cell's terms.
func (l *learned) update(x []term, f *traits, d float64) {
	gain := make([]float64, len(l.names)) // cov · x
	for i, v := range f {
		if v != 0 {
			floats.AddScaled(gain, v, l.cov[i])
		}
	}
	for _, t := range x {
		floats.AddScaled(gain, t.weight, l.cov[t.at])
	}
	spread := floats.Dot(f[:], gain[:len(f)])
	for _, t := range x {
		spread += t.weight * gain[t.at]
	}
	by := d / (1 + d*spread)
	for i, row := range l.cov {
		floats.AddScaled(row, -by*gain[i], gain)
	}
}
