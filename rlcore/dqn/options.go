package dqn

import (
	"reflect"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Options are the hyper-parameters. A zero field means its default.
type Options struct {
	Seed     uint64
	M        int     // window
	Rounds   int     //
	Episodes int     // per round
	Steps    int     // gradient steps per round
	Batch    int     // transitions or lessons per step
	Rate     float64 // of the optimiser at the start; a tenth of it at the end
	Clip     float64 // bound of the gradient's norm
	Check    int     // rounds between validations
	Checks   int     // episodes of a validation
	EpsFrom  float64 // probability of a random choice at the start
	EpsTo    float64 // and at the end

	// Of Q-learning alone.
	NStep    int     // least number of decisions that a return covers
	Span     float64 // least time that it covers, in mean solo durations
	Gamma    float64 // discount for one mean solo duration
	Capacity int     // of the replay memory, transitions
	Alpha    float64 // exponent of the priorities
	Beta     float64 // exponent of the importance weights at the start; 1 at the end
	Target   int     // gradient steps between copies to the target network
}

var defaults = Options{
	M: rlcore.DefaultWindow, Rounds: 240, Episodes: 4, Steps: 64, Batch: 32, NStep: 4, Span: 1, Gamma: 0.99, Rate: 3e-3,
	Clip:     5,
	Capacity: 20000, Alpha: 0.6, Beta: 0.4, Target: 100, EpsFrom: 0.3, EpsTo: 0.02, Check: 5, Checks: 16,
}

func (o Options) orDefaults() Options {
	own, of := reflect.ValueOf(&o).Elem(), reflect.ValueOf(defaults)
	for i := range own.NumField() {
		if own.Field(i).IsZero() {
			own.Field(i).Set(of.Field(i))
		}
	}
	return o
}

// epsilon is the probability of a random choice once a fraction done of all rounds
// is over: it falls linearly over two thirds of them.
func (o *Options) epsilon(done float64) float64 {
	return o.EpsTo + (o.EpsFrom-o.EpsTo)*max(0, 1-1.5*done)
}
