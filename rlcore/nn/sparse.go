package nn

import (
	"math"
	"math/rand/v2"
)

// Sparse is a network for pictures of 0 and 1, with one hidden ReLU layer and linear
// outputs. Its cost grows with the pixels that are 1 only.
type Sparse struct {
	In, Hidden, Out int
	Block           // weights, In × Hidden; biases, Hidden; weights, Out × Hidden; biases, Out

	pictures [][]int32
	h, y     []float32 // of each picture of the last Forward
	dh       []float32
}

// NewSparse returns a network with He's initialisation for pictures in which about active pixels are 1. The last
// layer's weights are multiplied by last.
func NewSparse(in, hidden, out, active int, last float64, r *rand.Rand) *Sparse {
	s := &Sparse{In: in, Hidden: hidden, Out: out, dh: make([]float32, hidden)}
	n := in*hidden + hidden + out*hidden + out
	s.Theta, s.Grad = make([]float32, n), make([]float32, n)
	sd := math.Sqrt(2 / float64(max(1, active)))
	for i := range in * hidden {
		s.Theta[i] = float32(sd * r.NormFloat64())
	}
	w, _ := s.outer(s.Theta)
	sd = last * math.Sqrt(2/float64(hidden))
	for i := range w {
		w[i] = float32(sd * r.NormFloat64())
	}
	return s
}

// Alias returns a network that shares the parameters but has its own gradient and scratch.
func (s *Sparse) Alias() *Sparse {
	return &Sparse{In: s.In, Hidden: s.Hidden, Out: s.Out, Block: s.alias(), dh: make([]float32, s.Hidden)}
}

func (s *Sparse) bias(theta []float32) []float32 {
	at := s.In * s.Hidden
	return theta[at : at+s.Hidden]
}

func (s *Sparse) outer(theta []float32) (w, b []float32) {
	at := s.In*s.Hidden + s.Hidden
	return theta[at : at+s.Out*s.Hidden], theta[at+s.Out*s.Hidden:]
}

// Forward returns the outputs, Out for each picture, which is given by the indexes of its pixels that are 1. They are
// valid until the next Forward; pictures must not change before Backward.
func (s *Sparse) Forward(pictures [][]int32) []float32 {
	s.pictures = pictures
	s.h, s.y = grow(s.h, len(pictures)*s.Hidden), grow(s.y, len(pictures)*s.Out)
	w, b := s.outer(s.Theta)
	for i, pixels := range pictures {
		h, y := s.h[i*s.Hidden:(i+1)*s.Hidden], s.y[i*s.Out:(i+1)*s.Out]
		copy(h, s.bias(s.Theta))
		for _, p := range pixels {
			for k, v := range s.Theta[int(p)*s.Hidden:][:len(h)] {
				h[k] += v
			}
		}
		for k, v := range h {
			h[k] = max(v, 0)
		}
		for o := range y {
			y[o] = b[o]
			for k, v := range w[o*s.Hidden:][:len(h)] {
				y[o] += v * h[k]
			}
		}
	}
	return s.y
}

// Backward adds to Grad the gradient of a loss with the derivative dy with respect to the last Forward's outputs.
func (s *Sparse) Backward(dy []float32) {
	w, _ := s.outer(s.Theta)
	gw, gb := s.outer(s.Grad)
	bias, dh := s.bias(s.Grad), s.dh
	for i, pixels := range s.pictures {
		h := s.h[i*s.Hidden:][:len(dh)]
		clear(dh)
		for o, d := range dy[i*s.Out : (i+1)*s.Out] {
			if d == 0 {
				continue
			}
			gb[o] += d
			row, grad := w[o*s.Hidden:][:len(dh)], gw[o*s.Hidden:][:len(dh)]
			for k, v := range row {
				dh[k] += d * v
				grad[k] += d * h[k]
			}
		}
		for k, v := range h {
			if v <= 0 {
				dh[k] = 0
			}
			bias[k] += dh[k]
		}
		for _, p := range pixels {
			row := s.Grad[int(p)*s.Hidden:][:len(dh)]
			for k, v := range dh {
				row[k] += v
			}
		}
	}
}

// Softmax turns logits into probabilities in place; values that aren't allowed become 0. At least one must be allowed.
func Softmax(x []float64, allowed []bool) {
	most := math.Inf(-1)
	for i, v := range x {
		if allowed[i] {
			most = max(most, v)
		}
	}
	sum := 0.0
	for i, v := range x {
		x[i] = 0
		if allowed[i] {
			x[i] = math.Exp(v - most)
			sum += x[i]
		}
	}
	for i := range x {
		x[i] /= sum
	}
}
