package interference

import (
	"maps"
	"slices"
)

// Clone returns a model that has learned the same. Both can then learn, and be used, independently.
func (m *Model) Clone() *Model {
	out := New(m.law)
	out.standings, out.strict = m.standings.Clone(), m.strict
	for sharing, w := range m.ways {
		c := out.wayOf(sharing)
		c.learned, c.site = w.learned.clone(), w.site.clone()
	}
	return out
}

func (l *learned) clone() learned {
	out := *l
	out.apps, out.cards, out.places, out.held = maps.Clone(l.apps), maps.Clone(l.cards), maps.Clone(l.places),
		maps.Clone(l.held)
	out.names, out.shift, out.mean, out.misses = slices.Clone(l.names), slices.Clone(l.shift), slices.Clone(l.mean),
		slices.Clone(l.misses)
	out.cov = make([][]float64, len(l.cov))
	for i, row := range l.cov {
		out.cov[i] = slices.Clone(row)
	}
	out.cells = make(map[key]*cell, len(l.cells))
	for k, c := range l.cells {
		own := *c
		out.cells[k] = &own
	}
	return out
}
