package interference

import (
	"cmp"
	"maps"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Clone returns a model that has learned the same. Both can then learn, and be used, independently.
// The posterior is computed again from all observations, so it doesn't depend on their order,
// except for rounding.
func (m *Model) Clone() *Model {
	out := New(m.law)
	out.bad, out.alone, out.doubts = m.bad.Clone(), m.alone.Clone(), m.doubts.Clone()
	for sharing, w := range m.ways {
		c := out.wayOf(sharing)
		w.learned.copyTo(&c.learned)
		w.site.copyTo(&c.site)
	}
	return out
}

func (l *learned) copyTo(out *learned) {
	var all [][]term
	for _, c := range l.sorted() {
		x := []term{{card, c.card, -1, 1}, {victim, c.victim, -1, 1}}
		for _, a := range c.others {
			x = append(x, term{aggressor, a, -1, 1 / float64(len(c.others))})
		}
		out.meet(x, "")
		out.reindex(x)
		out.record(x, c.cell)
		all = append(all, x)
	}
	out.places, out.held = maps.Clone(l.places), maps.Clone(l.held)
	out.misses, out.scale = slices.Clone(l.misses), l.scale
	out.solve(all)
}

// namedCell is a cell with the names of its factors.
type namedCell struct {
	*cell
	card, victim rlcore.Identity
	others       []rlcore.Identity // sorted
}

// sorted returns the cells by name.
func (l *learned) sorted() []namedCell {
	out := make([]namedCell, 0, len(l.cells))
	for _, c := range l.cells {
		n := namedCell{cell: c, card: l.names[c.key[0]], victim: l.names[c.key[1]]}
		for _, at := range c.key[2:] {
			if at >= 0 {
				n.others = append(n.others, l.names[at])
			}
		}
		slices.SortFunc(n.others, rlcore.Identity.Compare)
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b namedCell) int {
		return cmp.Or(a.card.Compare(b.card), a.victim.Compare(b.victim), slices.CompareFunc(a.others, b.others, rlcore.Identity.Compare))
	})
	return out
}

// solve computes the posterior of all recorded cells at once, from the prior; x are
// their terms. The result is that of adding them one by one.
func (l *learned) solve(x [][]term) {
	n := len(l.names)
	if n == 0 {
		return
	}
	prior := mat.NewSymDense(n, nil)
	for i, row := range l.cov {
		for j := i; j < n; j++ {
			prior.SetSym(i, j, row[j])
		}
	}
	precision := inverse(prior)
	for _, terms := range x {
		k, _ := keyOf(terms)
		c := l.cells[k]
		w := 1 / c.variance()
		l.weigh(terms, &c.x, c.value()*w)
		all := terms
		for i, v := range c.x {
			if v != 0 {
				all = append(all, term{at: i, weight: v})
			}
		}
		for _, a := range all {
			for _, b := range all {
				if a.at <= b.at { // symmetric
					precision.SetSym(a.at, b.at, precision.At(a.at, b.at)+a.weight*b.weight*w)
				}
			}
		}
	}
	cov := inverse(precision)
	for i := range n {
		mean := 0.0
		for j := range n {
			l.cov[i][j] = cov.At(i, j)
			mean += l.cov[i][j] * l.shift[j]
		}
		l.mean[i] = mean
	}
}

// inverse inverts a prior's covariance, or a precision made of one. Both are positive
// definite.
func inverse(m *mat.SymDense) *mat.SymDense {
	var chol mat.Cholesky
	var out mat.SymDense
	if !chol.Factorize(m) || chol.InverseTo(&out) != nil {
		panic("interference: covariance isn't positive definite")
	}
	return &out
}
