package nn

import (
	"fmt"
	"math"
	"slices"
)

// State is what an optimiser remembers between steps, so that training can be resumed.
// The zero State is that before the first step.
type State struct {
	Steps int       // taken so far; RMSProp doesn't count
	M     []float32 // Adam's mean of gradients; nil in RMSProp
	V     []float32 // mean of squared gradients
}

// check returns an error that wraps ErrShape for figures that no optimiser has.
func (s State) check() error {
	if s.Steps < 0 {
		return fmt.Errorf("%w: %d steps of the optimiser", ErrShape, s.Steps)
	}
	for i, v := range s.V {
		if !(v >= 0) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("%w: mean square %d of the optimiser is %v", ErrShape, i, v)
		}
	}
	for i, v := range s.M {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("%w: mean %d of the optimiser is %v", ErrShape, i, v)
		}
	}
	return nil
}

// State implements Optimiser.
func (a *Adam) State() State {
	return State{Steps: a.t, M: slices.Clone(a.m), V: slices.Clone(a.v)}
}

// Restore implements Optimiser.
func (a *Adam) Restore(s State) error {
	if err := s.check(); err != nil {
		return err
	}
	if len(s.M) != len(s.V) || (s.Steps == 0) != (len(s.V) == 0) {
		return fmt.Errorf("%w: %d means and %d mean squares after %d steps", ErrShape, len(s.M), len(s.V), s.Steps)
	}
	a.t, a.m, a.v = s.Steps, slices.Clone(s.M), slices.Clone(s.V)
	return nil
}

// State implements Optimiser.
func (r *RMSProp) State() State { return State{V: slices.Clone(r.v)} }

// Restore implements Optimiser.
func (r *RMSProp) Restore(s State) error {
	if err := s.check(); err != nil {
		return err
	}
	if s.Steps != 0 || len(s.M) != 0 {
		return fmt.Errorf("%w: an Adam's state for RMSProp", ErrShape)
	}
	r.v = slices.Clone(s.V)
	return nil
}
