package sim

import (
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// Truth says how the members of one GPU slow each other at an instant.
type Truth interface {
	// Slowdowns writes each member's slowdown (≥ 1) into dst, whose storage it
	// reuses, and returns it. p[i] is member i's solo profile, d[i] what it asks
	// for at this instant.
	Slowdowns(dst []float64, p []*rlcore.Profile, d []contention.Demand) []float64
}

// Law is the contention law as truth.
type Law struct{ *contention.Law }

// Slowdowns implements Truth.
func (l Law) Slowdowns(dst []float64, _ []*rlcore.Profile, d []contention.Demand) []float64 {
	return l.Law.Slowdowns(dst, d)
}

// Pairs is a table of measured slowdowns as truth: [victim, aggressor] →
// slowdown. A pair that isn't in it has never been measured and must be kept
// from meeting (see Lacks); more than one other adds up, which is an assumption.
type Pairs map[[2]string]float64

// Slowdowns implements Truth.
func (t Pairs) Slowdowns(dst []float64, p []*rlcore.Profile, _ []contention.Demand) []float64 {
	dst = dst[:0]
	for i := range p {
		s := 1.0
		for k := range p {
			if k != i {
				s += max(0, t[[2]string{p[i].App, p[k].App}]-1)
			}
		}
		dst = append(dst, s)
	}
	return dst
}

// Lacks reports whether the pair was not measured in both directions.
func (t Pairs) Lacks(a, b string) bool {
	_, ab := t[[2]string{a, b}]
	_, ba := t[[2]string{b, a}]
	return !ab || !ba
}
