package rlcore

import (
	"cmp"
	"math/bits"
	"slices"
)

// Combos begins with the window's State and appends to dst its choices.
func (g *Guard) Combos(dst []Combo, w *Window) []Combo {
	g.Begin(w.State)
	return g.choices(dst, w)
}

// choices appends to dst the combinations of the window that may join its GPU now,
// in ascending order; combo 0 (wait) is among them where waiting is allowed. A
// combination that contains a refused one isn't checked: no additional co-runner
// makes a group acceptable.
//
// A combination that breaks the promise to a job isn't allowed, see promise. Where there are many, those of the
// highest Index are offered, see keepPromise. An idle GPU isn't left idle while a job has its turn there: where
// nothing else is allowed, that job gets the GPU alone, as on plain Slurm. A job that was delayed for MaxDelayS and
// could start on the idle GPU is in every combination.
func (g *Guard) choices(dst []Combo, w *Window) []Combo {
	p := &g.promise
	p.look(w)
	idle := len(w.Card().Running) == 0
	must := -1
	if idle {
		must = g.mustStart(w)
	}
	if must < 0 && !(p.on && idle) {
		dst = append(dst, 0)
	}
	g.offer.combos = g.offer.combos[:0]
	all := 1 << len(w.Jobs)
	if cap(g.refused) < all {
		g.refused = make([]bool, all)
	}
	refused := g.refused[:all]
	clear(refused)
	for c := Combo(1); int(c) < all; c++ {
		refused[c] = refused[c.withoutFirst()] || refused[c.withoutLast()] || g.Check(w, c) != Allowed
		if !refused[c] && (must < 0 || c.Has(must)) {
			g.offer.combos = append(g.offer.combos, c)
		}
	}
	dst = g.keepPromise(dst, w)
	if p.on && len(dst) == 0 {
		dst = append(dst, g.turn(w, must))
	}
	return dst
}

// mostOffered is of how many combinations of several jobs a policy can choose where the promise must
// be checked, which takes time.
const mostOffered = 64

// offer holds combinations for which the promise is still to be checked.
type offer struct {
	index  Index
	combos []Combo
	worth  []float64
	order  []int
}

// keepPromise appends to dst, in ascending order, the combinations in g.offer with which the promise
// is kept: each job alone, and of several jobs the mostOffered of the highest Index.
func (g *Guard) keepPromise(dst []Combo, w *Window) []Combo {
	if !g.promise.on {
		return append(dst, g.offer.combos...)
	}
	of := &g.offer
	of.order = of.order[:0]
	for k := range of.combos {
		of.order = append(of.order, k)
	}
	if len(of.combos) > mostOffered && g.Predictor != nil {
		of.index.Predictor = g.Predictor
		of.worth = slices.Grow(of.worth[:0], len(of.combos))[:len(of.combos)]
		of.index.Score(of.worth, w, of.combos)
		slices.SortFunc(of.order, func(a, b int) int {
			return cmp.Or(-cmp.Compare(of.worth[a], of.worth[b]), cmp.Compare(a, b))
		})
	}
	from, several := len(dst), 0
	for _, k := range of.order {
		c := of.combos[k]
		if c.Len() > 1 && several == mostOffered {
			continue
		}
		if !g.promise.keep(g, w, c) {
			g.promise.late = append(g.promise.late, c)
			continue
		}
		dst = append(dst, c)
		if c.Len() > 1 {
			several++
		}
	}
	slices.Sort(dst[from:])
	return dst
}

// turn returns the job that has the GPU to itself where no combination keeps the promise: on an idle GPU the one
// that must start, or else the first that may and whose turn it is now. 0 = no job joins.
func (g *Guard) turn(w *Window, must int) Combo {
	if len(w.Card().Running) > 0 {
		return 0
	}
	if must >= 0 {
		return 1 << must
	}
	for i, at := range w.Jobs {
		if g.promise.near.starts[at] <= rounding && g.Check(w, 1<<i) == Allowed {
			return 1 << i
		}
	}
	return 0
}

func (c Combo) withoutFirst() Combo { return c & (c - 1) }

func (c Combo) withoutLast() Combo { return c &^ (1 << (bits.Len32(uint32(c)) - 1)) }

// DelayLimitS returns MaxDelayS or its default, s.
func (g *Guard) DelayLimitS() float64 { return cmp.Or(g.MaxDelayS, DefaultMaxDelayS) }

// mustStart returns the first window job that was delayed for long enough and could start alone, −1 if
// there is none.
func (g *Guard) mustStart(w *Window) int {
	for i := range w.Jobs {
		if w.Job(i).DelayedS >= g.DelayLimitS() && g.Check(w, 1<<i) == Allowed {
			return i
		}
	}
	return -1
}
