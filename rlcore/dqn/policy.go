package dqn

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Policy decides by a trained network.
type Policy struct {
	name   string
	model  string
	net    Network
	values []float64
}

// NewPolicy returns a policy of the given name.
func NewPolicy(name string, net Network) *Policy { return &Policy{name: name, net: net} }

// Name implements rlcore.Policy.
func (p *Policy) Name() string { return p.name }

// By says which network it is that decides, in a word or two.
func (p *Policy) By(model string) *Policy { p.model = model; return p }

// Model is what By said, "" = nothing.
func (p *Policy) Model() string { return p.model }

// Score implements rlcore.Policy. A combination that the network wasn't shown,
// because others promise more, is worth −Inf; so is leaving a GPU idle.
func (p *Policy) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	o := p.net.Observe(w, choices(w, combos), false)
	p.values = p.net.Values(p.values, o)
	k := 0
	for i, c := range combos {
		dst[i] = math.Inf(-1)
		if k < len(o.Combos) && o.Combos[k] == c {
			dst[i] = p.values[k]
			k++
		}
	}
}

// choices are the combinations that the network is asked about: to leave a GPU
// idle while a job could have it is none of them.
func choices(w *rlcore.Window, combos []rlcore.Combo) []rlcore.Combo {
	if len(combos) > 1 && combos[0] == 0 && len(w.Card().Running) == 0 {
		return combos[1:]
	}
	return combos
}
