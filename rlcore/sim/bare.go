package sim

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Bare returns a guard that holds a policy to what the card itself demands (who
// may share, how many) and to nothing that keeps jobs from harm: the policies of
// the literature bring their own idea of what fits, and here they meet its
// consequences.
func Bare() *rlcore.Guard {
	return &rlcore.Guard{MemMargin: math.Inf(-1), MaxPassOver: math.MaxInt, MaxDelayS: math.MaxFloat64}
}
