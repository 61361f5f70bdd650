package rlcore

import (
	"cmp"
	"math"
	"slices"
)

// DefaultGrace and DefaultMaxSlowdown are the contract of a job that says nothing: it may
// end later than on plain Slurm by a tenth of its own solo time, and run 2.5 times as long.
const (
	DefaultGrace       = 0.1
	DefaultMaxSlowdown = 2.5
)

const (
	// reserve is the part of the time until a job's latest start that stays unused, for
	// predictions that turn out wrong. On measured pairs with open arrivals (alnair,
	// miso, gavel) 0.2 to 0.5 do the same.
	reserve = 0.3
	// farthest is how many pending jobs are followed, and moreByGPU how many more for
	// each GPU. Jobs behind them have all that is gained in front of them.
	farthest, moreByGPU = 64, 4
	// rounding is by how much sums of times may be off, s.
	rounding = 1e-6
)

// dues keeps the promise to jobs that have a plain end: to have ended by their due, the
// plain end plus a grace of their own solo time. It is scratch of one decision.
//
// What keeps it is that going on plainly, with nobody joining any more and a whole GPU for
// each pending job in order of priority, would keep it: that is true at first, when plain
// Slurm's schedule and the real one are the same, and a combination is allowed only if
// it stays true. Jobs that come later are kept in mind as well: their plain ends follow from
// when the plain schedule's GPUs are free, so the real ones must not be free later.
// Where predictions were wrong and it isn't true any more, nothing may make it worse.
//
// With exact predictions and no reserve this is an induction, and no job ends after its due.
type dues struct {
	on     bool
	trust  float64
	cards  []outlook
	freeS  []float64 // by GPU: when its jobs are expected to have ended, s from now
	latest []float64 // by pending job: its latest start, s from now
	tailS  []float64 // when the GPUs must be free at the latest, ascending

	members []*Profile
	workS   []float64
	endS    []float64
	startS  []float64
	goes    []float64
	late    []Combo // refused in this decision
}

// outlook is what is expected of a card's running jobs. It is kept as long as they are
// the same.
type outlook struct {
	nowS  float64
	seen  []glimpse
	endS  []float64 // of each, s from now
	freeS float64   // of the last
}

// glimpse is what an outlook depends on of one job.
type glimpse struct {
	p              *Profile
	doneS, elapsed float64
	limitS         float64
}

// dueS returns the time by which the job is to have ended, s on State.NowS's clock; +Inf:
// nothing is promised. Of a job of unknown length the start is promised, without a grace.
func (g *Guard) dueS(j *Job) float64 {
	switch {
	case j.PlainEndS == 0 || g.Bare:
		return math.Inf(1)
	case j.Profile == nil:
		return j.PlainEndS
	}
	return j.PlainEndS + cmp.Or(g.Grace, DefaultGrace)*j.Profile.DurationS
}

// look prepares the checks of a decision.
func (d *dues) look(g *Guard, w *Window) {
	s := w.State
	d.late = d.late[:0]
	d.on = !g.Bare && slices.ContainsFunc(w.Jobs, func(at int) bool { return s.Pending[at].PlainEndS > 0 })
	if !d.on {
		return
	}
	d.foresee(g, s)
	d.startS, _ = d.goOn(d.startS, w, d.freeS[w.GPU], 0, nil)
	d.latest = d.latest[:0]
	for i, start := range d.startS {
		j := &s.Pending[i]
		due := g.dueS(j) - s.NowS - j.expectedS()
		if math.IsNaN(due) { // it may take for ever
			due = math.Inf(1)
		}
		d.latest = append(d.latest, max(start, due/(1+reserve)))
	}
	d.tailS = d.tailS[:0]
	if len(d.startS) < len(s.Pending) || len(s.PlainFreeS) != len(s.GPUs) {
		return // not all were followed
	}
	d.tailS = append(d.tailS, d.goes...)
	slices.Sort(d.tailS)
	for k, t := range s.PlainFreeS {
		d.tailS[k] = max(d.tailS[k], (t-s.NowS)/(1+reserve))
	}
}

// Late reports whether the last call of Combos refused c because a job would end after its
// due.
func (g *Guard) Late(c Combo) bool { return slices.Contains(g.dues.late, c) }

// foresee finds out when the GPUs will be free.
func (d *dues) foresee(g *Guard, s *State) {
	d.trust = cmp.Or(g.Trust, defaultTrust)
	d.freeS = d.freeS[:0]
	d.cards = slices.Grow(d.cards, max(0, len(s.GPUs)-len(d.cards)))[:max(len(d.cards), len(s.GPUs))]
	for k := range s.GPUs {
		d.freeS = append(d.freeS, d.expect(g, k, s).freeS)
	}
}

// Expect writes into dst, whose storage it reuses, when each job of the window is expected
// to have ended, s on State.NowS's clock, if c joins now and nobody after it: those of c on
// the window's GPU, the others each with a whole one. +Inf = nothing is known.
func (g *Guard) Expect(dst []float64, w *Window, c Combo) []float64 {
	d, s := &g.dues, w.State
	d.foresee(g, s)
	var freeS float64
	d.endS, freeS = d.end(g, d.endS, w.Card(), w, c)
	d.startS, _ = d.goOn(d.startS, w, freeS, c, nil)
	together := len(d.endS) // those of c are the last of it
	for i := range w.Jobs {
		if c.Has(i) && w.Job(i).Profile != nil {
			together--
		}
	}
	dst = dst[:0]
	for i, at := range w.Jobs {
		in := math.Inf(1)
		switch j := w.Job(i); {
		case c.Has(i) && j.Profile != nil:
			in = d.endS[together]
			together++
		case c.Has(i):
			in = j.expectedS()
		case at < len(d.startS):
			in = d.startS[at] + j.expectedS()
		}
		dst = append(dst, s.NowS+in)
	}
	return dst
}

// expect returns what is expected of GPU k's running jobs.
func (d *dues) expect(g *Guard, k int, s *State) *outlook {
	o, card := &d.cards[k], &s.GPUs[k]
	same := o.nowS == s.NowS && len(o.seen) == len(card.Running) && len(o.seen) > 0
	for i := 0; same && i < len(o.seen); i++ {
		same = o.seen[i] == glance(&card.Running[i])
	}
	if same {
		return o
	}
	o.nowS, o.seen = s.NowS, o.seen[:0]
	for i := range card.Running {
		o.seen = append(o.seen, glance(&card.Running[i]))
	}
	o.endS, o.freeS = d.end(g, o.endS, card, nil, 0)
	return o
}

func glance(r *Running) glimpse {
	return glimpse{r.Profile, r.DoneS, r.ElapsedS, r.LimitS}
}

// end writes into dst when the card's jobs, and those of c after them, are expected to
// have ended, s from now, and returns when the last one has. A job of unknown length takes
// its limit.
func (d *dues) end(g *Guard, dst []float64, card *GPU, w *Window, c Combo) (_ []float64, freeS float64) {
	d.members, d.workS = d.members[:0], d.workS[:0]
	add := func(j *Job, doneS, elapsedS float64) {
		if j.Profile == nil {
			freeS = max(freeS, j.expectedS()-elapsedS)
			return
		}
		d.members, d.workS = append(d.members, j.Profile), append(d.workS, j.Profile.DurationS-doneS)
	}
	for i := range card.Running {
		r := &card.Running[i]
		add(&r.Job, r.DoneS, r.ElapsedS)
	}
	if w != nil {
		for i := range w.Jobs {
			if c.Has(i) {
				add(w.Job(i), 0, 0)
			}
		}
	}
	dst = g.ends(dst, &card.Spec, d.members, d.workS, d.trust)
	for _, t := range dst {
		freeS = max(freeS, t)
	}
	return dst, freeS
}

// goOn schedules the pending jobs plainly, in order of priority, where those of c have
// started and the window's GPU is free in freeS seconds. It writes their starts into
// dst, s from now; false: one starts after its latest start.
func (d *dues) goOn(dst []float64, w *Window, freeS float64, c Combo, latest []float64) ([]float64, bool) {
	s := w.State
	d.goes = append(d.goes[:0], d.freeS...)
	d.goes[w.GPU] = freeS
	dst = dst[:0]
	next := 0 // in the window
	for i := range min(len(s.Pending), farthest+moreByGPU*len(s.GPUs)) {
		joins := false
		if next < len(w.Jobs) && w.Jobs[next] == i {
			joins = c.Has(next)
			next++
		}
		if joins {
			dst = append(dst, 0)
			continue
		}
		j := &s.Pending[i]
		at, start := -1, math.Inf(1)
		for k, t := range d.goes {
			if (t < start || t == start && k == w.GPU) && j.MayUse(k) {
				at, start = k, t
			}
		}
		if latest != nil && start > latest[i]+rounding {
			return dst, false
		}
		if at >= 0 {
			d.goes[at] = start + j.expectedS()
		}
		dst = append(dst, start)
	}
	return dst, true
}

// keep reports whether every due is kept, as far as it can still be, if c joins now.
func (d *dues) keep(g *Guard, w *Window, c Combo) bool {
	if !d.on {
		return true
	}
	s, card := w.State, w.Card()
	var freeS float64
	d.endS, freeS = d.end(g, d.endS, card, w, c)
	before := d.cards[w.GPU].endS
	k := 0
	for i := range card.Running {
		r := &card.Running[i]
		if r.Profile == nil {
			continue
		}
		if d.endS[k] > max(before[k], g.dueS(&r.Job)-s.NowS)+rounding {
			return false
		}
		k++
	}
	for i, at := range w.Jobs {
		j := w.Job(i)
		if !c.Has(i) || j.Profile == nil {
			continue
		}
		plainly := math.Inf(1) // not followed: nothing is known of its turn
		if at < len(d.startS) {
			plainly = d.startS[at] + j.Profile.DurationS
		}
		if d.endS[k] > max(plainly, g.dueS(j)-s.NowS)+rounding {
			return false
		}
		k++
	}
	var inTime bool
	if d.workS, inTime = d.goOn(d.workS, w, freeS, c, d.latest); !inTime {
		return false
	}
	if len(d.tailS) == 0 {
		return true
	}
	slices.Sort(d.goes)
	for i, t := range d.goes {
		if t > d.tailS[i]+rounding {
			return false
		}
	}
	return true
}
