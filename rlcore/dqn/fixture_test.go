package dqn

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Two of these fit on a card, three don't: a light one hardly slows anybody, two heavy ones halve each other.
var (
	light = even("light", 0.2)
	heavy = even("heavy", 0.9)
)

// even is a job that asks for the same all the time, 100 s long.
func even(app string, gpu float64) *rlcore.Profile {
	return &rlcore.Profile{
		App: app, DurationS: 100, PeriodS: 100,
		Series: []rlcore.Use{{GPU: gpu, MemMiB: 5200, Core: gpu}},
	}
}

func newGuard() *rlcore.Guard {
	return rlcore.NewGuard(rlcore.Rules{Predictor: interference.New(&contention.MPS), Grace: 100}) // no due binds
}

// jobs makes a simulation of one card out of profiles.
func jobs(profiles ...*rlcore.Profile) sim.Config {
	cfg := sim.Config{GPUs: []rlcore.GPUSpec{rlcore.TitanXp}, Truth: sim.Law{Law: &contention.MPS}}
	for i, p := range profiles {
		cfg.Jobs = append(cfg.Jobs, sim.Arrival{Job: rlcore.Job{ID: fmt.Sprint(i), User: "u", Profile: p}})
	}
	return cfg
}

// shuffled is a scenario of the given profiles in a random order.
func shuffled(profiles ...*rlcore.Profile) Scenario {
	return func(r *rand.Rand) (sim.Config, error) {
		p := append([]*rlcore.Profile(nil), profiles...)
		r.Shuffle(len(p), func(i, k int) { p[i], p[k] = p[k], p[i] })
		return jobs(p...), nil
	}
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 9)) }

func newNet() *Scorer {
	return NewScorer(policy.Turnaround, 8, newGuard().Predictor, seeded(1))
}

// short is a trainer whose training takes a fraction of a second.
func short(rounds int) *Trainer {
	return &Trainer{
		Options: Options{Seed: 3, M: 4, Rounds: rounds, Episodes: 4, Steps: 8, Batch: 8, Check: 2, Checks: 4, Target: 10},
		Net:     newNet(), Scenario: shuffled(light, light, heavy, heavy, light, heavy), Guard: newGuard,
	}
}

func trained(tb testing.TB, rounds int) *Trainer {
	tb.Helper()
	t := short(rounds)
	must.OK(tb, t.Train(context.Background()))
	return t
}

// shake gives every parameter something, the last layer's too.
func shake(n *Scorer, seed uint64) {
	r := seeded(seed)
	for _, b := range n.Params() {
		for i := range b.Theta {
			b.Theta[i] += float32(0.1 * r.NormFloat64())
		}
	}
}

// someWindow is a decision with a job on the card and m pending ones.
func someWindow(m int) *rlcore.Window {
	s := &rlcore.State{GPUs: []rlcore.GPU{{ID: "0", Spec: rlcore.TitanXp, FreeCPUs: -1, FreeHostMemMiB: -1}}}
	small := func(i int) *rlcore.Profile {
		p := even(fmt.Sprint("app", i), 0.1+0.15*float64(i%5))
		q := *p
		q.Series = []rlcore.Use{
			{GPU: p.Series[0].GPU, MemMiB: 900, Core: 0.1},
			{GPU: 0.3, MemMiB: 400, Core: 0.2, PCIeMBps: 4000},
		}
		q.PeriodS, q.DurationS, q.StepS = 30, 60+float64(17*i), 0.1*float64(1+i)
		return &q
	}
	s.GPUs[0].Running = []rlcore.Running{{
		Job: rlcore.Job{ID: "r", User: "u", Profile: small(3)}, DoneS: 11, ElapsedS: 14,
		Shares: 20,
	}}
	for i := range m + 3 {
		s.Pending = append(s.Pending, rlcore.Job{ID: fmt.Sprint(i), User: "u", Profile: small(i)})
	}
	w := rlcore.NewWindow(nil, s, 0, m)
	return &w
}

// catalogue is the profiles of the catalogue, those of least memory first.
func catalogue() []*rlcore.Profile {
	var out []*rlcore.Profile
	for _, name := range apps.Names() {
		p, _ := apps.ByName(name)
		out = append(out, p)
	}
	slices.SortStableFunc(out, func(a, b *rlcore.Profile) int { return cmp.Compare(a.Peak().MemMiB, b.Peak().MemMiB) })
	return out
}

// busy is a site of cards, each with a job on it, and jobs pending. They are the
// six of least memory, so that most combinations are allowed and must be valued.
func busy(cards, pending int) *rlcore.State {
	all := catalogue()
	s := &rlcore.State{}
	for g := range cards {
		p := all[g%6]
		s.GPUs = append(s.GPUs, rlcore.GPU{
			ID: fmt.Sprint(g), Spec: rlcore.TitanXp, FreeCPUs: -1, FreeHostMemMiB: -1,
			Running: []rlcore.Running{{
				Job: rlcore.Job{ID: "r", User: "u", Profile: p}, DoneS: p.DurationS / 3,
				ElapsedS: p.DurationS / 2, Shares: 20,
			}},
		})
	}
	for i := range pending {
		s.Pending = append(s.Pending, rlcore.Job{ID: fmt.Sprint(i), User: "u", Profile: all[i%6]})
	}
	return s
}
