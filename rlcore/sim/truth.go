package sim

import (
	"math"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// Truth is how the members of one GPU really slow each other at an instant.
type Truth interface {
	// Slowdowns writes each member's slowdown (≥ 1) into dst, reusing its storage, and returns it.
	// p[i] is member i's solo profile, d[i] its demand at this instant.
	Slowdowns(dst []float64, p []*rlcore.Profile, d []contention.Demand) []float64
}

// Law is the contention law as truth.
type Law struct{ *contention.Law }

// Slowdowns implements Truth.
func (l Law) Slowdowns(dst []float64, _ []*rlcore.Profile, d []contention.Demand) []float64 {
	return l.Law.Slowdowns(dst, d)
}

// Pairs is a table of measured slowdowns as truth: [victim, aggressor] → slowdown. Pairs that are
// missing weren't measured and must not meet (see Lacks).
//
// With several co-runners the excesses over 1 add up. LEARNING.md says how far off that is beside other rules, by
// published measurements of three to five under MPS.
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

// Measured is Pairs with groups of three and more that were measured as well. Groups that weren't
// are composed of their pairs.
type Measured struct {
	Pairs
	groups map[string]float64 // mean slowdowns, of pairs too
	times  map[string]float64 // how often each was measured
}

// NewMeasured returns an empty table.
func NewMeasured() *Measured { return &Measured{Pairs{}, map[string]float64{}, map[string]float64{}} }

// Add enters a slowdown of a victim next to all of the aggressors. The mean counts of what was measured more than once.
func (t *Measured) Add(slowdown float64, victim string, aggressors ...string) {
	key := groupKey(victim, aggressors)
	t.times[key]++
	t.groups[key] += (slowdown - t.groups[key]) / t.times[key]
	if len(aggressors) == 1 {
		t.Pairs[[2]string{victim, aggressors[0]}] = t.groups[key]
	}
}

// groupKey is one text for a victim and its aggressors in any order. Names hold no line ends.
func groupKey(victim string, aggressors []string) string {
	return victim + "\n" + strings.Join(slices.Sorted(slices.Values(aggressors)), "\n")
}

// Slowdowns implements Truth.
func (t *Measured) Slowdowns(dst []float64, p []*rlcore.Profile, d []contention.Demand) []float64 {
	dst = t.Pairs.Slowdowns(dst, p, d)
	if len(p) < 3 || len(t.groups) == len(t.Pairs) {
		return dst
	}
	for i := range p {
		var others []string
		for k := range p {
			if k != i {
				others = append(others, p[k].App)
			}
		}
		if s, ok := t.groups[groupKey(p[i].App, others)]; ok {
			dst[i] = max(1, s)
		}
	}
	return dst
}

// Lacks reports whether the pair was not measured in both directions.
func (t Pairs) Lacks(a, b string) bool {
	_, ab := t[[2]string{a, b}]
	_, ba := t[[2]string{b, a}]
	return !ab || !ba
}

// Bare returns a guard that enforces only the card's own rules (same user, number of members). Policies of the
// literature bring their own notion of what fits, and under this guard they meet its consequences.
func Bare() *rlcore.Guard {
	return rlcore.NewGuard(rlcore.Rules{MemMargin: math.Inf(-1), MaxDelayS: math.MaxFloat64, Bare: true})
}
