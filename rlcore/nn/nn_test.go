package nn

import (
	"math"
	"math/rand/v2"
	"testing"
)

// loss is a quadratic in the outputs, so that its derivative is known.
func loss(y []float64) float64 {
	l := 0.0
	for i, v := range y {
		l += 0.5 * v * v * float64(i%3+1)
	}
	return l
}

func TestGradientAgainstFiniteDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, sizes := range [][]int{{3, 1}, {4, 5, 2}, {6, 8, 7, 3}} {
		m := New(sizes, 1, r)
		const n = 5
		x := make([]float64, n*sizes[0])
		for i := range x {
			x[i] = r.NormFloat64()
		}
		y := m.Forward(x, n)
		dy := make([]float64, len(y))
		for i, v := range y {
			dy[i] = v * float64(i%3+1)
		}
		m.Backward(dy)
		for i := range m.Theta {
			const h = 1e-6
			was := m.Theta[i]
			m.Theta[i] = was + h
			up := loss(m.Forward(x, n))
			m.Theta[i] = was - h
			down := loss(m.Forward(x, n))
			m.Theta[i] = was
			want := (up - down) / (2 * h)
			if math.Abs(want-m.Grad[i]) > 1e-4*math.Max(1, math.Abs(want)) {
				t.Fatalf("sizes %v: parameter %d: derivative %v, by differences %v", sizes, i, m.Grad[i], want)
			}
		}
	}
}

func TestOptimisersLearnAFunction(t *testing.T) {
	for name, opt := range map[string]Optimiser{
		"adam": &Adam{Rate: 0.01, Clip: 10}, "rmsprop": &RMSProp{Rate: 0.003, Decay: 0.9, Eps: 1e-9},
	} {
		r := rand.New(rand.NewPCG(3, 4))
		m := New([]int{2, 16, 16, 1}, 1, r)
		const n = 64
		x, dy := make([]float64, 2*n), make([]float64, n)
		mse := 0.0
		for range 2000 {
			for i := range x {
				x[i] = 2*r.Float64() - 1
			}
			y := m.Forward(x, n)
			mse = 0
			for i := range n {
				err := y[i] - math.Abs(x[2*i]-x[2*i+1])
				mse += err * err / n
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

func TestHotPathDoesNotAllocate(t *testing.T) {
	m := New([]int{40, 32, 32, 1}, 1, rand.New(rand.NewPCG(1, 1)))
	opt := &Adam{Rate: 1e-3}
	x, dy := make([]float64, 40*32), make([]float64, 32)
	step := func() {
		m.Forward(x, 32)
		m.Backward(dy)
		opt.Step(m.Theta, m.Grad)
	}
	step()
	if n := testing.AllocsPerRun(20, step); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

func BenchmarkForwardBackward(b *testing.B) {
	m := New([]int{40, 32, 32, 1}, 1, rand.New(rand.NewPCG(1, 1)))
	x, dy := make([]float64, 40*640), make([]float64, 640)
	for b.Loop() {
		m.Forward(x, 640)
		m.Backward(dy)
	}
}

func TestSparseGradientAgainstFiniteDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	s := NewSparse(12, 5, 4, 3, 1, r)
	pixels := []int32{0, 3, 7, 11}
	y := s.Forward(pixels)
	dy := make([]float64, len(y))
	for i, v := range y {
		dy[i] = v * float64(i%3+1)
	}
	s.Backward(dy)
	for i := range s.Theta {
		const h = 1e-6
		was := s.Theta[i]
		s.Theta[i] = was + h
		up := loss(s.Forward(pixels))
		s.Theta[i] = was - h
		down := loss(s.Forward(pixels))
		s.Theta[i] = was
		if want := (up - down) / (2 * h); math.Abs(want-s.Grad[i]) > 1e-4*math.Max(1, math.Abs(want)) {
			t.Fatalf("parameter %d: derivative %v, by differences %v", i, s.Grad[i], want)
		}
	}
}
