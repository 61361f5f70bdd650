package rlcore

import "math"

// Decision is a policy's choice for one GPU, with what it chose from.
type Decision struct {
	Window Window
	Combo  Combo // 0 = wait
	Score  float64
	// Combos are the combinations that were allowed, Scores their values, in
	// the same order. They are valid until the Decider's next decision.
	Combos []Combo
	Scores []float64
	// Broken says that a policy valued a combination with NaN. If there is another to
	// fall back on, the decision is that one's.
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

// Decider joins a policy and a guard. It reuses its storage between decisions
// and is not safe for concurrent use.
type Decider struct {
	Policy Policy
	// Fallback are the policies that take over, one after the other, from one that
	// values something with NaN. It is dropped for good.
	Fallback []Policy
	Guard    *Guard
	M        int // window size; 0 = 5

	w      Window
	jobs   []int
	combos []Combo
	scores []float64
}

// Decide chooses what joins GPU g now: the allowed combination the policy
// values most, of equals the one with the jobs of highest priority. What it values
// at −Inf it doesn't want, and nothing then joins.
func (d *Decider) Decide(s *State, g int) Decision {
	d.w = NewWindow(d.jobs, s, g, orDefaultInt(d.M, 5))
	w := &d.w
	d.jobs = w.Jobs
	d.combos = d.Guard.Combos(d.combos[:0], w)
	dec := Decision{Window: d.w, Combos: d.combos, Score: math.Inf(-1)}
	if cap(d.scores) < len(d.combos) {
		d.scores = make([]float64, len(d.combos))
	}
	d.scores = d.scores[:len(d.combos)]
	dec.Scores = d.scores
	if len(d.combos) == 0 {
		return dec
	}
	d.Policy.Score(d.scores, w, d.combos)
	found := false
	for i, v := range d.scores {
		if math.IsNaN(v) {
			dec.Broken = true
			continue
		}
		if math.IsInf(v, -1) {
			continue // not at any price: waiting it is, if there is nothing else
		}
		if !found || v > dec.Score || v == dec.Score && dec.Combo != 0 && earlier(d.combos[i], dec.Combo) {
			dec.Combo, dec.Score, found = d.combos[i], v, true
		}
	}
	if dec.Broken && len(d.Fallback) > 0 {
		d.Policy, d.Fallback = d.Fallback[0], d.Fallback[1:]
		dec = d.Decide(s, g)
		dec.Broken = true
	}
	return dec
}

// earlier reports whether a has the jobs of higher priority: the lowest bit in
// which the two differ is a's.
func earlier(a, b Combo) bool {
	diff := a ^ b
	return diff != 0 && a&(diff&-diff) != 0
}
