package dqn

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/lookahead"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Policy scores combinations by a trained network.
type Policy struct {
	name, model string
	net         *Scorer
	plays       *lookahead.Policy // nil = the network's scores are final
	obs         [1]*Obs
	values      []float64
}

// doubt is by how much a combination's value may be below the best one's for it to be played out, in the values' unit.
// It was chosen on job sets of other sites than the policy is judged on; see LEARNING.md.
const doubt = 0.1

// NewPolicy returns a policy of the given name, which decides by the network alone.
func NewPolicy(name string, net *Scorer) *Policy { return &Policy{name: name, net: net} }

// Searching returns a policy of the given name that observes with p. For the turnaround the network says which few
// combinations are worth playing out, as lookahead does, and decides alone where it has no doubt.
func Searching(name string, net *Scorer, p rlcore.Predictor) *Policy {
	own := NewPolicy(name, net.Alias(p))
	if net.Objective() != policy.Turnaround {
		return own
	}
	return &Policy{name: name, plays: lookahead.Guided(own, doubt, p)}
}

// Name implements rlcore.Policy.
func (p *Policy) Name() string { return p.name }

// By names the network, for users.
func (p *Policy) By(model string) *Policy { p.model = model; return p }

// Model returns the name given by By; "" = none.
func (p *Policy) Model() string { return p.model }

// Under implements rlcore.Foresighted.
func (p *Policy) Under(g *rlcore.Guard, m int) {
	if p.plays != nil {
		p.plays.Under(g, m)
	}
}

// Score implements rlcore.Policy. A combination that the network doesn't describe, because too many
// have a higher index, gets −Inf; so does leaving a GPU idle.
func (p *Policy) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	if p.plays != nil {
		p.plays.Score(dst, w, combos)
		return
	}
	o := p.net.Observe(w, choices(w, combos), false)
	p.obs[0] = o
	p.values = p.net.Values(p.values, p.obs[:])
	k := 0
	for i, c := range combos {
		dst[i] = math.Inf(-1)
		if k < len(o.Combos) && o.Combos[k] == c {
			dst[i] = p.values[k]
			k++
		}
	}
}

// choices returns the combinations that the network scores: all but to leave a GPU idle while a job could have it.
func choices(w *rlcore.Window, combos []rlcore.Combo) []rlcore.Combo {
	if len(combos) > 1 && combos[0] == 0 && len(w.Card().Running) == 0 {
		return combos[1:]
	}
	return combos
}
