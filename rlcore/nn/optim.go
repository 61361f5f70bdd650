package nn

import "math"

// Optimiser moves parameters against a gradient.
type Optimiser interface {
	// Step changes theta by the gradient grad and clears grad.
	Step(theta, grad []float64)
	// State returns a copy of what the optimiser remembers. Restore sets it, for the
	// same kind of optimiser and number of parameters; errors wrap ErrShape.
	State() State
	Restore(s State) error
}

// Adam is Kingma and Ba's optimiser (ICLR 2015) with their constants.
type Adam struct {
	Rate float64
	// Clip bounds the gradient's norm; 0 = no bound.
	Clip float64

	m, v []float64
	t    int
}

// Step implements Optimiser.
func (a *Adam) Step(theta, grad []float64) {
	const b1, b2, eps = 0.9, 0.999, 1e-8
	if len(a.m) != len(theta) {
		a.m, a.v, a.t = make([]float64, len(theta)), make([]float64, len(theta)), 0
	}
	a.t++
	scale := clip(grad, a.Clip)
	rate := a.Rate * math.Sqrt(1-math.Pow(b2, float64(a.t))) / (1 - math.Pow(b1, float64(a.t)))
	for i, g := range grad {
		g *= scale
		a.m[i] = b1*a.m[i] + (1-b1)*g
		a.v[i] = b2*a.v[i] + (1-b2)*g*g
		theta[i] -= rate * a.m[i] / (math.Sqrt(a.v[i]) + eps)
		grad[i] = 0
	}
}

// RMSProp is Hinton's optimiser; DeepRM uses it with rate 0.001, decay 0.9 and
// eps 1e-9.
type RMSProp struct {
	Rate, Decay, Eps float64

	v []float64
}

// Step implements Optimiser.
func (r *RMSProp) Step(theta, grad []float64) {
	if len(r.v) != len(theta) {
		r.v = make([]float64, len(theta))
	}
	for i, g := range grad {
		r.v[i] = r.Decay*r.v[i] + (1-r.Decay)*g*g
		theta[i] -= r.Rate * g / math.Sqrt(r.v[i]+r.Eps)
		grad[i] = 0
	}
}

// clip returns the factor that limits a gradient's norm to bound; 0 = no bound.
func clip(grad []float64, bound float64) float64 {
	if bound <= 0 {
		return 1
	}
	sum := 0.0
	for _, g := range grad {
		sum += g * g
	}
	if norm := math.Sqrt(sum); norm > bound {
		return bound / norm
	}
	return 1
}
