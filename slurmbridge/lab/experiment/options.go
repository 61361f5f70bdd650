package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Options are the settings of a competition, which stand in its report. A zero field means its default.
type Options struct {
	Policies []string `json:"-"`      // the report has a line of each
	Seeds    int      `json:"seeds"`  // job sets, or of a replay trainings and random choices
	Seed     uint64   `json:"seed"`   // the first of them
	M        int      `json:"window"` // of decisions
	// Objective is what policies learn, and are tuned, to keep small. Default: the makespan where all
	// jobs are submitted at once, else the turnaround.
	Objective policy.Objective `json:"objective,omitempty"`
	Effort    Effort           `json:"-"`
	// MaxSlowdown and Grace are the contract of every job; see rlcore.Guard.
	MaxSlowdown float64 `json:"max_slowdown"`
	Grace       float64 `json:"grace"`
	// DurationError, if set, is how well the site knows how long each job will take: decisions see
	// the job's own duration times a factor drawn from 1 ± this, 0..1. nil: they see its
	// application's profile instead, and what past runs foretell.
	DurationError *float64 `json:"duration_error,omitempty"`
	// Omniscient: where slowdowns were measured, decisions know each job's duration and the true slowdowns, as by perfect
	// predictions.
	Omniscient bool `json:"omniscient,omitempty"`
	// Trained, if set, is dqn's network; see World.Trained.
	Trained *dqn.Scorer `json:"-"`
	// Progress, if set, is called with what begins: step of steps.
	Progress func(step, steps int, what string) `json:"-"`

	// Workloads are the places of Run; default all of their kind.
	Workloads []string `json:"worlds,omitempty"`
	// History is how many job sets a site of the thesis's has run before, of each workload, and
	// learned slowdowns from (see World.Learn). 0: it knows solo profiles only.
	History int `json:"history,omitempty"`

	// Loads, GPUs and Jobs are those where jobs come over time.
	Loads []float64 `json:"loads,omitempty"` // 0 = all jobs come at once
	GPUs  int       `json:"gpus"`
	Jobs  int       `json:"jobs"`
}

// Kind is a kind of competition: what its options default to.
type Kind struct {
	window, seeds, gpus, jobs int
	loads                     []float64 // 0 = all jobs come at once
	effort                    Effort
	policies, places          func() []string // the default ones; all that there are
}

// The kinds of competition.
var (
	OnWorkloads = Kind{5, 10, 1, JobsPerWorkload, []float64{0}, Full, Names, Workloads}
	InWorlds    = Kind{rlcore.DefaultWindow, 10, 2, 300, []float64{0.7, 0.9, 1.1}, Effort{Tune: 4}, WorldPolicies, Worlds}
	OnTrace     = Kind{
		rlcore.DefaultWindow, 1, 1, 2, []float64{0}, Effort{Rounds: 40, Iterations: 40, Tune: 8}, ReplayPolicies, nil,
	}
)

// ErrOptions marks options that make no sense.
var ErrOptions = errors.New("bad options")

// optionError names an option as the command line does, and what is wrong with it.
type optionError string

func (e optionError) Error() string      { return string(e) }
func (optionError) Is(target error) bool { return target == ErrOptions }

// mostSets bounds the job sets: more take days.
const mostSets = 10_000

// Check fills in defaults and refuses what makes no sense; errors are ErrOptions. Names of policies
// may be written with other letters' cases.
func (o *Options) Check(k *Kind) error {
	o.Seeds = cmp.Or(o.Seeds, k.seeds)
	o.M = cmp.Or(o.M, k.window)
	o.Effort = cmp.Or(o.Effort, k.effort)
	o.GPUs = cmp.Or(o.GPUs, k.gpus)
	o.Jobs = cmp.Or(o.Jobs, k.jobs)
	bad := func(format string, args ...any) error { return optionError(fmt.Sprintf(format, args...)) }
	if len(o.Policies) == 0 {
		o.Policies = k.policies()
	}
	var names []string
	for _, p := range o.Policies {
		p = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(p)), "-", "_")
		switch {
		case p == Exclusive:
			names = append(names, Fifo)
		case !slices.Contains(Names(), p):
			return bad("policies: there is no policy %q; there are %s", p, strings.Join(Names(), ", "))
		default:
			names = append(names, p)
		}
	}
	if !slices.Contains(names, Fifo) {
		names = slices.Insert(names, 0, Fifo)
	}
	o.Policies = uniq(names)
	if k.places != nil {
		if len(o.Workloads) == 0 {
			o.Workloads = k.places()
		}
		o.Workloads = uniq(o.Workloads)
		for _, wl := range o.Workloads {
			if !slices.Contains(k.places(), wl) {
				return bad("workloads: there is no workload %q; there are %s", wl, strings.Join(k.places(), ", "))
			}
		}
	}
	if len(o.Loads) == 0 {
		o.Loads = k.loads
	}
	for _, load := range o.Loads {
		if !(load > 0 && load <= 10) && k.loads[0] > 0 {
			return bad("loads: a load of %v, not above 0 and up to 10", load)
		}
	}
	if o.Seeds < 1 || o.Seeds > mostSets || o.M < 1 || o.M > rlcore.MaxWindow {
		return bad("seeds %d, --window %d: 1 to %d seeds, a window of 1 to %d", o.Seeds, o.M, mostSets, rlcore.MaxWindow)
	}
	if o.GPUs < 1 || o.Jobs < 2 {
		return bad("gpus %d, %d jobs: at least one GPU, and two jobs", o.GPUs, o.Jobs)
	}
	if k.loads[0] > 0 {
		o.History = 0
	}
	if o.History < 0 || o.History > mostSets {
		return bad("history is %d, not 0 to %d", o.History, mostSets)
	}
	if e := o.DurationError; e != nil && !(*e >= 0 && *e < 1) {
		return bad("duration-error is %v, but takes a part from 0 to below 1, such as 0.2", *e)
	}
	if o.Objective != "" {
		if _, err := policy.ObjectiveNamed(string(o.Objective)); err != nil {
			return bad("objective: %v", err)
		}
	}
	return nil
}

// steps returns a function to call as each policy begins, in so many contests; it reports to Progress.
func (o *Options) steps(contests int) func(what string) {
	step := 0
	return func(what string) {
		if o.Progress != nil {
			o.Progress(step, contests*len(o.Policies), what)
		}
		step++
	}
}

// uniq returns xs in their order without repetitions.
func uniq(xs []string) []string {
	var out []string
	for _, x := range xs {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}
