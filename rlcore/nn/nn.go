// Package nn holds small fully connected networks, trained by Adam or RMSProp.
//
// All parameters of a network lie in one slice, so that a copy, a checkpoint and an
// optimiser's step are one loop each. Nothing here allocates once a network has seen
// its largest batch. Matrices are stored row by row.
package nn

import (
	"errors"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
)

// MLP is a multi-layer perceptron: Sizes[0] inputs, ReLU layers, Sizes[last] linear
// outputs.
type MLP struct {
	Sizes []int
	Theta []float64 // per layer the weights, out × in, then the biases
	Grad  []float64 // the loss's gradient, laid out like Theta; Backward adds to it

	at   []int       // where each layer's parameters begin in Theta; at[0] is layer 1's
	acts [][]float64 // acts[l] is layer l's output, rows × Sizes[l]; acts[0] is the input
	back [2][]float64
	n    int // rows of the last Forward
}

// ErrShape marks parameters or an optimiser's state that don't fit a network.
var ErrShape = errors.New("network shape")

// New returns a network with He's initialisation (weights N(0, 2/in), biases 0). The
// last layer's weights are multiplied by last; with last = 0 all outputs are 0 until the
// network learns.
func New(sizes []int, last float64, r *rand.Rand) *MLP {
	m := &MLP{Sizes: append([]int(nil), sizes...)}
	n := 0
	for l := 1; l < len(sizes); l++ {
		m.at = append(m.at, n)
		n += sizes[l]*sizes[l-1] + sizes[l]
	}
	m.Theta, m.Grad = make([]float64, n), make([]float64, n)
	for l := 1; l < len(sizes); l++ {
		sd := math.Sqrt(2 / float64(sizes[l-1]))
		if l == len(sizes)-1 {
			sd *= last
		}
		w, _ := m.layer(m.Theta, l)
		for i := range w {
			w[i] = sd * r.NormFloat64()
		}
	}
	m.acts = make([][]float64, len(sizes))
	return m
}

// Twin returns a network of the same sizes with its own copy of the parameters.
func (m *MLP) Twin() *MLP {
	return &MLP{
		Sizes: m.Sizes, at: m.at, Theta: append([]float64(nil), m.Theta...),
		Grad: make([]float64, len(m.Grad)), acts: make([][]float64, len(m.Sizes)),
	}
}

// Alias returns a network that shares the parameters but has its own gradient and
// scratch.
func (m *MLP) Alias() *MLP {
	return &MLP{Sizes: m.Sizes, at: m.at, Theta: m.Theta, Grad: make([]float64, len(m.Grad)), acts: make([][]float64, len(m.Sizes))}
}

func (m *MLP) layer(theta []float64, l int) (w, b []float64) {
	in, out := m.Sizes[l-1], m.Sizes[l]
	w = theta[m.at[l-1] : m.at[l-1]+in*out]
	b = theta[m.at[l-1]+in*out : m.at[l-1]+in*out+out]
	return w, b
}

func grow(s []float64, n int) []float64 {
	if cap(s) < n {
		return make([]float64, n)
	}
	return s[:n]
}

func general(rows, cols int, data []float64) blas64.General {
	return blas64.General{Rows: rows, Cols: cols, Stride: cols, Data: data}
}

// Forward returns the outputs, n × Sizes[last], for the inputs x, n × Sizes[0]. They are
// valid until the next Forward; x must not change before Backward.
func (m *MLP) Forward(x []float64, n int) []float64 {
	m.n = n
	m.acts[0] = x
	for l := 1; l < len(m.Sizes); l++ {
		in, out := m.Sizes[l-1], m.Sizes[l]
		w, b := m.layer(m.Theta, l)
		y := grow(m.acts[l], n*out)
		m.acts[l] = y
		for i := range n {
			copy(y[i*out:(i+1)*out], b)
		}
		if n == 0 {
			continue
		}
		blas64.Gemm(blas.NoTrans, blas.Trans, 1, general(n, in, m.acts[l-1][:n*in]), general(out, in, w), 1, general(n, out, y))
		if l < len(m.Sizes)-1 {
			for i, v := range y {
				if v < 0 {
					y[i] = 0
				}
			}
		}
	}
	return m.acts[len(m.Sizes)-1]
}

// Backward adds to Grad the gradient of a loss whose derivative with respect to the last
// Forward's outputs is dy, n × Sizes[last]. dy is overwritten.
func (m *MLP) Backward(dy []float64) {
	if m.n == 0 {
		return
	}
	d := dy
	for l := len(m.Sizes) - 1; l >= 1; l-- {
		in, out := m.Sizes[l-1], m.Sizes[l]
		w, _ := m.layer(m.Theta, l)
		gw, gb := m.layer(m.Grad, l)
		x := m.acts[l-1][:m.n*in]
		blas64.Gemm(blas.Trans, blas.NoTrans, 1, general(m.n, out, d), general(m.n, in, x), 1, general(out, in, gw))
		for i := range m.n {
			for k, v := range d[i*out : (i+1)*out] {
				gb[k] += v
			}
		}
		if l == 1 {
			return
		}
		prev := grow(m.back[l&1], m.n*in)
		m.back[l&1] = prev
		blas64.Gemm(blas.NoTrans, blas.NoTrans, 1, general(m.n, out, d), general(out, in, w), 0, general(m.n, in, prev))
		for i, v := range x {
			if v <= 0 {
				prev[i] = 0
			}
		}
		d = prev
	}
}
