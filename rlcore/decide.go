package rlcore

import (
	"cmp"
	"math"
)

// Decision is a policy's choice for one GPU.
type Decision struct {
	Window Window
	Combo  Combo // 0 = wait
	Score  float64
	// Combos are the combinations that were allowed, Scores their values in the same
	// order. Both are valid until the Decider's next decision.
	Combos []Combo
	Scores []float64
	// Broken reports that a policy scored a combination with NaN. If there is a
	// fallback, the decision is the fallback's.
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

// Foresighted is a Policy that plays decisions out: it is told before each which guard and
// window they are under.
type Foresighted interface {
	Policy
	Under(g *Guard, m int)
}

// Decider joins a policy and a guard. It reuses its storage between decisions and
// is not safe for concurrent use.
type Decider struct {
	Policy Policy
	// Fallback lists the policies to use, in order, once the current one scores a
	// combination with NaN. A policy that did is dropped for good.
	Fallback []Policy
	Guard    *Guard
	M        int // window size; 0 = DefaultWindow

	w      Window
	jobs   []int
	combos []Combo
	scores []float64
}

// Decide chooses what joins GPU g now, of the first M jobs of the queue that may use it. It begins anew with the State:
// whoever decides about several GPUs of one calls Guard.Begin once, and Choose for each.
func (d *Decider) Decide(s *State, g int) Decision {
	d.Guard.Begin(s)
	d.jobs = NewWindow(d.jobs, s, g, d.Window()).Jobs
	return d.Choose(Window{State: s, GPU: g, Jobs: d.jobs})
}

// Window is M or its default.
func (d *Decider) Window() int { return cmp.Or(d.M, DefaultWindow) }

// Choose chooses what joins the window's GPU now: the allowed combination of the highest
// score; among equals, the one with the jobs of highest priority. A score of −Inf
// means never: the decision then is to wait.
func (d *Decider) Choose(in Window) Decision {
	d.w = in
	w := &d.w
	d.combos = d.Guard.choices(d.combos[:0], w)
	dec := Decision{Window: d.w, Combos: d.combos, Score: math.Inf(-1)}
	if cap(d.scores) < len(d.combos) {
		d.scores = make([]float64, len(d.combos))
	}
	d.scores = d.scores[:len(d.combos)]
	dec.Scores = d.scores
	if len(d.combos) == 0 {
		return dec
	}
	if p, ok := d.Policy.(Foresighted); ok {
		p.Under(d.Guard, d.Window())
	}
	d.Policy.Score(d.scores, w, d.combos)
	dec.choose()
	if dec.Broken && len(d.Fallback) > 0 {
		d.Policy, d.Fallback = d.Fallback[0], d.Fallback[1:]
		dec = d.Choose(in)
		dec.Broken = true
	}
	return dec
}

// choose sets the decision's combination by its scores.
func (d *Decision) choose() {
	found := false
	for i, v := range d.Scores {
		if math.IsNaN(v) {
			d.Broken = true
			continue
		}
		if math.IsInf(v, -1) {
			continue
		}
		if !found || v > d.Score || v == d.Score && d.Combo != 0 && d.Combos[i].before(d.Combo) {
			d.Combo, d.Score, found = d.Combos[i], v, true
		}
	}
}

// before reports whether c has the jobs of higher priority: the lowest bit in which
// the two differ is c's.
func (c Combo) before(b Combo) bool {
	diff := c ^ b
	return diff != 0 && c&(diff&-diff) != 0
}
