package interference

import (
	"cmp"
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Observe learns from one co-run on a card of the given kind: slowdowns[i] is member i's
// run time together ÷ alone. A slowdown that isn't a positive finite number is unknown
// and teaches nothing about its victim; one below 1 counts as 1. Nothing is learned from
// a single member, from more than 16, or where the lengths differ.
//
// The slowdowns are compared with the law averaged over how phases may meet. Where it is
// known how they met, use ObserveForeseen.
func (m *Model) Observe(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdowns []float64) {
	if !observable(members) || len(slowdowns) != len(members) {
		return
	}
	law := make([]rlcore.Prediction, len(members))
	m.byLaw(law, spec, members)
	for i, s := range slowdowns {
		if known(s) {
			m.learn(spec, members, i, s, surplus(s, law[i].Slowdown), members[i].Owner != "")
		}
	}
}

// known reports whether a slowdown was measured.
func known(s float64) bool { return s > 0 && !math.IsInf(s, 1) }

// surplus returns z of slowdown s less z of the expected one (see learn.go).
func surplus(s, expected float64) float64 {
	return math.Log((max(s, 1) - 1 + floor) / (max(expected, 1) - 1 + floor))
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

// ObserveForeseen is Observe where foreseen[i] is member i's slowdown as Pace predicted
// it over the run as it was, so that a phase without contention isn't taken for
// co-runners that never contend. A member with an unknown foreseen teaches nothing.
func (m *Model) ObserveForeseen(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdowns, foreseen []float64) {
	if !observable(members) || len(slowdowns) != len(members) || len(foreseen) != len(members) {
		return
	}
	for i, s := range slowdowns {
		if known(s) && known(foreseen[i]) {
			already, _ := m.expect(spec, members, i)
			m.learn(spec, members, i, s, already+surplus(s, foreseen[i]), members[i].Owner != "")
		}
	}
}

// learn adds the observation of member i's slowdown s, with z_seen − z_law = off; with others
// also as one of whomever's application of that name.
func (m *Model) learn(spec *rlcore.GPUSpec, members []*rlcore.Profile, i int, s, off float64, others bool) {
	if math.IsNaN(off) {
		return
	}
	off = clamp(off, surpriseN)
	m.kept = nil
	seen := cell{n: 1, sum: off, lo: off, hi: off, slow: min(s, mostSlow)}
	m.learned.learn(m.terms(&m.learned, whose, spec, members, i), "", seen)
	if others {
		m.site.learn(m.terms(&m.site, anybody, spec, members, i), members[i].Owner, seen)
	}
}

// mostOfOwner is how many applications there is room for of one user: names are free.
const mostOfOwner = 64

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
	l.look(x)
	l.add(x, seen)
}

// mostSlow bounds an observed slowdown, so that sums stay finite.
const mostSlow = 1e6

// room reports whether there is room for x's new factors and cell.
func (l *learned) room(x []term) bool {
	return len(l.names)+2*len(x) <= maxParams && len(l.cells) < maxCells
}

// meet adds the factors of x that are new, with their prior; see learn.
func (l *learned) meet(x []term, by string) {
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

// record adds observations to a cell. It returns the cell, and its value and precision
// (1/variance) before: 0 where it is new.
func (l *learned) record(x []term, more cell) (c *cell, value, precision float64) {
	k, _ := keyOf(x)
	c = l.cells[k]
	if c == nil {
		c = &cell{key: k, lo: more.lo, hi: more.hi}
		l.cells[k] = c
	} else {
		value, precision = c.value(), 1/c.variance()
	}
	c.n += more.n
	c.sum += more.sum
	c.lo, c.hi = min(c.lo, more.lo), max(c.hi, more.hi)
	c.slow += more.slow
	return c, value, precision
}

// add updates the posterior with more observations of a cell, by a rank-one change of
// the covariance (Sherman and Morrison).
func (l *learned) add(x []term, more cell) {
	c, value, precision := l.record(x, more)
	now := 1 / c.variance()
	gain := make([]float64, len(l.names)) // cov · x
	for _, t := range x {
		l.shift[t.at] += t.weight * (c.value()*now - value*precision)
		for i, v := range l.cov[t.at] {
			gain[i] += t.weight * v
		}
	}
	spread := 0.0
	for _, t := range x {
		spread += t.weight * gain[t.at]
	}
	d := now - precision
	f := d / (1 + d*spread)
	for i, row := range l.cov {
		mean := 0.0
		for j := range row {
			row[j] -= f * gain[i] * gain[j]
			mean += row[j] * l.shift[j]
		}
		l.mean[i] = mean
	}
}
