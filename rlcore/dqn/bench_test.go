package dqn

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

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

// shaken is a network of the size that is trained by default.
func shaken(p rlcore.Predictor) *Scorer {
	net := NewScorer(policy.Turnaround, 32, p, seeded(1))
	shake(net, 1)
	return net
}

// stocked is a learner of the built-in network's size with a thousand decisions of so many combinations in its memory,
// and lessons of them.
func stocked(combos int) (*learner, []lesson) {
	l := newLearner(Options{Seed: 1}.orDefaults(), shaken(newGuard().Predictor))
	var lessons []lesson
	r := seeded(1)
	for range 1000 {
		o := decided(combos, r)
		l.memory.add(transition{
			obs: o, taken: r.IntN(combos), reward: r.NormFloat64(), decay: 0.98,
			next: decided(combos, r),
		})
		lessons = append(lessons, lesson{obs: o, of: r.Perm(combos)[:4], want: []float64{0.3, 0.1, -0.1, -0.3}})
	}
	return l, lessons
}

// decided is a decision of so many combinations, all of its figures random.
func decided(combos int, r *rand.Rand) *Obs {
	o := &Obs{Combos: make([]rlcore.Combo, combos), Unit: 1}
	for range encoder.ContextLen {
		o.Context = append(o.Context, float32(r.NormFloat64()))
	}
	for range combos * encoder.ComboLen {
		o.Rows = append(o.Rows, float32(r.NormFloat64()))
	}
	for range combos {
		o.Prior = append(o.Prior, r.Float64())
	}
	return o
}

// BenchmarkStep is a gradient step of the built-in network's size, from rewards and from
// lessons; slurmbridge/lab/learners/step.py is its like in PyTorch.
func BenchmarkStep(b *testing.B) {
	for _, combos := range []int{4, 32} {
		l, lessons := stocked(combos)
		b.Run(fmt.Sprintf("rewards/combos=%d", combos), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.step()
			}
		})
		b.Run(fmt.Sprintf("lessons/combos=%d", combos), func(b *testing.B) {
			b.ReportAllocs()
			var p RoundStats
			for b.Loop() {
				l.teach(1, lessons, &p)
			}
		})
	}
}
