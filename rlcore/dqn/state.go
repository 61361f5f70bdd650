package dqn

import (
	"fmt"

	"github.com/slurmbridge/slurmbridge/rlcore/nn"
)

// State is where a training stands that can go on: the parameters it had reached,
// which needn't be those of the best validation, and what the optimiser of each
// block of them remembers.
//
// The replay memory isn't part of it: a training that goes on fills it anew, from
// episodes it plays itself, and copies the parameters to the target network at its
// start. It is reproducible, but not what one without a break would have been.
type State struct {
	Theta  [][]float64
	Optims []nn.State
}

func (l *learner) state() *State {
	s := &State{Theta: snapshot(l.net)}
	for _, o := range l.optims {
		s.Optims = append(s.Optims, o.State())
	}
	return s
}

// goOn sets the learner to where s stood. Errors wrap nn.ErrShape.
func (l *learner) goOn(s *State) error {
	blocks := l.net.Params()
	if len(s.Theta) != len(blocks) || len(s.Optims) != len(blocks) {
		return fmt.Errorf("train: going on: %w: %d blocks and %d optimisers for a network of %d", nn.ErrShape, len(s.Theta), len(s.Optims), len(blocks))
	}
	for i, b := range blocks {
		if n := len(s.Optims[i].V); len(s.Theta[i]) != len(b.Theta) || n != 0 && n != len(b.Theta) {
			return fmt.Errorf("train: going on: %w: %d parameters and %d mean squares for a block of %d", nn.ErrShape, len(s.Theta[i]), n, len(b.Theta))
		}
		if err := l.optims[i].Restore(s.Optims[i]); err != nil {
			return fmt.Errorf("train: going on: %w", err)
		}
	}
	restore(l.net, s.Theta)
	restore(l.target, s.Theta)
	return nil
}
