// Package experiment lets policies compete: on the thesis's workloads, or on a trace. Every
// contender sees the same jobs on the same simulated GPUs; learning policies are trained first, and
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
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	_ "github.com/slurmbridge/slurmbridge/rlcore/lookahead" // its policy
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Scenario draws a job set.
type Scenario = dqn.Scenario

// World is what all contenders have in common.
type World struct {
	// Model makes a new interference model: what a site believes of slowdowns.
	Model func() *interference.Model
	// Guard holds what a site may set; its Predictor is filled in. It is copied.
	Guard rlcore.Guard
	M     int // window
	// Objective is what policies learn, and are tuned, to keep small; "" = the turnaround.
	Objective policy.Objective
}

// Contender is a policy ready to compete.
type Contender struct {
	Name   string
	TrainS float64 // wall time of training or tuning, s
	Note   string  // what was tuned or learned, for people

	world  *World
	policy func(m *interference.Model) rlcore.Policy
	bare   bool // held to the card's own rules only
	alone  bool // never shares
	sorted bool // sees the queue shortest first
	learns bool // its model learns from the co-runs it sees
}

// Names lists the contenders, in the order of a table. The clairvoyant is none: it isn't
// a policy (see sim.Clairvoyant).
func Names() []string { return policy.Names(policy.Contenders()) }

// Clairvoyant is the bound's name in tables.
const Clairvoyant = "clairvoyant"

// Fifo gives each job a GPU of its own; replays compare with it.
const Fifo = "fifo"

// Exclusive is Fifo under the name that the daemon's settings give it.
const Exclusive = "exclusive"

// Effort is how long learners may take.
type Effort struct {
	Rounds     int // of dqn
	FlatRounds int // of dqn_flat
	Iterations int // of the policy gradients
	Tune       int // job sets a knob is tuned on
	Checks     int // episodes of dqn's validations; 0 = its default
}

// Quick and Full are the two efforts of the experiment command.
var (
	Quick = Effort{Rounds: 15, FlatRounds: 1, Iterations: 3, Tune: 3, Checks: 6}
	Full  = Effort{Rounds: 240, FlatRounds: 20, Iterations: 100, Tune: 16}
)

// tools makes the full guard and its model.
func (w *World) tools() dqn.Tools {
	m := w.Model()
	g := w.Guard
	g.Predictor = m
	return dqn.Tools{Guard: &g, Predictor: m}
}

// bare makes the guard of policies with their own idea of what fits. Jobs that may not
// meet at all may not meet under them either.
func (w *World) bare() *rlcore.Guard {
	g := sim.Bare()
	g.MaxMembers = w.Guard.MaxMembers
	g.Predictor = w.Model()
	return g
}

// training makes a contender decide by what it learns on job sets of the scenario.
type training func(ctx context.Context, c *Contender, train Scenario, e Effort, seed uint64) error

// trainings are the learners' by name; each is added from the learner's own file.
var trainings = map[string]training{}

func addTraining(name string, t training) training {
	trainings[name] = t
	return t
}

// Prepare trains or tunes the contender of the given name on job sets of the
// scenario. The same seed gives the same contender.
func (w *World) Prepare(ctx context.Context, name string, train Scenario, e Effort, seed uint64) (*Contender, error) {
	spec, ok := policy.Named(name)
	if !ok || !spec.Contender && name != Exclusive {
		return nil, fmt.Errorf("%w: there is no policy %q; there are %s", ErrOptions, name, strings.Join(Names(), ", "))
	}
	c := &Contender{Name: name, world: w, bare: spec.Unguarded, alone: spec.Alone, sorted: spec.ShortestFirst}
	began := time.Now()
	var err error
	switch teach := trainings[name]; {
	case teach != nil:
		err = teach(ctx, c, train, e, seed)
	case len(spec.Knobs) > 0:
		err = c.tune(spec.Knobs, train, e, seed)
	default:
		make := func(m *interference.Model) (rlcore.Policy, error) {
			return spec.New(policy.Setup{Predictor: m, Seed: seed, Objective: w.Objective})
		}
		_, err = make(w.Model())
		c.policy = func(m *interference.Model) rlcore.Policy { p, _ := make(m); return p } // made once already
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if c.Note != "" {
		c.TrainS = time.Since(began).Seconds()
	}
	return c, nil
}

// tune keeps the setting with the smallest mean over the training sets of the objective.
func (c *Contender) tune(knobs []policy.Knob, train Scenario, e Effort, seed uint64) error {
	best, pick := math.Inf(1), 0
	cost := sim.CostOf(c.world.Objective)
	set := func(k int) {
		c.policy, c.Note = func(m *interference.Model) rlcore.Policy { return knobs[k].New(m) }, knobs[k].Note
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
			sum += cost(res)
		}
		if sum < best {
			best, pick = sum, k
		}
	}
	set(pick)
	return nil
}

// Decider is the contender with a guard and a model of its own.
func (c *Contender) Decider() *rlcore.Decider {
	tools := c.world.tools()
	return &rlcore.Decider{Policy: c.policy(tools.Predictor.(*interference.Model)), Guard: tools.Guard, M: c.world.M}
}

// Run lets the contender schedule the jobs of cfg.
func (c *Contender) Run(cfg sim.Config) (*sim.Result, error) {
	cfg.M = c.world.M
	d := c.Decider()
	model := d.Guard.Predictor.(*interference.Model)
	switch {
	case c.alone:
		// The whole queue is in sight, up to the largest window: this is cheap for policies that
		// never combine.
		d.Guard = sim.Bare()
		d.Guard.MaxMembers = 1
		d.M, cfg.M = rlcore.MaxWindow, rlcore.MaxWindow
		if c.sorted {
			jobs := cfg.Jobs
			cfg.Jobs = shortestFirst(jobs)
			res, err := sim.Run(cfg, d)
			if err != nil {
				return nil, err
			}
			inOrderOf(jobs, res)
			return res, nil
		}
	case c.bare:
		d.Guard = c.world.bare()
		cfg.Predictor = nil
	default:
		cfg.Predictor = model
		if c.learns {
			cfg.Observer = model.ObservePredicted
		}
	}
	return sim.Run(cfg, d)
}

// inOrderOf puts the result's jobs into the order in which the caller has them.
func inOrderOf(jobs []sim.Arrival, res *sim.Result) {
	at := make(map[string]int, len(jobs))
	for i := range jobs {
		at[jobs[i].ID] = i
	}
	slices.SortFunc(res.Jobs, func(a, b sim.Outcome) int { return cmp.Compare(at[a.ID], at[b.ID]) })
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

// Bound looks for the clairvoyant's schedule, in tries attempts, from the
// contenders' own results on. It keeps the guard's memory margin, which is a rule
// of the site and not a lack of knowledge.
func (w *World) Bound(cfg sim.Config, tries int, seed uint64, objective sim.Objective, from []*sim.Result) (*sim.Result, error) {
	margin := w.Guard.MemMargin
	if margin == 0 {
		margin = 0.05
	}
	cfg.GPUs = slices.Clone(cfg.GPUs)
	for i := range cfg.GPUs {
		cfg.GPUs[i].MemMiB *= 1 - margin
	}
	// A job that needs more than the margin leaves runs alone: the card is then its own. The search
	// gets as much of the card as the largest job needs.
	for i := range cfg.Jobs {
		for g := range cfg.GPUs {
			cfg.GPUs[g].MemMiB = max(cfg.GPUs[g].MemMiB, min(peak(&cfg.Jobs[i]), cfg.GPUs[g].MemMiB/(1-margin)))
		}
	}
	return sim.Clairvoyant(cfg, tries, seed, objective, from...)
}

// peak is the most memory a job really holds, MiB.
func peak(j *sim.Arrival) float64 {
	if j.Truth != nil {
		return j.Truth.Peak().MemMiB
	}
	return j.Profile.Peak().MemMiB
}
