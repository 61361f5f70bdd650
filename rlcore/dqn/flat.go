package dqn

import (
	"math/rand/v2"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/rlcore/nn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Flat values all combinations at once from the thesis's images: one output for the
// situation and one for each of the 2^M combinations, joined as in a duelling network.
// M is built into it.
type Flat struct {
	Enc encoder.Images
	net *nn.Sparse // pixels → hidden → 1 + 2^M

	seen     Obs    // by the last Observe
	obs      []*Obs // of the last Values
	pictures [][]int32
	dy       []float32
}

// activePixels is about how many pixels are 1, for the initial weights.
const activePixels = 2000

// NewFlat returns a network for windows of m jobs with all values 0.
func NewFlat(m, hidden int, r *rand.Rand) *Flat {
	f := &Flat{Enc: encoder.Images{M: m, Virtual: true}}
	f.net = nn.NewSparse(f.Enc.Len(), hidden, 1+1<<m, activePixels, 0, r)
	return f
}

// Name implements Network.
func (f *Flat) Name() string { return kindFlat }

// Objective implements Network.
func (f *Flat) Objective() policy.Objective { return policy.Makespan }

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
	f.seen.Combos = f.seen.Combos[:0]
	for _, c := range combos {
		if int(c) < 1<<f.Enc.M {
			f.seen.Combos = append(f.seen.Combos, c)
		}
	}
	f.seen.Pixels = f.Enc.Pixels
	if !fresh {
		return &f.seen
	}
	return &Obs{
		Combos: append([]rlcore.Combo(nil), f.seen.Combos...),
		Pixels: append([]int32(nil), f.seen.Pixels...),
	}
}

// Values implements Network.
func (f *Flat) Values(dst []float64, obs []*Obs) []float64 {
	f.obs, f.pictures = obs, f.pictures[:0]
	for _, o := range obs {
		f.pictures = append(f.pictures, o.Pixels)
	}
	y := f.net.Forward(f.pictures)
	dst = dst[:0]
	for j, o := range obs {
		y := y[j*f.net.Out:][:f.net.Out]
		mean := 0.0
		for _, c := range o.Combos {
			mean += float64(y[1+c]) / float64(len(o.Combos))
		}
		for _, c := range o.Combos {
			dst = append(dst, float64(y[0])+float64(y[1+c])-mean)
		}
	}
	return dst
}

// Learn implements Network.
func (f *Flat) Learn(d []float64) {
	f.dy = slices.Grow(f.dy[:0], len(f.obs)*f.net.Out)[:len(f.obs)*f.net.Out]
	clear(f.dy)
	for j, o := range f.obs {
		dy := f.dy[j*f.net.Out:][:f.net.Out]
		own := d[:len(o.Combos)]
		d = d[len(own):]
		sum := 0.0
		for _, x := range own {
			sum += x
		}
		dy[0] = float32(sum)
		for k, c := range o.Combos {
			dy[1+c] = float32(own[k] - sum/float64(len(own)))
		}
	}
	f.net.Backward(f.dy)
}
