package baseline

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

var _ = policy.Register(policy.Spec{
	Name: "tetris", About: "packs by peak demand and knows nothing of interference", Rank: 30,
	Live: true, Contender: true, Unguarded: true,
	New:   func(policy.Setup) (rlcore.Policy, error) { return &Tetris{Short: 0.5}, nil },
	Knobs: tetrisKnobs(),
})

func tetrisKnobs() []policy.Knob {
	var out []policy.Knob
	for _, over := range []float64{1, 1.25, 1.5, 2, 3} {
		for _, short := range []float64{0, 0.25, 0.5, 1} {
			out = append(out, policy.Knob{
				Note: fmt.Sprintf("short %.2f, overcommit %.2f", short, over),
				New:  func(rlcore.Predictor) rlcore.Policy { return &Tetris{Short: short, Overcommit: over} },
			})
		}
	}
	return out
}

// Tetris packs as Grandl et al. do (SIGCOMM'14): among the jobs with a peak demand that fits into what is free, it
// starts the one with the demand best aligned with it (the scalar product over the thesis's four resources, each as a
// fraction of the card), less a term that favours short jobs. It ignores interference.
type Tetris struct {
	// Short weighs the shortest-job term against alignment, 0 … 1: the paper's m, with a best value near 1 for turnaround.
	// Its scale is the ratio of the two terms' means over the jobs that fit, as in the paper.
	Short float64
	// Overcommit is how much GPU and core time may be handed out, in cards. The paper doesn't hand out more than there is
	// (1); a card under MPS bears more. Memory is never overcommitted.
	Overcommit float64

	fits  []int
	align []float64
	work  []float64
}

// Name implements rlcore.Policy.
func (*Tetris) Name() string { return "tetris" }

// Score implements rlcore.Policy.
func (t *Tetris) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	card := w.Card()
	over := cmp.Or(t.Overcommit, 1)
	free := [4]float64{over, 1, over, 1}
	for i := range card.Running {
		d := demand(&card.Running[i].Job, &card.Spec)
		for r := range free {
			free[r] -= d[r]
		}
	}
	t.fits, t.align, t.work = t.fits[:0], t.align[:0], t.work[:0]
	var meanAlign, meanWork float64
	for k, c := range combos {
		dst[k] = math.Inf(-1)
		if c == 0 {
			dst[k] = -1e18
		}
		if c.Len() != 1 {
			continue
		}
		j := w.Job(bits.TrailingZeros32(uint32(c)))
		d := demand(j, &card.Spec)
		dot, ok := 0.0, true
		for r := range d {
			ok = ok && d[r] <= free[r]+1e-9
			dot += d[r] * free[r]
		}
		if !ok && len(card.Running) > 0 {
			continue
		}
		work := j.LimitS
		if j.Profile != nil {
			work = j.Profile.DurationS
		}
		t.fits, t.align, t.work = append(t.fits, k), append(t.align, dot), append(t.work, work)
		meanAlign, meanWork = meanAlign+dot, meanWork+work
	}
	eps := 0.0
	if meanWork > 0 {
		eps = t.Short * meanAlign / meanWork
	}
	for i, k := range t.fits {
		dst[k] = t.align[i] - eps*t.work[i]
	}
}

// demand is a job's peak use, as fractions of the card.
func demand(j *rlcore.Job, spec *rlcore.GPUSpec) [4]float64 {
	if j.Profile == nil {
		return [4]float64{1, 1, 1, 1}
	}
	p := j.Profile.Peak()
	d := [4]float64{p.GPU, spec.MemPart(p.MemMiB), p.Core, 0}
	if spec.PCIeMBps > 0 {
		d[3] = p.PCIeMBps / spec.PCIeMBps
	}
	return d
}
