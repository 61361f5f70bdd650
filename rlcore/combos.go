package rlcore

import (
	"cmp"
	"math/bits"
	"slices"
)

// Combos calls Begin and appends to dst, in ascending order, the combinations that a decision may take: Check allows
// them, and they keep the promise to all other jobs. Combo 0 (wait) is among them where waiting is allowed. A GPU
// doesn't stay idle while a job has its turn there: if no combination is allowed, that job gets the GPU alone, as on
// plain Slurm. A job that was delayed for MaxDelayS and could start on the idle GPU is in every combination.
func (g *Guard) Combos(dst []Combo, w *Window) []Combo {
	g.Begin(w.State)
	g.promise.look(w)
	from := len(dst)
	dst, must := g.candidates(dst, w)
	kept := slices.DeleteFunc(dst[from:], func(c Combo) bool { return !g.Keeps(w, c) })
	dst = dst[:from+len(kept)]
	if g.promise.on && len(kept) == 0 {
		dst = append(dst, g.turn(w, must))
	}
	return dst
}

// candidates appends to dst the combinations that Check allows, and combo 0 where waiting is allowed. It skips
// combinations that contain a refused one: no additional co-runner makes a group acceptable. must is the window job of
// mustStart, −1 = none.
func (g *Guard) candidates(dst []Combo, w *Window) (_ []Combo, must int) {
	idle := len(w.Card().Running) == 0
	if must = -1; idle {
		must = g.mustStart(w)
	}
	if must < 0 && !(g.promise.on && idle) {
		dst = append(dst, 0)
	}
	all := 1 << len(w.Jobs)
	g.refused = slices.Grow(g.refused[:0], all)[:all]
	clear(g.refused)
	for c := Combo(1); int(c) < all; c++ {
		g.refused[c] = g.refused[c.withoutFirst()] || g.refused[c.withoutLast()] || g.Check(w, c) != Allowed
		if !g.refused[c] && (must < 0 || c.Has(must)) {
			dst = append(dst, c)
		}
	}
	return dst, must
}

// turn returns the job that gets an idle GPU alone if no combination keeps the promise: the job
// that must start, otherwise the first allowed job whose turn it is now. 0 = none.
func (g *Guard) turn(w *Window, must int) Combo {
	switch {
	case !g.promise.on || len(w.Card().Running) > 0:
		return 0
	case must >= 0:
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

// mustStart returns the first window job that was delayed for MaxDelayS and could start alone, −1 = none.
func (g *Guard) mustStart(w *Window) int {
	for i := range w.Jobs {
		if w.Job(i).DelayedS >= g.DelayLimitS() && g.Check(w, 1<<i) == Allowed {
			return i
		}
	}
	return -1
}
