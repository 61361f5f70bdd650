package dqn

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Policy scores combinations by a trained network.
type Policy struct {
	name   string
	model  string
	net    Network
	obs    [1]*Obs
	values []float64
}

// NewPolicy returns a policy of the given name.
func NewPolicy(name string, net Network) *Policy { return &Policy{name: name, net: net} }

// Name implements rlcore.Policy.
func (p *Policy) Name() string { return p.name }

// By names the network, for users.
func (p *Policy) By(model string) *Policy { p.model = model; return p }

// Model returns the name given by By; "" = none.
func (p *Policy) Model() string { return p.model }

// Score implements rlcore.Policy. A combination that the network doesn't describe, because too many
// have a higher index, gets −Inf; so does leaving a GPU idle.
func (p *Policy) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
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

// choices returns the combinations that the network scores: all but to leave a GPU
// idle while a job could have it.
func choices(w *rlcore.Window, combos []rlcore.Combo) []rlcore.Combo {
	if len(combos) > 1 && combos[0] == 0 && len(w.Card().Running) == 0 {
		return combos[1:]
	}
	return combos
}
