package baseline

import (
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

var _ = policy.Register(policy.Spec{
	Name: "srpt", About: "shortest remaining times first, as far as those who share a GPU don't hold each other up",
	Rank: 85,
	Live: true, Contender: true,
	New: func(s policy.Setup) (rlcore.Policy, error) { return NewSRPT(s.Predictor), nil },
})

// SRPT takes the combination with which the sum of all turnarounds shrinks the fastest:
// shortest remaining processing time for GPUs that are shared; see Index.
type SRPT struct{ index Index }

// NewSRPT returns the policy, based on p's predictions.
func NewSRPT(p rlcore.Predictor) *SRPT { return &SRPT{Index{Predictor: p}} }

// Name implements rlcore.Policy.
func (*SRPT) Name() string { return "srpt" }

// Score implements rlcore.Policy.
func (p *SRPT) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	p.index.Score(dst, w, combos)
}
