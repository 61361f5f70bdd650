package baseline

import (
	"fmt"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

var _ = policy.Register(policy.Spec{
	Name: "pack", About: "greedy, but a job must bring a noticeable gain to be let in", Rank: 75,
	Live: true,
	New: func(s policy.Setup) (rlcore.Policy, error) {
		return NewThroughput("pack", s.Predictor, 0.12), nil
	},
})

var _ = policy.Register(policy.Spec{
	Name: "greedy", About: "the combination with the highest predicted throughput", Rank: 80,
	Live: true, Contender: true,
	New:   func(s policy.Setup) (rlcore.Policy, error) { return NewThroughput("greedy", s.Predictor, 0), nil },
	Knobs: crowds(0, 0.05, 0.12, 0.2),
})

func crowds(values ...float64) []policy.Knob {
	var out []policy.Knob
	for _, crowd := range values {
		out = append(out, policy.Knob{
			Note: fmt.Sprintf("crowd %.2f", crowd),
			New:  func(p rlcore.Predictor) rlcore.Policy { return NewThroughput("greedy", p, crowd) },
		})
	}
	return out
}

// Throughput takes the combination with which the GPU does the most work: the sum over its jobs of
// 1 / predicted slowdown. crowd is what each member beyond the first must add to be let in: with
// it, a combination that hardly gains loses to a better one.
type Throughput struct {
	name  string
	crowd float64
	group Group
}

// NewThroughput returns the policy under a name of its own. crowd ≥ 0 is in seconds of solo work a second, a member.
func NewThroughput(name string, p rlcore.Predictor, crowd float64) *Throughput {
	return &Throughput{name, crowd, Group{Predictor: p}}
}

// Name implements rlcore.Policy.
func (t *Throughput) Name() string { return t.name }

// Score implements rlcore.Policy.
func (t *Throughput) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	for k, c := range combos {
		t.group.Consider(w, c)
		dst[k] = t.group.Rate() - t.crowd*float64(max(0, len(t.group.Members)-1))
	}
}
