package rlcore

import (
	"math"
	"slices"
)

// apart is how two plain schedules of the same jobs differ, trial and base: when GPUs are free in one and not in
// the other, s from now. For jobs that may use the same GPUs it makes no difference which of them is free when, and
// as long as both give a job a GPU that is free at the same time nothing changes. So what differs is followed, in a
// few steps, instead of a schedule of thousands of jobs.
type apart struct {
	trial, base []float64 // ascending, no time in both; as many of one as of the other
}

// mostApart is how many times may differ, and mostAhead how many jobs are looked at to find the next GPU that is
// free in both. Beyond them the whole schedule costs less.
const mostApart, mostAhead = 48, 512

// set begins with all times of trial and of base.
func (x *apart) set(trial, base []float64) {
	x.trial, x.base = append(x.trial[:0], trial...), append(x.base[:0], base...)
	slices.Sort(x.trial)
	slices.Sort(x.base)
	x.reduce()
}

// reduce removes the times that are in both.
func (x *apart) reduce() {
	a, b := 0, 0
	i, k := 0, 0
	for i < len(x.trial) && k < len(x.base) {
		switch s, t := x.trial[i], x.base[k]; {
		case s == t:
			i++
			k++
		case s < t:
			x.trial[a] = s
			a++
			i++
		default:
			x.base[b] = t
			b++
			k++
		}
	}
	x.trial = append(x.trial[:a], x.trial[i:]...)
	x.base = append(x.base[:b], x.base[k:]...)
}

// noLater reports whether the GPUs are free no later in trial than in base, the first of one compared with the
// first of the other and so on.
func (x *apart) noLater() bool { return noneLater(x.trial, x.base) }

// goOn follows the jobs behind the near ones: keep reports whether each starts in time in trial, and the GPUs are
// free in time for those that come later. known is false if too much differs.
func (x *apart) goOn(g *Guard, d *dues, w *Window) (keep, known bool) {
	for i := d.near; i < d.followed; i++ {
		if !d.theirs[i] {
			continue
		}
		d.lookFar(g, w, i+1)
		j := &w.State.Pending[i]
		// The first GPU that is free in base, in trial alone, and in both.
		first, own, both := d.startS[i], math.Inf(1), d.startS[i]
		if len(x.trial) > 0 {
			own = x.trial[0]
		}
		inBase := len(x.base) > 0 && x.base[0] == first && !math.IsInf(first, 1)
		if !inBase && first <= own {
			continue
		}
		if inBase {
			if both, known = x.bothFree(g, d, w, i); !known {
				return false, false
			}
		}
		start := min(own, both)
		if start > d.latest[i]+rounding {
			return false, true
		}
		takes := j.expectedS()
		// Base gives away its GPU, and trial its own.
		switch {
		case math.IsInf(first, 1):
		case inBase:
			x.base[0] = first + takes
		default:
			x.base, x.trial = append(x.base, first+takes), append(x.trial, first)
		}
		switch {
		case math.IsInf(start, 1):
		case own <= both:
			x.trial[0] = own + takes
		default:
			x.trial, x.base = append(x.trial, both+takes), append(x.base, both)
		}
		slices.Sort(x.trial)
		slices.Sort(x.base)
		x.reduce()
		if x.noLater() {
			return true, true
		}
		if len(x.trial) > mostApart {
			return false, false
		}
	}
	tail := d.tail(g, w)
	return len(tail) == 0 || noneLater(x.all(d), tail), true
}

// bothFree returns when the first GPU is free that is free then in base and in trial, as job i is to start. GPUs are
// given away in the order in which they are free, so it is the next one that base gives away, and that no job
// behind i has had before.
func (x *apart) bothFree(g *Guard, d *dues, w *Window, i int) (s float64, known bool) {
	skip := 0
	for k := i; k < min(d.followed, i+mostAhead); k++ {
		if !d.theirs[k] {
			continue
		}
		if d.lookFar(g, w, k+1); d.before[k] >= i {
			continue
		}
		switch t := d.startS[k]; {
		case math.IsInf(t, 1):
			return 0, false
		case skip < len(x.base) && x.base[skip] == t:
			skip++
		default:
			return t, true
		}
	}
	return 0, false
}

// all returns when the GPUs are free in trial in the end, ascending.
func (x *apart) all(d *dues) []float64 {
	d.a = append(d.a[:0], d.far.freeS...)
	slices.Sort(d.a)
	k := 0
	d.b = append(d.b[:0], x.trial...)
	for _, t := range d.a {
		if k < len(x.base) && x.base[k] == t {
			k++
			continue
		}
		d.b = append(d.b, t)
	}
	slices.Sort(d.b)
	return d.b
}
