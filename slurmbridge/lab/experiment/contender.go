// Package experiment lets policies compete: on the thesis's workloads, in worlds with measured slowdowns, or on a
// trace. Every contender sees the same jobs on the same simulated GPUs; learning policies are trained first, and
// policies with a parameter are tuned first, all on job sets that the competition doesn't use.
package experiment

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/deeprm"
)

const (
	// Fifo gives each job a GPU of its own; replays compare with it.
	Fifo = "fifo"
	// Exclusive is Fifo's name in the daemon's settings.
	Exclusive = "exclusive"
	// ours is the policy of the trade-off figure and of checkpoints.
	ours = pretrained.Name
)

// Names lists the contenders, in the order of a table.
func Names() []string { return policy.Names(policy.Contenders()) }

// World is what all contenders have in common.
type World struct {
	// Model makes a new interference model: what a site believes of slowdowns.
	Model func() *interference.Model
	// Slowdowns, if set, are the true ones, which decisions then know; see Options.Omniscient.
	Slowdowns sim.Truth
	Rules     rlcore.Rules // without a Predictor
	M         int          // window
	// Objective is what policies learn, and are tuned, to keep small; "" = the turnaround.
	Objective policy.Objective
	// Trained, if set, is dqn's network. Without it dqn is trained, or with BuiltIn decides by the network in the program.
	Trained *dqn.Scorer
	BuiltIn bool
	// AllGuarded holds policies with their own idea of what fits to the guard as well.
	AllGuarded bool
}

// Contender is a policy ready to compete.
type Contender struct {
	Name   string
	TrainS float64 // wall time of training or tuning, s
	Note   string  // what was tuned or learned, for people

	world  *World
	policy func(p rlcore.Predictor) rlcore.Policy
	bare   bool // held to the card's own rules only
	alone  bool // never shares
	sorted bool // sees the queue shortest first
}

// Effort is how long learners may take.
type Effort struct {
	Rounds     int // of dqn
	Iterations int // of the policy gradients
	Tune       int // job sets a knob is tuned on
	Checks     int // episodes of dqn's validations; 0 = its default
}

// Quick and Full are the two efforts of the experiment command.
var (
	Quick = Effort{Rounds: 15, Iterations: 3, Tune: 3, Checks: 6}
	Full  = Effort{Rounds: 240, Iterations: 100, Tune: 16}
)

// guard makes the full guard, with a model.
func (w *World) guard() *rlcore.Guard {
	r := w.Rules
	r.Predictor = w.Model()
	if w.Slowdowns != nil {
		r.Predictor = &knowing{w.Model(), w.Slowdowns}
	}
	return rlcore.NewGuard(r)
}

// knowing predicts the true slowdowns, and forbids what the model does.
type knowing struct {
	*interference.Model
	truth sim.Truth
}

// Predict implements rlcore.Predictor.
func (k *knowing) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, members []*rlcore.Profile) {
	for i, slowdown := range k.truth.Slowdowns(nil, members, nil) {
		dst[i] = rlcore.Prediction{Slowdown: slowdown}
	}
}

// Pace implements rlcore.Pacer: measured slowdowns hold over the whole run.
func (k *knowing) Pace(dst []rlcore.Prediction, spec *rlcore.GPUSpec, members []*rlcore.Profile, _ []float64) {
	k.Predict(dst, spec, members)
}

// bare makes the guard of policies with their own idea of what fits. Jobs that may not
// meet at all may not meet under them either.
func (w *World) bare() *rlcore.Guard {
	g := sim.Bare()
	g.Predictor = w.Model()
	return g
}

// gradient trains a policy of the literature by its policy gradient.
func (c *Contender) gradient(ctx context.Context, train dqn.Scenario, e Effort, seed uint64) error {
	a := deeprm.New(deeprm.Kind(c.Name), c.world.M, rand.New(rand.NewPCG(seed, 0xd3)))
	c.Note = fmt.Sprintf("%d iterations", e.Iterations)
	c.policy = func(rlcore.Predictor) rlcore.Policy { return a.Alias() }
	return a.Train(ctx, seed, e.Iterations, train, c.world.bare)
}

// network makes a contender decide by World.Trained, by the network in the program, or by one that it trains.
func (c *Contender) network(ctx context.Context, train dqn.Scenario, e Effort, seed uint64) (err error) {
	w := c.world
	net := c.world.Trained
	switch {
	case net != nil:
	case w.BuiltIn:
		cp, err := pretrained.Checkpoint(w.Objective)
		if err != nil {
			return err
		}
		if net, err = cp.Network(w.Model()); err != nil {
			return err
		}
	default:
		net = dqn.NewScorer(cmp.Or(w.Objective, policy.Turnaround), 32, w.Model(), rand.New(rand.NewPCG(seed, 0x0e7)))
		t := &dqn.Trainer{
			Options: dqn.Options{Seed: seed, Rounds: e.Rounds, M: w.M, Checks: e.Checks},
			Net:     net, Scenario: train, Guard: w.guard,
		}
		err = t.Train(ctx)
		c.Note = fmt.Sprintf("best of %d rounds: %d (validation %.3f of %s)", e.Rounds, t.BestRound, t.Best, t.Against())
	}
	c.policy = func(p rlcore.Predictor) rlcore.Policy { return dqn.Searching(c.Name, net, p) }
	return err
}

// Prepare trains or tunes the contender of the given name on job sets of the
// scenario. The same seed gives the same contender.
func (w *World) Prepare(ctx context.Context, name string, train dqn.Scenario, e Effort, seed uint64) (*Contender,
	error,
) {
	spec, ok := policy.Named(name)
	if !ok || !spec.Contender {
		return nil, optionError(fmt.Sprintf("policies: there is no policy %q; there are %s", name,
			strings.Join(Names(), ", ")))
	}
	c := &Contender{
		Name: name, world: w, bare: spec.Unguarded && !w.AllGuarded, alone: spec.Alone,
		sorted: spec.ShortestFirst,
	}
	began := time.Now()
	var err error
	switch {
	case name == ours:
		err = c.network(ctx, train, e, seed)
	case spec.New == nil:
		err = c.gradient(ctx, train, e, seed)
	case len(spec.Knobs) > 0:
		err = c.tune(spec.Knobs, train, e, seed)
	default:
		make := func(p rlcore.Predictor) (rlcore.Policy, error) {
			return spec.New(policy.Setup{Predictor: p, Seed: seed})
		}
		_, err = make(w.Model())
		c.policy = func(p rlcore.Predictor) rlcore.Policy { made, _ := make(p); return made } // made once already
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	switch {
	case c.Note != "":
		c.TrainS = time.Since(began).Seconds()
	case name == ours && w.Trained == nil:
		c.Note = pretrained.BuiltIn
	}
	return c, nil
}

// tune keeps the setting with the smallest mean over the training sets of the objective.
func (c *Contender) tune(knobs []policy.Knob, train dqn.Scenario, e Effort, seed uint64) error {
	best := math.Inf(1)
	pick := 0
	set := func(k int) {
		c.policy = knobs[k].New
		c.Note = knobs[k].Note
	}
	for k := range knobs {
		set(k)
		sum := 0.0
		for i := range e.Tune {
			cfg, err := train(rand.New(rand.NewPCG(seed^0x7e7e, uint64(i))))
			if err != nil {
				return err
			}
			res, err := c.Run(cfg)
			if err != nil {
				return err
			}
			sum += res.Cost(c.world.Objective)
		}
		if sum < best {
			best = sum
			pick = k
		}
	}
	set(pick)
	return nil
}

// Decider is the contender with a guard and a model of its own.
func (c *Contender) Decider() *rlcore.Decider {
	g := c.world.guard()
	return &rlcore.Decider{Policy: c.policy(g.Predictor), Guard: g, M: c.world.M}
}

// Run lets the contender schedule the jobs of cfg. Under the guard its model learns from the
// co-runs it sees, as the daemon's does.
func (c *Contender) Run(cfg sim.Config) (*sim.Result, error) {
	cfg.M = c.world.M
	d := c.Decider()
	jobs := cfg.Jobs
	switch {
	case c.alone:
		// The whole queue is in sight, up to the largest window: this is cheap for policies that never combine.
		d.Guard = sim.Bare()
		d.Guard.MaxMembers = 1
		d.M = rlcore.MaxWindow
		cfg.M = rlcore.MaxWindow
		if c.sorted {
			cfg.Jobs = shortestFirst(jobs)
		}
	case c.bare:
		d.Guard = c.world.bare()
		cfg.Predictor = nil
	default:
		cfg.Predictor = d.Guard.Predictor
		cfg.MaxSlowdown = d.Guard.MaxSlowdown
		if model, learns := d.Guard.Predictor.(*interference.Model); learns {
			cfg.Observer = model
		}
	}
	res, err := sim.Run(cfg, d)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	if c.sorted { // into the caller's order
		at := make(map[string]int, len(jobs))
		for i := range jobs {
			at[jobs[i].ID] = i
		}
		slices.SortFunc(res.Jobs, func(a, b sim.Outcome) int { return cmp.Compare(at[a.ID], at[b.ID]) })
	}
	return res, nil
}

// shortestFirst orders jobs that arrive together by their known length. Their plain ends stay those
// of the original order, which their priorities keep.
func shortestFirst(jobs []sim.Arrival) []sim.Arrival {
	out := slices.Clone(jobs)
	slices.SortStableFunc(out, func(a, b sim.Arrival) int { return cmp.Compare(a.SubmitS, b.SubmitS) })
	for i := range out {
		out[i].Priority = -float64(i)
	}
	length := func(j *sim.Arrival) float64 {
		if j.Profile == nil {
			return math.Inf(1)
		}
		return j.Profile.DurationS
	}
	slices.SortStableFunc(out, func(a, b sim.Arrival) int {
		return cmp.Or(cmp.Compare(a.SubmitS, b.SubmitS), cmp.Compare(length(&a), length(&b)))
	})
	return out
}

// Learn gives the world a past: n job sets of the scenario, run under greedy, from which the interference model learns
// as a site's does, from the whole run times of jobs and their co-runners. From then on every contender starts with
// what was learned. The competition uses other job sets.
func (w *World) Learn(train dqn.Scenario, n int, seed uint64) error {
	g := w.guard()
	m := g.Predictor.(*interference.Model)
	for i := range n {
		cfg, err := train(rand.New(rand.NewPCG(seed^0x9a57, uint64(i))))
		if err != nil {
			return err
		}
		cfg.M = w.M
		cfg.Predictor = m
		cfg.Observer = m
		cfg.MaxSlowdown = g.MaxSlowdown
		d := &rlcore.Decider{Policy: baseline.NewThroughput("greedy", m, 0), Guard: g, M: w.M}
		if _, err := sim.Run(cfg, d); err != nil {
			return fmt.Errorf("a past job set: %w", err)
		}
	}
	w.Model = m.Clone
	return nil
}
