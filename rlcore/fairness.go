package rlcore

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// Combos appends to dst the combinations of the window that may join its GPU now,
// in ascending order; combo 0 (wait) is among them where waiting is allowed. A
// combination that contains a refused one isn't checked: no additional co-runner
// makes a group acceptable.
//
// Fairness: while a job that could start here is overdue (passed over MaxPassOver
// times, or delayed for MaxDelayS), only combinations with it are allowed, and
// waiting isn't. The overdue job of highest priority comes first, and no other
// overdue job may be passed over. Where an overdue job needs the GPU to be empty
// first, no job may join the running ones.
//
// Dues: a combination with which a job would end after its due isn't allowed, see dues.
// Where there are many, those of the highest Index are offered, see keepDues.
// An idle GPU isn't left so then; where no combination keeps all dues, the first job that
// may start gets the GPU alone, as on plain Slurm.
func (g *Guard) Combos(dst []Combo, w *Window) []Combo {
	g.dues.look(g, w)
	must := g.mustStart(w)
	drains := g.drains(w)
	if drains >= 0 && (must < 0 || drains < must) {
		return append(dst, 0)
	}
	due := g.mustNotPass(w, must, drains)
	idle := len(w.Card().Running) == 0 && w.Card().AfterS == 0
	if must < 0 && !(g.dues.on && idle) {
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
		if refused[c] || must >= 0 && !c.Has(must) || inFront(due&^c) < c {
			continue
		}
		g.offer.combos = append(g.offer.combos, c)
	}
	dst = g.keepDues(dst, w)
	if g.dues.on && len(dst) == 0 {
		dst = append(dst, first(refused, must, idle))
	}
	return dst
}

// mostOffered is of how many combinations of several jobs a policy can choose where dues must
// be checked, which takes time.
const mostOffered = 64

// offer holds combinations whose dues are still to be checked.
type offer struct {
	index  Index
	combos []Combo
	worth  []float64
	order  []int
}

// keepDues appends to dst, in ascending order, the combinations in g.offer with which all dues
// are kept: each job alone, and of several jobs the mostOffered of the highest Index.
func (g *Guard) keepDues(dst []Combo, w *Window) []Combo {
	if !g.dues.on {
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
		if !g.dues.keep(g, w, c) {
			g.dues.late = append(g.dues.late, c)
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

// first returns the combination that keeps no due worse than plain Slurm: on an idle GPU the
// job that must start, or else the first that may, alone; elsewhere nobody joins.
func first(refused []bool, must int, idle bool) Combo {
	if must >= 0 && idle {
		return 1 << must
	}
	for c := Combo(1); idle && int(c) < len(refused); c <<= 1 {
		if !refused[c] {
			return c
		}
	}
	return 0
}

// mustNotPass returns the jobs that must not be passed over; must and drains are
// mustStart's and drains' results.
func (g *Guard) mustNotPass(w *Window, must, drains int) Combo {
	due := Combo(0)
	if drains >= 0 {
		due = 1 << drains
	}
	for i := range w.Jobs {
		if must >= 0 && g.overdue(w.Job(i)) && g.Check(w, 1<<i) == Allowed {
			due |= 1 << i
		}
	}
	return due
}

func (c Combo) withoutFirst() Combo { return c & (c - 1) }

func (c Combo) withoutLast() Combo { return c &^ (1 << (bits.Len32(uint32(c)) - 1)) }

// inFront returns the jobs of higher priority than all of c; every job for c = 0.
func inFront(c Combo) Combo { return c&-c - 1 }

// DelayLimitS returns MaxDelayS or its default, s.
func (g *Guard) DelayLimitS() float64 { return cmp.Or(g.MaxDelayS, DefaultMaxDelayS) }

// overdue reports whether a job has waited long enough.
func (g *Guard) overdue(j *Job) bool {
	return j.DelayedS >= g.DelayLimitS() || g.MaxPassOver > 0 && j.PassedOver >= g.MaxPassOver
}

// mustStart returns the window job that must be among the next to start, -1 if
// there is none. A job that can't start on this GPU now, not even by itself, doesn't
// count: the running jobs must end first; see drains.
func (g *Guard) mustStart(w *Window) int {
	for i := range w.Jobs {
		if g.overdue(w.Job(i)) && g.Check(w, 1<<i) == Allowed {
			return i
		}
	}
	return -1
}

// drains returns the window job for which the GPU must become empty, -1 if there
// is none: a job that is overdue, can't start next to the running ones, and may use
// no GPU that will be empty earlier. It would wait for ever if jobs kept joining.
func (g *Guard) drains(w *Window) int {
	if len(w.Card().Running) == 0 {
		return -1
	}
	for i := range w.Jobs {
		j := w.Job(i)
		if g.overdue(j) && g.Check(w, 1<<i) != Allowed && w.State.firstEmpty(j) == w.GPU {
			return i
		}
	}
	return -1
}

// firstEmpty returns the index of the GPU that is expected to be empty first among
// those that the job may use; -1 if that is unknown for all of them.
func (s *State) firstEmpty(j *Job) int {
	first, at := -1, math.Inf(1)
	for k := range s.GPUs {
		if !j.MayUse(k) || !s.GPUs[k].holdsWhenEmpty(j) {
			continue
		}
		if t := s.GPUs[k].EmptyInS(); t < at {
			first, at = k, t
		}
	}
	return first
}

// holdsWhenEmpty reports whether the node would have the cores and memory for the
// job once the GPU's jobs have ended; other jobs on the node keep theirs.
func (g *GPU) holdsWhenEmpty(j *Job) bool {
	cpus, mem := g.FreeCPUs, g.FreeHostMemMiB
	for i := range g.Running {
		if cpus >= 0 {
			cpus += g.Running[i].CPUs
		}
		if mem >= 0 {
			mem += g.Running[i].HostMemMiB
		}
	}
	return (cpus < 0 || j.CPUs <= cpus) && (mem < 0 || j.HostMemMiB <= mem)
}

// Passed appends to dst the window positions of the jobs that combination c passes
// over: of higher priority than c's last job, and able to start here now or waiting
// for this GPU to be empty first, which c delays. Combos allows no job to be passed
// over more than MaxPassOver times.
func (g *Guard) Passed(dst []int, w *Window, c Combo) []int {
	card := w.Card()
	longer := false // c keeps the GPU busy for longer
	for i := range w.Jobs {
		if c.Has(i) && len(card.Running) > 0 && w.Job(i).expectedS() > card.EmptyInS() {
			longer = true
		}
	}
	for i := range bits.Len32(uint32(c)) {
		if !c.Has(i) && (g.Check(w, 1<<i) == Allowed || longer && w.State.firstEmpty(w.Job(i)) == w.GPU) {
			dst = append(dst, i)
		}
	}
	return dst
}
