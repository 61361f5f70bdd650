// Package baseline holds the policies that don't learn, a file each.
package baseline

import (
	"math"
	"math/bits"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

var _ = policy.Register(policy.Spec{
	Name: "exclusive", About: "a GPU of its own to each job, highest priority first", Rank: 5,
	Live: true, Alone: true,
	New: func(policy.Setup) (rlcore.Policy, error) { return Exclusive{}, nil },
})

// In experiments, where no job has a priority, it is called by what it then does.
var _ = policy.Register(policy.Spec{
	Name: "fifo", About: "a GPU of its own to each job, in the order of arrival", Rank: 10,
	Contender: true, Alone: true,
	New: func(policy.Setup) (rlcore.Policy, error) { return Exclusive{}, nil },
})

// Exclusive gives each job a GPU of its own, highest priority first.
type Exclusive struct{}

// Name implements rlcore.Policy.
func (Exclusive) Name() string { return "exclusive" }

// Score implements rlcore.Policy.
func (Exclusive) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	alone(dst, w, combos, func(i int) float64 { return -float64(i) })
}

// alone scores combinations of one job on an idle GPU by rank and refuses larger ones.
func alone(dst []float64, w *rlcore.Window, combos []rlcore.Combo, rank func(i int) float64) {
	idle := len(w.Card().Running) == 0
	for k, c := range combos {
		switch {
		case c == 0:
			dst[k] = -1e18 // better than what may not be, worse than any job
		case c.Len() > 1 || !idle:
			dst[k] = math.Inf(-1)
		default:
			dst[k] = rank(bits.TrailingZeros32(uint32(c)))
		}
	}
}
