package rlcore

import (
	"cmp"
	"math"
	"slices"
)

// Decision is a policy's choice for one GPU.
type Decision struct {
	Window Window
	Combo  Combo // 0 = wait
	Score  float64
	// Combos are the combinations that Check allows, Scores their values in the same order. Both are valid until the
	// Decider's next decision.
	Combos []Combo
	Scores []float64
	// Broken reports that a policy scored a combination with NaN. If there is a fallback, the decision is the
	// fallback's.
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
	d.jobs = NewWindow(d.jobs, s, g, d.Window()).Jobs
	return d.Choose(Window{State: s, GPU: g, Jobs: d.jobs})
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
	g.promise.look(w)
	combos, must := g.candidates(d.combos[:0], w)
	d.combos = combos
	dec := Decision{Window: d.w, Combos: combos, Score: math.Inf(-1)}
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
		d.Policy, d.Fallback = d.Fallback[0], d.Fallback[1:]
		dec = d.Choose(in)
		dec.Broken = true
		return dec
	}
	slices.SortFunc(d.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(d.scores[b], d.scores[a]), combos[a].compare(combos[b]))
	})
	for _, k := range d.order {
		if g.Keeps(w, combos[k]) {
			dec.Combo, dec.Score = combos[k], d.scores[k]
			return dec
		}
	}
	if turn := g.turn(w, must); turn != 0 {
		dec.Combo, dec.Score = turn, 0
	}
	return dec
}

// compare orders combinations of equal score: waiting first, then the jobs of higher priority. The lowest bit in which
// two combinations differ decides.
func (c Combo) compare(b Combo) int {
	switch diff := c ^ b; {
	case diff == 0:
		return 0
	case c == 0 || b != 0 && c&(diff&-diff) != 0:
		return -1
	}
	return 1
}
