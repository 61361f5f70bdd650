// Package baseline holds the policies that don't learn.
package baseline

import (
	"fmt"
	"math"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Names lists the policies.
func Names() []string { return []string{"exclusive", "sjf", "tetris", "random", "pack", "greedy"} }

// ByName returns a policy. p foretells slowdowns; exclusive and sjf need none.
func ByName(name string, p rlcore.Predictor) (rlcore.Policy, error) {
	switch name {
	case "exclusive":
		return Exclusive{}, nil
	case "sjf":
		return SJF{}, nil
	case "tetris":
		return &Tetris{Short: 0.5}, nil
	case "random":
		return Random{Seed: 1}, nil
	case "pack":
		return &Throughput{name: name, predictor: p, crowd: 0.12}, nil
	case "greedy":
		return &Throughput{name: name, predictor: p}, nil
	}
	return nil, fmt.Errorf("there is no policy %q; there are %s", name, strings.Join(Names(), ", "))
}

// alone scores combinations of one job on an idle GPU by rank and refuses all
// others.
func alone(dst []float64, w *rlcore.Window, combos []rlcore.Combo, rank func(i int) float64) {
	idle := len(w.Card().Running) == 0
	for k, c := range combos {
		switch {
		case c == 0:
			dst[k] = -1e18 // better than what may not be, worse than any job
		case c.Len() > 1 || !idle:
			dst[k] = math.Inf(-1)
		default:
			dst[k] = rank(firstBit(c))
		}
	}
}

func firstBit(c rlcore.Combo) int {
	i := 0
	for !c.Has(i) {
		i++
	}
	return i
}

// Exclusive gives each job a GPU of its own, highest priority first.
type Exclusive struct{}

// Name implements rlcore.Policy.
func (Exclusive) Name() string { return "exclusive" }

// Score implements rlcore.Policy.
func (Exclusive) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	alone(dst, w, combos, func(i int) float64 { return -float64(i) })
}

// SJF gives each job a GPU of its own, the shortest first; one of unknown length
// counts with its time limit.
type SJF struct{}

// Name implements rlcore.Policy.
func (SJF) Name() string { return "sjf" }

// Score implements rlcore.Policy.
func (SJF) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	alone(dst, w, combos, func(i int) float64 {
		j := w.Job(i)
		if j.Profile != nil {
			return -j.Profile.DurationS
		}
		return -max(j.LimitS, 1e6)
	})
}

// Throughput takes the combination with which the GPU does the most work: the sum
// over everybody on it of 1 / predicted slowdown. crowd is what each member beyond
// the first must bring to be let in: with it, a combination that hardly gains is
// left for a better one.
type Throughput struct {
	name      string
	predictor rlcore.Predictor
	crowd     float64

	members []*rlcore.Profile
	pred    []rlcore.Prediction
}

// NewThroughput returns the policy under a name of its own. crowd ≥ 0 is in
// seconds of solo work a second, a member.
func NewThroughput(name string, p rlcore.Predictor, crowd float64) *Throughput {
	return &Throughput{name: name, predictor: p, crowd: crowd}
}

// Name implements rlcore.Policy.
func (t *Throughput) Name() string { return t.name }

// Score implements rlcore.Policy.
func (t *Throughput) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	for k, c := range combos {
		dst[k] = t.value(w, c)
	}
}

func (t *Throughput) value(w *rlcore.Window, c rlcore.Combo) float64 {
	card := w.Card()
	t.members = t.members[:0]
	add := func(p *rlcore.Profile) bool {
		t.members = append(t.members, p)
		return p != nil
	}
	known := true
	for i := range card.Running {
		known = add(card.Running[i].Profile) && known
	}
	for i := range w.Jobs {
		if c.Has(i) {
			known = add(w.Job(i).Profile) && known
		}
	}
	n := len(t.members)
	if n == 0 {
		return 0
	}
	if !known || n == 1 {
		// Alone: one unit of work a second, and nobody else could be let in.
		return 1
	}
	if cap(t.pred) < n {
		t.pred = make([]rlcore.Prediction, n)
	}
	t.pred = t.pred[:n]
	t.predictor.Predict(t.pred, &card.Spec, t.members)
	sum := 0.0
	for i := range t.pred {
		sum += 1 / t.pred[i].Slowdown
	}
	return sum - t.crowd*float64(n-1)
}
