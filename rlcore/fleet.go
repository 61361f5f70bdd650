package rlcore

import "math"

// fleet is when GPUs are free, and which of them is first: of those free at the same time
// the favourite, or else the first in the State.
type fleet struct {
	freeS     []float64 // by GPU, s from now
	favourite int
	given     []int // GPUs that jobs got, in their order
	// first is a tournament: first[i] is the first GPU of those below node i. The
	// children of node i are 2i and 2i+1, its root is node 1, and node len(freeS)+k is GPU k.
	first []int
}

// reset begins with GPUs that are free at the given times.
func (f *fleet) reset(freeS []float64, favourite int) {
	f.freeS = append(f.freeS[:0], freeS...)
	f.favourite, f.given, f.first = favourite, f.given[:0], f.first[:0]
	n := len(freeS)
	for i := range 2 * n {
		f.first = append(f.first, max(0, i-n))
	}
	for i := n - 1; i > 0; i-- {
		f.play(i)
	}
}

// copy makes f the same as src, but that no GPU has been given to a job.
func (f *fleet) copy(src *fleet) {
	f.freeS, f.first = append(f.freeS[:0], src.freeS...), append(f.first[:0], src.first...)
	f.favourite, f.given = src.favourite, f.given[:0]
}

// play sets node i by its children.
func (f *fleet) play(i int) {
	f.first[i] = f.first[2*i]
	if f.before(f.first[2*i+1], f.first[2*i]) {
		f.first[i] = f.first[2*i+1]
	}
}

// before reports whether GPU a comes before b.
func (f *fleet) before(a, b int) bool {
	if x, y := f.freeS[a], f.freeS[b]; x != y {
		return x < y
	}
	return b != f.favourite && (a == f.favourite || a < b)
}

// favour makes another GPU the favourite; −1 = none.
func (f *fleet) favour(k int) {
	was := f.favourite
	f.favourite = k
	for _, k := range [...]int{was, k} {
		if k >= 0 {
			f.set(k, f.freeS[k])
		}
	}
}

// set changes when GPU k is free.
func (f *fleet) set(k int, t float64) {
	f.freeS[k] = t
	for i := (len(f.freeS) + k) / 2; i > 0; i /= 2 {
		f.play(i)
	}
}

// firstFor returns the first GPU that the job may use, −1 if none is ever free for it.
func (f *fleet) firstFor(j *Job) int {
	at, t := -1, math.Inf(1)
	if len(f.freeS) == 0 {
		return at
	}
	if k := f.first[1]; j.GPUs == nil && f.freeS[k] < t {
		return k
	}
	for _, k := range j.GPUs {
		if k < 0 || k >= len(f.freeS) {
			continue
		}
		if x := f.freeS[k]; x < t || x == t && at >= 0 && f.before(k, at) {
			at, t = k, x
		}
	}
	return at
}

// goOn schedules pending jobs plainly, in order of priority, from the one behind the last
// in starts up to the given one; those of c have started. It appends their starts, s
// from now. false: one starts after its latest start, if there are any.
func (f *fleet) goOn(starts []float64, w *Window, to int, c Combo, latest []float64) ([]float64, bool) {
	next := 0 // in the window
	for i := len(starts); i < to; i++ {
		j := &w.State.Pending[i]
		for next < len(w.Jobs) && w.Jobs[next] < i {
			next++
		}
		if next < len(w.Jobs) && w.Jobs[next] == i && c.Has(next) {
			starts = append(starts, 0)
			continue
		}
		at, start := f.firstFor(j), math.Inf(1)
		if at >= 0 {
			start = f.freeS[at]
		}
		if latest != nil && start > latest[i]+rounding {
			return starts, false
		}
		if at >= 0 {
			f.given = append(f.given, at)
			f.set(at, start+j.expectedS())
		}
		starts = append(starts, start)
	}
	return starts, true
}
