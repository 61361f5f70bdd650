package interference

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Observe learns from one co-run: members ran together on a card of the given
// kind and slowdowns[i] is member i's time together over its time alone. A
// slowdown that isn't a positive finite number is unknown and teaches nothing
// about its victim; one below 1 counts as 1. Nothing is learned of one that ran
// alone, of more than 16, or where the two lengths differ.
//
// The law's slowdown that it is held against is the average over how phases may
// meet. Where it is known how they met, use ObserveForeseen.
func (m *Model) Observe(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdowns []float64) {
	if !observable(members, slowdowns) {
		return
	}
	law := make([]rlcore.Prediction, len(members))
	m.byLaw(law, spec, members)
	for i, s := range slowdowns {
		if known(s) {
			m.learn(spec, members, i, s, surplus(s, law[i].Slowdown))
		}
	}
}

// known reports whether a slowdown was measured.
func known(s float64) bool { return s > 0 && !math.IsInf(s, 1) }

// surplus is by how much a slowdown exceeds the one expected, on the scale that
// factors are learned on.
func surplus(s, expected float64) float64 {
	return math.Log((max(s, 1) - 1 + floor) / (max(expected, 1) - 1 + floor))
}

func observable(members []*rlcore.Profile, slowdowns []float64) bool {
	if len(members) < 2 || len(members) > maxOthers+1 || len(slowdowns) != len(members) {
		return false
	}
	for _, p := range members {
		if p == nil || len(p.Series) == 0 {
			return false
		}
	}
	return true
}

// ObserveForeseen learns from one co-run as Observe does; foreseen[i] is what
// Pace, followed over the run as it was, foretold of member i. A phase in which
// nobody is in the way then isn't taken for a company that is never in the way.
// One that is unknown where its slowdown is known teaches nothing.
func (m *Model) ObserveForeseen(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdowns, foreseen []float64) {
	if !observable(members, slowdowns) || len(foreseen) != len(members) {
		return
	}
	for i, s := range slowdowns {
		if known(s) && known(foreseen[i]) {
			already, _ := m.learned.predict(m.terms(spec, members, i))
			m.learn(spec, members, i, s, already+surplus(s, foreseen[i]))
		}
	}
}

// learn takes into account that member i's slowdown s was off what the law says.
func (m *Model) learn(spec *rlcore.GPUSpec, members []*rlcore.Profile, i int, s, off float64) {
	if math.IsNaN(off) {
		return
	}
	off = clamp(off, surpriseN)
	m.kept = nil
	m.terms(spec, members, i)
	if m.learned.room(m.x) {
		m.learned.meet(m.x)
		m.learned.look(m.x)
		m.learned.add(m.x, cell{n: 1, sum: off, lo: off, hi: off, slow: min(s, mostSlow)})
	}
}

// mostSlow bounds a slowdown that is kept, so that sums stay finite.
const mostSlow = 1e6

// room reports whether the factors that x lacks can still be had.
func (l *learned) room(x []term) bool {
	return len(l.names)+2*len(x) <= maxParams && len(l.cells) < maxCells
}

// meet gives each factor of x that has none yet a place, with its prior.
func (l *learned) meet(x []term) {
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
		c := prior(term{role: victim, name: t.name}, term{role: aggressor, name: t.name})
		l.cov[v][a], l.cov[a][v] = c, c
	}
}

// grow adds one factor, as uncertain as the prior, and returns its index.
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

// record adds to what was seen of a cell and returns the cell, and its value and
// precision (1/variance) until now: 0 where it is new.
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

// add takes more of a cell into account: what it taught so far is replaced by
// what it teaches now, by a change of rank one of the covariance (Sherman and
// Morrison).
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
