package baseline

import (
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

var _ = policy.Register(policy.Spec{
	Name: "sjf", About: "a GPU of its own to each job, the shortest first", Rank: 20,
	Live: true, Contender: true, Alone: true, ShortestFirst: true,
	New: func(policy.Setup) (rlcore.Policy, error) { return SJF{}, nil },
})

// SJF gives each job a GPU of its own, the shortest first. A job of unknown length counts with its time limit, at most
// 1e6 s, and so goes behind nearly all others.
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
