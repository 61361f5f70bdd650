package models

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// day0 is when the sites of the tests begin.
var day0 = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

var rules = Rules{Window: 5, MaxGroup: 5, MemMargin: 0.05, MaxDelayS: 300, Grace: 100, Trust: 1}

// titanXp is the GPU of a record.
func titanXp() []gpuprof.GPU {
	return []gpuprof.GPU{{Model: rlcore.TitanXp.Model, MemMiB: rlcore.TitanXp.MemMiB}}
}

// cardOf is what is known of a run's GPU.
func cardOf(r *history.Run) rlcore.GPUSpec {
	if len(r.Devices) == 0 {
		return rlcore.GPUSpec{}
	}
	card := rlcore.TitanXp
	card.MemMiB = r.Devices[0].MemMiB
	return card
}

// site makes n runs on the GPUs of a site, one every gap seconds on average, of the
// thesis's applications. Their starts say nothing.
func site(n, gpus int, gap float64, seed uint64) []history.Run {
	r := rand.New(rand.NewPCG(seed, 1))
	profiles := map[string]*rlcore.Profile{}
	names := apps.Names()
	for _, a := range names {
		profiles[a], _ = apps.ByName(a)
	}
	at := day0
	var out []history.Run
	for i := range n {
		p := profiles[names[r.IntN(len(names))]]
		start := at.Add(time.Minute)
		out = append(out, history.Run{
			ID: int64(i + 1), Ref: fmt.Sprint(i + 1), User: "ann", Ready: at, Start: start,
			End:  start.Add(time.Duration(p.DurationS * (0.8 + 0.4*r.Float64()) * float64(time.Second))),
			Node: fmt.Sprintf("n%d", i%gpus/2), GPUs: []int{i % gpus % 2}, Devices: titanXp(), Profile: p,
		})
		at = at.Add(time.Duration(gap * r.ExpFloat64() * float64(time.Second)))
	}
	return out
}

// aloneIsBest makes a network value a combination the less the more jobs it starts.
func aloneIsBest(net dqn.Network) {
	theta := net.Params()[1].Theta
	clear(theta)
	const in = encoder.ContextLen + encoder.ComboLen
	// The number of layer units follows from the number of parameters.
	h := 1
	for in*h+h+h*h+h+h+1 < len(theta) {
		h++
	}
	theta[encoder.ContextLen+1] = 1 // jobs started, to the first unit
	theta[in*h+h] = 1
	theta[in*h+h+h*h+h] = -100
}

// demandsOf is what profiles ask for at their start.
func demandsOf(p ...*rlcore.Profile) []contention.Demand {
	var out []contention.Demand
	for _, x := range p {
		u := x.Mean()
		out = append(out, contention.Demand{GPU: u.GPU, Core: u.Core, StepS: x.StepS})
	}
	return out
}
