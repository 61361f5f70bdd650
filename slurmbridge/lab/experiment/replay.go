package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
	"github.com/slurmbridge/slurmbridge/slurmbridge/replay"
)

// Trace is a site's past: its jobs, what their applications use alone, and, where
// they were measured, the slowdowns of pairs.
type Trace struct {
	Jobs     []history.Run
	Profiles []*rlcore.Profile
	// Pairs are measured slowdowns of pairs and of groups. If there are any they are the truth, composed for groups that
	// weren't measured as sim.Measured does; jobs may meet only if their pair was measured in both directions.
	Pairs []trace.Pair
	// Observed are slowdowns that the site has seen before and learned from.
	Observed []trace.Pair
	GPUs     []rlcore.GPUSpec
	Law      *contention.Law // how sharers slow each other where Pairs doesn't say; nil = MPS
}

// ErrTrace marks a trace that can't be replayed.
var ErrTrace = errors.New("can't replay")

// Replayable is a Trace made ready.
type Replayable struct {
	Config sim.Config
	World  *World
	// Closed: all jobs are submitted at once, so that the makespan says how well
	// they were packed. Elsewhere it mostly says when the last one came.
	Closed bool
	// Skipped counts the jobs that are left out, by reason. Unknown counts the jobs of unknown applications, which hold
	// their GPUs unshared.
	Skipped table.Skipped
	Unknown int
}

// law is Law or its default.
func (t *Trace) law() *contention.Law { return cmp.Or(t.Law, &contention.MPS) }

// Ready checks a trace. Errors wrap ErrTrace and name the job or application.
//
// A job's real run takes the duration its line gives, in its application's shape; decisions see the application's
// profile, and what the runs that have ended by then foretell.
func (t *Trace) Ready(o *Options) (*Replayable, error) {
	profiles := map[string]*rlcore.Profile{}
	for _, p := range t.Profiles {
		if profiles[p.App] != nil {
			return nil, fmt.Errorf("%w: there are two profiles of %q", ErrTrace, p.App)
		}
		profiles[p.App] = t.known(p)
	}
	r, err := t.without(o)
	if err != nil {
		return nil, err
	}
	r.Closed = true
	if err := t.readyJobs(r, profiles); err != nil {
		return nil, err
	}
	if len(r.Config.Jobs) == 0 {
		return nil, fmt.Errorf("%w: no job is left of %d (%v)", ErrTrace, len(t.Jobs), r.Skipped)
	}
	return r, nil
}

// without makes all but the jobs ready.
func (t *Trace) without(o *Options) (*Replayable, error) {
	r := &Replayable{
		Skipped: table.Skipped{},
		Config:  sim.Config{GPUs: slices.Clone(t.GPUs), Truth: sim.Law{Law: t.law()}, Foretell: true},
	}
	model, err := t.measured(&r.Config)
	if err != nil {
		return nil, err
	}
	r.World = &World{
		M: o.M, Model: model.Clone, Trained: o.Trained,
		Rules: rlcore.Rules{MaxSlowdown: o.MaxSlowdown, Grace: o.Grace, ExtendLimit: true},
	}
	return r, nil
}

// measured makes the measured slowdowns, where there are any, the truth of cfg, and returns a
// model that knows which pairs may not meet, and what was observed.
func (t *Trace) measured(cfg *sim.Config) (*interference.Model, error) {
	model := interference.New(t.law())
	trace.Teach(model, &t.GPUs[0], t.Profiles, t.Observed)
	if len(t.Pairs) == 0 {
		return model, nil
	}
	table := sim.NewMeasured()
	for _, p := range t.Pairs {
		table.Add(p.Slowdown, p.Victim, append([]string{p.Aggressor}, p.More...)...)
	}
	cfg.Truth = table
	for i, a := range t.Profiles {
		lacking := 0
		for _, b := range t.Profiles[i:] {
			if !table.Lacks(a.App, b.App) {
				continue
			}
			lacking++
			if lacking > interference.MostOthers { // the model would forget the first of them, and they would meet
				return nil, fmt.Errorf("%w: more than %d pairs of %q weren't measured both ways: leave out the profiles of "+
					"applications that it never met", ErrTrace, interference.MostOthers, a.App)
			}
			model.Forbid(a.Identity(), b.Identity())
		}
	}
	return model, nil
}

// known returns an application's profile as a site has it before any of the trace's runs: where these have lengths of
// their own and the profile doesn't say how far they differ, the site takes it that they differ as others' do.
func (t *Trace) known(p *rlcore.Profile) *rlcore.Profile {
	own := func(j history.Run) bool { return j.App == p.App && j.Took() }
	if p.DurationSD > 0 || !slices.ContainsFunc(t.Jobs, own) {
		return p
	}
	q := *p
	q.DurationSD = q.DurationS * math.Sqrt(math.Expm1(unknownSigma*unknownSigma))
	return &q
}

// readyJobs adds the trace's jobs, or counts them as left out.
func (t *Trace) readyJobs(r *Replayable, profiles map[string]*rlcore.Profile) error {
	largest := 0.0
	for _, g := range t.GPUs {
		largest = max(largest, g.MemMiB)
	}
	var first time.Time
	if len(t.Jobs) > 0 {
		first = slices.MinFunc(t.Jobs, func(a, b history.Run) int { return a.Ready.Compare(b.Ready) }).Ready
	}
	type run struct {
		app     string
		seconds float64
	}
	stretched := map[run]*rlcore.Profile{}
	for _, j := range t.Jobs {
		j.Profile = profiles[j.App]
		p := j.Profile
		switch {
		case p == nil:
			p = unknown(&j)
			r.Unknown++
		case p.Peak().MemMiB > largest:
			r.Skipped["more memory than a GPU has"]++
			continue
		case !j.Took() && !trace.HasDuration(p):
			return fmt.Errorf("%w: job %s: neither its line nor the profile of %q says how long it takes",
				ErrTrace, j.Ref, j.App)
		}
		of := run{j.App, cmp.Or(j.DurationS(), p.DurationS)}
		if stretched[of] == nil {
			stretched[of] = p.Stretched(of.seconds)
		}
		n := replay.Arrival(&j, first, stretched[of])
		n.Foreign = n.Foreign || j.Profile == nil
		if !r.Config.Room(&n) {
			r.Skipped["more GPUs than there are"]++
			continue
		}
		if !trace.HasDuration(p) {
			n.Profile = n.Truth
		}
		r.Closed = r.Closed && n.SubmitS == 0
		r.Config.Jobs = append(r.Config.Jobs, n)
	}
	if r.Unknown > 0 && r.Unknown == len(r.Config.Jobs) {
		return fmt.Errorf("%w: no profile has the name of one of its %d jobs, such as %q", ErrTrace, r.Unknown, t.Jobs[0].App)
	}
	return nil
}

// unknown is the profile of a job of an unknown application, which shares its GPUs with no job.
func unknown(j *history.Run) *rlcore.Profile {
	return &rlcore.Profile{App: j.App, DurationS: j.DurationS(), PeriodS: j.DurationS(), Series: []rlcore.Use{{GPU: 1}}}
}

// knowing returns r with decisions that see each job's own duration, times a factor that the seed draws from 1 ± wrong.
func (r *Replayable) knowing(wrong float64, seed uint64) *Replayable {
	rnd := rand.New(rand.NewPCG(seed, 0xd0e)) //nolint:gosec // a replay is repeatable, not secret
	out := *r
	out.Config.Jobs = slices.Clone(r.Config.Jobs)
	out.Config.Foretell = false
	for i := range out.Config.Jobs {
		j := &out.Config.Jobs[i]
		if j.Profile == nil {
			continue
		}
		known := *j.Truth.Stretched(j.Truth.DurationS * (1 + wrong*(2*rnd.Float64()-1)))
		known.DurationSD = wrong / math.Sqrt(3) * known.DurationS // of the factor
		j.Profile = &known
	}
	return &out
}

// believedLaw is the scenario learners train on: job sets like the trace's in a world that follows the site's own
// belief, since the truth isn't theirs to know. The jobs are drawn from the trace; where they come over time, at random
// times with the same density.
func (r *Replayable) believedLaw(law *contention.Law) dqn.Scenario {
	jobs := slices.DeleteFunc(slices.Clone(r.Config.Jobs), func(j sim.Arrival) bool { return j.Profile == nil })
	last := 0.0
	for i := range jobs {
		last = max(last, jobs[i].SubmitS)
	}
	gap := last / float64(max(1, len(jobs)-1))
	n := min(max(20, 15*len(r.Config.GPUs)), 60)
	return func(rnd *rand.Rand) (sim.Config, error) {
		cfg := sim.Config{GPUs: r.Config.GPUs, Truth: sim.Law{Law: law}}
		at := 0.0
		for i := range n {
			j := jobs[rnd.IntN(len(jobs))]
			j.ID = fmt.Sprint(i)
			j.Truth = j.Profile // no other truth is known
			// A job that is ended early would look like time won.
			j.LimitS = 0
			j.SubmitS = at
			at += gap * rnd.ExpFloat64()
			cfg.Jobs = append(cfg.Jobs, j)
		}
		return cfg, nil
	}
}

// Training is the scenario of a trace: job sets like its own.
func (t *Trace) Training(m int) (dqn.Scenario, *World, error) {
	r, err := t.Ready(&Options{M: m})
	if err != nil {
		return nil, nil, err
	}
	return r.believedLaw(t.law()), r.World, nil
}

// ReplayPolicies are the policies that a replay compares by default.
func ReplayPolicies() []string { return []string{Fifo, "sjf", "tetris", "greedy", "srpt", ours} }

// ReplayReport is what a replay found.
type ReplayReport struct {
	Options
	Unknown int              `json:"jobs_of_unknown_applications,omitempty"`
	Skipped map[string]int   `json:"skipped,omitempty"`
	Lines   map[string]*Line `json:"policies"`
	// LowerBoundS is what no schedule of the trace can be below, of the objective.
	LowerBoundS float64 `json:"lower_bound_s"`
}

// Replay lets the policies schedule the trace. The gain is against fifo, a GPU
// for every job in the order of arrival. Every seed is the same trace: trainings and random choices differ.
func Replay(ctx context.Context, t *Trace, o Options) (*ReplayReport, error) {
	if len(t.GPUs) == 0 {
		return nil, fmt.Errorf("%w: there is no GPU", ErrTrace)
	}
	if err := o.Check(&OnTrace); err != nil {
		return nil, err
	}
	r, err := t.Ready(&o)
	if err != nil {
		return nil, err
	}
	if o.Objective == "" && r.Closed {
		o.Objective = policy.Makespan
	}
	o.Objective = cmp.Or(o.Objective, policy.Turnaround)
	r.World.Objective = o.Objective
	r.World.BuiltIn = o.Objective == policy.Turnaround
	o.GPUs = len(t.GPUs)
	o.Jobs = len(r.Config.Jobs)
	o.Loads = nil
	c := &contest{world: r.World, o: &o, aim: o.Objective, train: r.believedLaw(t.law()), begin: o.steps(1)}
	for i := range o.Seeds {
		known := r
		if o.DurationError != nil {
			known = r.knowing(*o.DurationError, o.Seed+uint64(i))
		}
		c.sets = append(c.sets, known.Config)
	}
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	return &ReplayReport{
		Options: o, Unknown: r.Unknown, Skipped: r.Skipped, Lines: c.lines(), LowerBoundS: c.lowest(),
	}, nil
}
