package nn

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// TestOptimiserGoesOn: one that takes over another's state does what the other
// would have done.
func TestOptimiserGoesOn(t *testing.T) {
	for name, make := range map[string]func() Optimiser{
		"adam":    func() Optimiser { return &Adam{Rate: 0.1, Clip: 1} },
		"rmsprop": func() Optimiser { return &RMSProp{Rate: 0.1, Decay: 0.9, Eps: 1e-9} },
	} {
		run := func(theta []float32, opt Optimiser, from, to int) {
			for k := from; k < to; k++ {
				grad := []float32{float32(math.Sin(float64(k))), theta[0] - 3}
				opt.Step(theta, grad)
			}
		}
		whole := []float32{1, 2}
		run(whole, make(), 0, 20)
		parts := []float32{1, 2}
		first, second := make(), make()
		run(parts, first, 0, 9)
		state := first.State()
		first.Step([]float32{0, 0}, []float32{7, 7}) // the state is a copy
		if err := second.Restore(state); err != nil {
			t.Fatal(err)
		}
		run(parts, second, 9, 20)
		if !slices.Equal(whole, parts) {
			t.Errorf("%s: %v at once, %v in two parts", name, whole, parts)
		}
	}
}

func TestRestoreRefusesWhatCannotBe(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, s := range []State{
		{Steps: -1},
		{Steps: 1},
		{Steps: 0, M: []float32{1}, V: []float32{1}},
		{Steps: 1, M: []float32{1}, V: []float32{1, 2}},
		{Steps: 1, M: []float32{nan}, V: []float32{1}},
		{Steps: 1, M: []float32{1}, V: []float32{-1}},
		{Steps: 1, M: []float32{1}, V: []float32{inf}},
	} {
		if err := (&Adam{}).Restore(s); !errors.Is(err, ErrShape) {
			t.Errorf("Adam takes %+v: %v", s, err)
		}
	}
	for _, s := range []State{{Steps: 1}, {M: []float32{1}, V: []float32{1}}, {V: []float32{nan}}} {
		if err := (&RMSProp{}).Restore(s); !errors.Is(err, ErrShape) {
			t.Errorf("RMSProp takes %+v: %v", s, err)
		}
	}
}
