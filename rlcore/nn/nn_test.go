package nn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// loss is a quadratic in the outputs, so that its derivative is known.
func loss(y []float32) float64 {
	l := 0.0
	for i, v := range y {
		l += 0.5 * float64(v) * float64(v) * float64(i%3+1)
	}
	return l
}

func TestGradientAgainstFiniteDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, sizes := range [][]int{{3, 1}, {4, 5, 2}, {6, 8, 7, 3}} {
		m := New(sizes, 1, r)
		const n = 5
		x := make([]float32, n*sizes[0])
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		forward := func() []float32 { return m.Forward(x, n) }
		m.Backward(slope(forward()))
		t.Run(fmt.Sprint(sizes), func(t *testing.T) { checkGradient(t, m.Block, forward) })
	}
}

// slope is loss's derivative.
func slope(y []float32) []float32 {
	dy := make([]float32, len(y))
	for i, v := range y {
		dy[i] = v * float32(i%3+1)
	}
	return dy
}

// checkGradient compares b's gradient with differences of the loss. Between the bends of the
// ReLUs the loss is a quadratic of each parameter, for which central differences are exact, so
// that their step can be large beside what float32 rounds off.
func checkGradient(t *testing.T, b Block, forward func() []float32) {
	t.Helper()
	for i, was := range b.Theta {
		const h = 1.0 / 1024
		b.Theta[i] = was + h
		up := loss(forward())
		b.Theta[i] = was - h
		down := loss(forward())
		b.Theta[i] = was
		want := (up - down) / (2 * h)
		if got := float64(b.Grad[i]); math.Abs(want-got) > 5e-3*math.Max(1, math.Abs(want)) {
			t.Fatalf("parameter %d: derivative %v, by differences %v", i, got, want)
		}
	}
}

func TestOptimisersLearnAFunction(t *testing.T) {
	for name, opt := range map[string]interface{ Step(theta, grad []float32) }{
		"adam": &Adam{Rate: 0.01, Clip: 10}, "rmsprop": &RMSProp{Rate: 0.003, Decay: 0.9, Eps: 1e-9},
	} {
		r := rand.New(rand.NewPCG(3, 4))
		m := New([]int{2, 16, 16, 1}, 1, r)
		const n = 64
		x, dy := make([]float32, 2*n), make([]float32, n)
		mse := 0.0
		for range 2000 {
			for i := range x {
				x[i] = 2*r.Float32() - 1
			}
			y := m.Forward(x, n)
			mse = 0
			for i := range n {
				err := y[i] - max(x[i]-x[n+i], x[n+i]-x[i])
				mse += float64(err * err / n)
				dy[i] = 2 * err / n
			}
			m.Backward(dy)
			opt.Step(m.Theta, m.Grad)
		}
		if mse > 0.01 {
			t.Errorf("%s: mean squared error %v of |a−b| after 2000 steps", name, mse)
		}
	}
}

func TestSparseGradientAgainstFiniteDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	s := NewSparse(12, 5, 4, 3, 1, r)
	pictures := [][]int32{{0, 3, 7, 11}, {}, {1, 3, 4}}
	forward := func() []float32 { return s.Forward(pictures) }
	s.Backward(slope(forward()))
	checkGradient(t, s.Block, forward)
}
