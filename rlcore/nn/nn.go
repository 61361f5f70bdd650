// Package nn holds small fully connected networks, trained by Adam or RMSProp.
//
// All parameters of a network lie in one slice, so that a copy, a checkpoint and an optimiser's step are one loop each.
// Nothing here allocates once a network has seen its largest batch. Numbers are float32: half the memory to go through,
// and twice as many at a time in a vector register.
package nn

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// Block is a network's parameters, for optimisers and checkpoints, and the loss's gradient, laid out alike; Backward
// adds to it.
type Block struct{ Theta, Grad []float32 }

func (b *Block) alias() Block { return Block{b.Theta, make([]float32, len(b.Grad))} }

// MLP is a multi-layer perceptron: Sizes[0] inputs, ReLU layers, Sizes[last] linear outputs. Its matrices have a row
// for each unit and a column for each case of a batch, so that however small the layers, the loops run over the batch.
type MLP struct {
	Sizes []int
	Block // per layer the weights, out × in, then the biases

	at   []int       // where each layer's parameters begin in Theta; at[0] is layer 1's
	acts [][]float32 // acts[l] is layer l's output, Sizes[l] × n; acts[0] is the input
	back [2][]float32
	n    int // cases of the last Forward
}

// New returns a network with He's initialisation (weights N(0, 2/in), biases 0). The last layer's weights are
// multiplied by last; if last is 0, all outputs are 0 until the network learns.
func New(sizes []int, last float64, r *rand.Rand) *MLP {
	m := &MLP{Sizes: append([]int(nil), sizes...)}
	n := 0
	for l := 1; l < len(sizes); l++ {
		m.at = append(m.at, n)
		n += sizes[l]*sizes[l-1] + sizes[l]
	}
	m.Theta, m.Grad = make([]float32, n), make([]float32, n)
	for l := 1; l < len(sizes); l++ {
		sd := math.Sqrt(2 / float64(sizes[l-1]))
		if l == len(sizes)-1 {
			sd *= last
		}
		w, _ := m.layer(m.Theta, l)
		for i := range w {
			w[i] = float32(sd * r.NormFloat64())
		}
	}
	m.acts = make([][]float32, len(sizes))
	return m
}

// Twin returns a network of the same sizes with its own copy of the parameters.
func (m *MLP) Twin() *MLP {
	t := m.Alias()
	t.Theta = append([]float32(nil), m.Theta...)
	return t
}

// Alias returns a network that shares the parameters but has its own gradient and scratch.
func (m *MLP) Alias() *MLP {
	return &MLP{
		Sizes: m.Sizes, at: m.at, Block: m.alias(), acts: make([][]float32, len(m.Sizes)),
	}
}

func (m *MLP) layer(theta []float32, l int) (w, b []float32) {
	in, out := m.Sizes[l-1], m.Sizes[l]
	w = theta[m.at[l-1] : m.at[l-1]+in*out]
	b = theta[m.at[l-1]+in*out : m.at[l-1]+in*out+out]
	return w, b
}

// Forward returns the outputs, Sizes[last] × n, for the inputs x, Sizes[0] × n. They are
// valid until the next Forward; x must not change before Backward.
func (m *MLP) Forward(x []float32, n int) []float32 {
	m.n, m.acts[0] = n, x
	for l := 1; l < len(m.Sizes); l++ {
		in, out := m.Sizes[l-1], m.Sizes[l]
		w, b := m.layer(m.Theta, l)
		y := grow(m.acts[l], out*n)
		m.acts[l] = y
		for k, v := range b {
			row := y[k*n : (k+1)*n]
			for i := range row {
				row[i] = v
			}
		}
		addProduct(y, blas.NoTrans, matrix(out, in, w), m.acts[l-1], n)
		if l < len(m.Sizes)-1 {
			for i, v := range y {
				y[i] = max(v, 0)
			}
		}
	}
	return m.acts[len(m.Sizes)-1]
}

// Backward adds to Grad the gradient of a loss with the derivative dy with respect to the last
// Forward's outputs, Sizes[last] × n.
func (m *MLP) Backward(dy []float32) {
	n, d := m.n, dy
	if n == 0 {
		return
	}
	for l := len(m.Sizes) - 1; l >= 1; l-- {
		in, out := m.Sizes[l-1], m.Sizes[l]
		w, _ := m.layer(m.Theta, l)
		gw, gb := m.layer(m.Grad, l)
		x := m.acts[l-1][:in*n]
		blas32.Gemm(blas.NoTrans, blas.Trans, 1, matrix(out, n, d), matrix(in, n, x), 1, matrix(out, in, gw))
		for k := range gb {
			sum := float32(0)
			for _, v := range d[k*n : (k+1)*n] {
				sum += v
			}
			gb[k] += sum
		}
		if l == 1 {
			return
		}
		prev := grow(m.back[l&1], in*n)
		m.back[l&1] = prev
		clear(prev)
		addProduct(prev, blas.Trans, matrix(out, in, w), d, n)
		for i, v := range x {
			bits := math.Float32bits(prev[i])
			if v <= 0 { // of an integer this is no jump, which would be guessed wrongly half the time
				bits = 0
			}
			prev[i] = math.Float32frombits(bits)
		}
		d = prev
	}
}

// panel is how many columns are multiplied at a time: they stay in the cache, and gonum
// shares what is larger among goroutines, which costs more than it gives here.
const panel = 128

// addProduct adds w · x, or wᵀ · x, to y; x and y have n columns.
func addProduct(y []float32, t blas.Transpose, w blas32.General, x []float32, n int) {
	in, out := w.Cols, w.Rows
	if t == blas.Trans {
		in, out = out, in
	}
	for at := 0; at < n; at += panel {
		cols := min(panel, n-at)
		blas32.Gemm(t, blas.NoTrans, 1, w,
			blas32.General{Rows: in, Cols: cols, Stride: n, Data: x[at:]}, 1,
			blas32.General{Rows: out, Cols: cols, Stride: n, Data: y[at:]})
	}
}

func matrix(rows, cols int, data []float32) blas32.General {
	return blas32.General{Rows: rows, Cols: cols, Stride: cols, Data: data}
}

func grow(s []float32, n int) []float32 { return slices.Grow(s[:0], n)[:n] }
