package dqn

import (
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/rlcore/nn"
)

// Flat values all combinations at once from the thesis's images: one output for the
// situation and one for each of the 2^M combinations, joined as in a duelling network.
// M is built into it.
type Flat struct {
	Enc encoder.Images
	net *nn.Sparse // pixels → hidden → 1 + 2^M

	obs Obs
	dy  []float64
}

// activePixels is about how many pixels are 1, for the initial weights.
const activePixels = 2000

// NewFlat returns a network for windows of m jobs whose values are all 0.
func NewFlat(m, hidden int, r *rand.Rand) *Flat {
	f := &Flat{Enc: encoder.Images{M: m, Virtual: true}}
	f.net = nn.NewSparse(f.Enc.Len(), hidden, 1+1<<m, activePixels, 0, r)
	return f
}

// Name implements Network.
func (f *Flat) Name() string { return kindFlat }

// Objective implements Network.
func (f *Flat) Objective() rlcore.Objective { return rlcore.Makespan }

// Params implements Network.
func (f *Flat) Params() []nn.Block { return []nn.Block{f.net.Block()} }

// Twin implements Network.
func (f *Flat) Twin() Network {
	return &Flat{Enc: encoder.Images{M: f.Enc.M, Virtual: true}, net: f.net.Twin()}
}

// Alias implements Network. The images need no predictor.
func (f *Flat) Alias(rlcore.Predictor) Network {
	return &Flat{Enc: encoder.Images{M: f.Enc.M, Virtual: true}, net: f.net.Alias()}
}

// Observe implements Network. A larger window is cut to M jobs.
func (f *Flat) Observe(w *rlcore.Window, combos []rlcore.Combo, fresh bool) *Obs {
	v := *w
	v.Jobs = v.Jobs[:min(len(v.Jobs), f.Enc.M)]
	f.Enc.Encode(&v)
	f.obs.Combos = f.obs.Combos[:0]
	for _, c := range combos {
		if int(c) < 1<<f.Enc.M {
			f.obs.Combos = append(f.obs.Combos, c)
		}
	}
	f.obs.Pixels = f.Enc.Pixels
	if !fresh {
		return &f.obs
	}
	return &Obs{
		Combos: append([]rlcore.Combo(nil), f.obs.Combos...),
		Pixels: append([]int32(nil), f.obs.Pixels...),
	}
}

// Values implements Network.
func (f *Flat) Values(dst []float64, o *Obs) []float64 {
	y := f.net.Forward(o.Pixels)
	mean := 0.0
	for _, c := range o.Combos {
		mean += y[1+c] / float64(len(o.Combos))
	}
	dst = dst[:0]
	for _, c := range o.Combos {
		dst = append(dst, y[0]+y[1+c]-mean)
	}
	return dst
}

// Learn implements Network.
func (f *Flat) Learn(o *Obs, k int, d float64) {
	if len(f.dy) != f.net.Out {
		f.dy = make([]float64, f.net.Out)
	}
	clear(f.dy)
	f.dy[0] = d
	for i, c := range o.Combos {
		f.dy[1+c] -= d / float64(len(o.Combos))
		if i == k {
			f.dy[1+c] += d
		}
	}
	f.net.Backward(f.dy)
}
