package dqn

import (
	"cmp"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Options are the hyper-parameters. A zero field means its default.
type Options struct {
	Seed     uint64
	M        int     // window; default rlcore.DefaultWindow
	Rounds   int     // default 240
	Episodes int     // per round; default 4
	Steps    int     // gradient steps per round; default 64
	Batch    int     // transitions per step; default 32
	NStep    int     // least number of decisions that a return covers; default 4
	Span     float64 // least time that it covers, in mean solo durations; default 1
	Gamma    float64 // discount for one mean solo duration; default 0.99
	Rate     float64 // of the optimiser at the start; a tenth of it at the end; default 3e-3
	Clip     float64 // bound of the gradient's norm; default 5
	Capacity int     // of the replay memory, transitions; default 20000
	Alpha    float64 // exponent of the priorities; default 0.6
	Beta     float64 // exponent of the importance weights at the start; 1 at the end; default 0.4
	Target   int     // gradient steps between copies to the target network; default 100
	EpsFrom  float64 // probability of a random choice at the start; default 0.3
	EpsTo    float64 // and at the end; default 0.02
	Check    int     // rounds between validations; default 5
	Checks   int     // episodes of a validation; default 16
	Rewards  bool    // for the turnaround, too, learn from rewards instead of decisions that are played out
	Plain    bool    // single estimates, for comparison
	RMSProp  bool    // instead of Adam, with DeepRM's decay and eps
}

func (o Options) orDefaults() Options {
	o.M = cmp.Or(o.M, rlcore.DefaultWindow)
	o.Rounds = cmp.Or(o.Rounds, 240)
	o.Episodes = cmp.Or(o.Episodes, 4)
	o.Steps = cmp.Or(o.Steps, 64)
	o.Batch = cmp.Or(o.Batch, 32)
	o.NStep = cmp.Or(o.NStep, 4)
	o.Span = cmp.Or(o.Span, 1)
	o.Gamma = cmp.Or(o.Gamma, 0.99)
	o.Rate = cmp.Or(o.Rate, 3e-3)
	o.Clip = cmp.Or(o.Clip, 5)
	o.Capacity = cmp.Or(o.Capacity, 20000)
	o.Alpha = cmp.Or(o.Alpha, 0.6)
	o.Beta = cmp.Or(o.Beta, 0.4)
	o.Target = cmp.Or(o.Target, 100)
	o.EpsFrom = cmp.Or(o.EpsFrom, 0.3)
	o.EpsTo = cmp.Or(o.EpsTo, 0.02)
	o.Check = cmp.Or(o.Check, 5)
	o.Checks = cmp.Or(o.Checks, 16)
	return o
}

// teach reports whether a network learns from decisions that are played out.
func (o *Options) teach(net Network) bool { return !o.Rewards && net.Objective() == policy.Turnaround }

// optimiser is the optimiser's name in a checkpoint.
func (o *Options) optimiser() string {
	if o.RMSProp {
		return rmsprop
	}
	return adam
}

// epsilon is the probability of a random choice once a fraction done of all rounds
// is over: it falls linearly over two thirds of them.
func (o *Options) epsilon(done float64) float64 {
	return o.EpsTo + (o.EpsFrom-o.EpsTo)*max(0, 1-1.5*done)
}
