package rlcore

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// Decision is a policy's choice for one GPU.
type Decision struct {
	Window Window
	Combo  Combo // 0 = wait
	Score  float64
	// Combos are the combinations that Check allows, Scores their values in the same order. Vetoes says, by combination,
	// why Check vetoed it, or a part of it; VetoDue, VetoLength and VetoTurn are the reasons of combinations that scored
	// higher than the choice and break the promise. All three are valid until the Decider's next decision.
	Combos []Combo
	Scores []float64
	Vetoes []Veto
	// Turn: no combination keeps the promise, and the job that has its turn gets the idle GPU alone.
	Turn bool
	// Broken reports that a policy scored a combination with NaN. If there is a fallback, the decision is the fallback's.
	Broken bool
}

// Jobs returns the chosen jobs' indexes in State.Pending.
func (d *Decision) Jobs() []int {
	var out []int
	for i, j := range d.Window.Jobs {
		if d.Combo.Has(i) {
			out = append(out, j)
		}
	}
	return out
}

// SoleVeto returns the job that a decision for nothing has kept waiting: the first of the window's that would have
// joined the GPU, next to what runs there, but for one reason of the guard's, and that reason. A job that the promise
// refuses as well doesn't wait for what it was refused for on its own merits. Allowed: there is none, or the GPU has no
// room. It is to be called before the next decision.
func (d *Decision) SoleVeto() (i int, why Veto) {
	if d.Combo != 0 || len(d.Vetoes) == 0 {
		return 0, Allowed
	}
	for i := range d.Window.Jobs {
		switch why := d.Vetoes[1<<i]; {
		case why.NoRoom():
			return 0, Allowed
		case why.ofPromise() || why != Allowed && d.Window.guard.Keeps(&d.Window, 1<<i):
			return i, why
		}
	}
	return 0, Allowed
}

// Foresighted is a Policy that simulates decisions: before each one it gets the guard and the window size.
type Foresighted interface {
	Policy
	Under(g *Guard, m int)
}

// Decider joins a policy and a guard. It reuses its storage between decisions and is not safe for concurrent use.
type Decider struct {
	Policy Policy
	// Fallback lists the policies that replace, in order, one that scores a combination with NaN.
	Fallback []Policy
	Guard    *Guard
	M        int // window size; 0 = DefaultWindow

	w      Window
	jobs   []int
	combos []Combo
	scores []float64
	order  []int
}

// Decide calls Begin and chooses what joins GPU g now, of the first M jobs of the queue that may use it. For several
// GPUs of one State, call Guard.Begin once and Choose for each.
func (d *Decider) Decide(s *State, g int) Decision {
	d.Guard.Begin(s)
	return d.Again(s, g)
}

// Again is Decide for a State that hasn't changed since the Decider's last Decide, of any of its GPUs: what Begin found
// then still holds.
func (d *Decider) Again(s *State, g int) Decision {
	w := NewWindow(d.jobs, s, g, d.Window())
	d.jobs = w.Jobs
	return d.Choose(w)
}

// Window is M or its default.
func (d *Decider) Window() int { return cmp.Or(d.M, DefaultWindow) }

// Choose chooses what joins the window's GPU now: of the combinations that Guard.Combos would return, the one with the
// highest score; among equals, the one with the jobs of highest priority. A score of −Inf means never. Combinations are
// checked against the promise in the order of their scores, since that takes time; see Window.Keeps.
func (d *Decider) Choose(in Window) Decision {
	d.w = in
	w, g := &d.w, d.Guard
	w.guard = g
	g.promise.open(w)
	combos, must := g.candidates(d.combos[:0], w)
	d.combos = combos
	dec := Decision{Window: d.w, Combos: combos, Vetoes: g.vetoes, Score: math.Inf(-1)}
	if len(combos) == 0 {
		return dec
	}
	d.scores = slices.Grow(d.scores[:0], len(combos))[:len(combos)]
	dec.Scores = d.scores
	if p, ok := d.Policy.(Foresighted); ok {
		p.Under(g, d.Window())
	}
	d.Policy.Score(d.scores, w, combos)
	d.order = d.order[:0]
	for k, v := range d.scores {
		dec.Broken = dec.Broken || math.IsNaN(v)
		if v > math.Inf(-1) {
			d.order = append(d.order, k)
		}
	}
	if dec.Broken && len(d.Fallback) > 0 {
		d.Policy = d.Fallback[0]
		d.Fallback = d.Fallback[1:]
		dec = d.Choose(in)
		dec.Broken = true
		return dec
	}
	slices.SortFunc(d.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(d.scores[b], d.scores[a]), combos[a].compare(combos[b]))
	})
	for _, k := range d.order {
		if g.Keeps(w, combos[k]) {
			dec.Combo = combos[k]
			dec.Score = d.scores[k]
			return dec
		}
		g.vetoes[combos[k]] = g.promise.broken
	}
	if turn := g.turn(w, must); turn != 0 {
		dec.Combo = turn
		dec.Score = 0
		dec.Turn = true
	}
	return dec
}

// Combos calls Begin and appends to dst, in ascending order, the combinations that a decision may take: Check allows
// them, and they keep the promise to all other jobs. Combo 0 (wait) is among them where waiting is allowed. A GPU
// doesn't stay idle while a job has its turn there: if no combination is allowed, that job gets the GPU alone, as on
// plain Slurm. A job that was delayed for MaxDelayS and could start on the idle GPU is in every combination.
func (g *Guard) Combos(dst []Combo, w *Window) []Combo {
	g.Begin(w.State)
	g.promise.open(w)
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
	must = -1
	if idle {
		must = g.mustStart(w)
	}
	if must < 0 && !(g.promise.on && idle) {
		dst = append(dst, 0)
	}
	g.vetoes = resize(g.vetoes, 1<<len(w.Jobs))
	for c := Combo(1); int(c) < len(g.vetoes); c++ {
		why := g.vetoes[c&(c-1)] // without its first job
		if why == Allowed {
			why = g.vetoes[c&^(1<<(bits.Len32(uint32(c))-1))] // without its last one
		}
		if why == Allowed {
			why = g.Check(w, c)
		}
		g.vetoes[c] = why
		if why == Allowed && (must < 0 || c.Has(must)) {
			dst = append(dst, c)
		}
	}
	return dst, must
}

// turn returns the job that gets an idle GPU alone if no combination keeps the promise: the job that must start, else
// the first allowed job that has its turn now on this GPU, or on one like it. 0 = none.
func (g *Guard) turn(w *Window, must int) Combo {
	switch {
	case !g.promise.on || len(w.Card().Running) > 0:
		return 0
	case must >= 0:
		return 1 << must
	}
	for i, at := range w.Jobs {
		if g.promise.hasTurn(at, w.GPU) && g.Check(w, 1<<i) == Allowed {
			return 1 << i
		}
	}
	return 0
}

// mustStart returns the first window job that was delayed for MaxDelayS and could start alone, −1 = none.
func (g *Guard) mustStart(w *Window) int {
	for i := range w.Jobs {
		if w.Job(i).DelayedS >= g.DelayLimitS() && g.Check(w, 1<<i) == Allowed {
			return i
		}
	}
	return -1
}

// compare orders combinations of equal score: waiting first, then the jobs of higher priority. The lowest bit in which
// two combinations differ decides.
func (c Combo) compare(b Combo) int {
	if c == 0 || b == 0 {
		return cmp.Compare(c, b)
	}
	return cmp.Compare(bits.Reverse32(uint32(b)), bits.Reverse32(uint32(c)))
}
