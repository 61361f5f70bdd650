package nn

import (
	"math"

	"gonum.org/v1/gonum/blas/blas32"
)

// Adam is Kingma and Ba's optimiser (ICLR 2015) with their constants.
type Adam struct {
	Rate float64
	// Clip bounds the gradient's norm; 0 = no bound.
	Clip float64

	m, v []float32
	t    int
}

// Step changes theta by the gradient grad and clears grad.
func (a *Adam) Step(theta, grad []float32) {
	const b1, b2, eps = 0.9, 0.999, 1e-8
	if len(a.m) != len(theta) {
		a.m, a.v, a.t = make([]float32, len(theta)), make([]float32, len(theta)), 0
	}
	a.t++
	scale := clip(grad, a.Clip)
	rate := float32(a.Rate * math.Sqrt(1-math.Pow(b2, float64(a.t))) / (1 - math.Pow(b1, float64(a.t))))
	m, v := a.m[:len(theta)], a.v[:len(theta)]
	for i, g := range grad[:len(theta)] {
		g *= scale
		m[i] = b1*m[i] + (1-b1)*g
		v[i] = b2*v[i] + (1-b2)*g*g
		theta[i] -= rate * m[i] / (root(v[i]) + eps)
	}
	clear(grad)
}

// RMSProp is Hinton's optimiser; DeepRM uses it with rate 0.001, decay 0.9 and eps 1e-9.
type RMSProp struct {
	Rate, Decay, Eps float64

	v []float32
}

// Step changes theta by the gradient grad and clears grad.
func (r *RMSProp) Step(theta, grad []float32) {
	if len(r.v) != len(theta) {
		r.v = make([]float32, len(theta))
	}
	rate, decay, eps := float32(r.Rate), float32(r.Decay), float32(r.Eps)
	v := r.v[:len(theta)]
	for i, g := range grad[:len(theta)] {
		v[i] = decay*v[i] + (1-decay)*g*g
		theta[i] -= rate * g / root(v[i]+eps)
	}
	clear(grad)
}

func root(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// clip returns the factor that limits a gradient's norm to bound; 0 = no bound.
func clip(grad []float32, bound float64) float32 {
	if bound <= 0 {
		return 1
	}
	g := blas32.Vector{N: len(grad), Inc: 1, Data: grad}
	if norm := math.Sqrt(float64(blas32.Dot(g, g))); norm > bound {
		return float32(bound / norm)
	}
	return 1
}
