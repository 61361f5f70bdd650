package nn

import (
	"math"
	"math/rand/v2"
)

// Block is a network's parameters and their gradient, for optimisers and checkpoints.
type Block struct{ Theta, Grad []float64 }

// Block returns the network's parameters.
func (m *MLP) Block() Block { return Block{m.Theta, m.Grad} }

// Sparse is a network for pictures of 0 and 1, with one hidden ReLU layer and linear
// outputs. Its cost grows with the pixels that are 1 only.
type Sparse struct {
	In, Hidden, Out int
	Theta           []float64 // weights, In × Hidden; biases, Hidden; weights, Out × Hidden; biases, Out
	Grad            []float64

	pixels []int32
	h, y   []float64
	dh     []float64
}

// NewSparse returns a network with He's initialisation for pictures with about active
// pixels that are 1. The last layer's weights are multiplied by last.
func NewSparse(in, hidden, out, active int, last float64, r *rand.Rand) *Sparse {
	s := &Sparse{In: in, Hidden: hidden, Out: out}
	n := in*hidden + hidden + out*hidden + out
	s.Theta, s.Grad = make([]float64, n), make([]float64, n)
	sd := math.Sqrt(2 / float64(max(1, active)))
	for i := range in * hidden {
		s.Theta[i] = sd * r.NormFloat64()
	}
	w, _ := s.outer(s.Theta)
	sd = last * math.Sqrt(2/float64(hidden))
	for i := range w {
		w[i] = sd * r.NormFloat64()
	}
	s.scratch()
	return s
}

func (s *Sparse) scratch() {
	s.h, s.dh, s.y = make([]float64, s.Hidden), make([]float64, s.Hidden), make([]float64, s.Out)
}

// Block returns the network's parameters.
func (s *Sparse) Block() Block { return Block{s.Theta, s.Grad} }

// Twin returns a network with its own copy of the parameters.
func (s *Sparse) Twin() *Sparse {
	t := &Sparse{In: s.In, Hidden: s.Hidden, Out: s.Out, Theta: append([]float64(nil), s.Theta...), Grad: make([]float64, len(s.Grad))}
	t.scratch()
	return t
}

// Alias returns a network that shares the parameters but has its own gradient and
// scratch.
func (s *Sparse) Alias() *Sparse {
	t := &Sparse{In: s.In, Hidden: s.Hidden, Out: s.Out, Theta: s.Theta, Grad: make([]float64, len(s.Grad))}
	t.scratch()
	return t
}

func (s *Sparse) bias(theta []float64) []float64 {
	at := s.In * s.Hidden
	return theta[at : at+s.Hidden]
}

func (s *Sparse) outer(theta []float64) (w, b []float64) {
	at := s.In*s.Hidden + s.Hidden
	return theta[at : at+s.Out*s.Hidden], theta[at+s.Out*s.Hidden:]
}

// Forward returns the Out outputs for a picture, given by the indexes of its pixels that
// are 1. They are valid until the next Forward; pixels must not change before Backward.
func (s *Sparse) Forward(pixels []int32) []float64 {
	s.pixels = pixels
	copy(s.h, s.bias(s.Theta))
	for _, p := range pixels {
		row := s.Theta[int(p)*s.Hidden : (int(p)+1)*s.Hidden]
		for k, v := range row {
			s.h[k] += v
		}
	}
	for k, v := range s.h {
		if v < 0 {
			s.h[k] = 0
		}
	}
	w, b := s.outer(s.Theta)
	for o := range s.y {
		y := b[o]
		row := w[o*s.Hidden : (o+1)*s.Hidden]
		for k, v := range row {
			y += v * s.h[k]
		}
		s.y[o] = y
	}
	return s.y
}

// Backward adds to Grad the gradient of a loss whose derivative with respect to the last
// Forward's outputs is dy, Out long.
func (s *Sparse) Backward(dy []float64) {
	w, _ := s.outer(s.Theta)
	gw, gb := s.outer(s.Grad)
	clear(s.dh)
	for o, d := range dy {
		if d == 0 {
			continue
		}
		gb[o] += d
		row, grow := w[o*s.Hidden:(o+1)*s.Hidden], gw[o*s.Hidden:(o+1)*s.Hidden]
		for k, v := range row {
			s.dh[k] += d * v
			grow[k] += d * s.h[k]
		}
	}
	bias := s.bias(s.Grad)
	for k, v := range s.h {
		if v <= 0 {
			s.dh[k] = 0
		}
		bias[k] += s.dh[k]
	}
	for _, p := range s.pixels {
		row := s.Grad[int(p)*s.Hidden : (int(p)+1)*s.Hidden]
		for k, v := range s.dh {
			row[k] += v
		}
	}
}

// Softmax turns logits into probabilities in place; those that aren't allowed become 0.
// At least one must be allowed.
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
