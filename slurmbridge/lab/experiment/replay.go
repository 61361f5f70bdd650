package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
)

// Trace is a site's past: its jobs, what their applications use alone, and, where
// they were measured, the slowdowns of pairs.
type Trace struct {
	Jobs     []trace.Job
	Profiles []*rlcore.Profile
	// Pairs are measured slowdowns. If there are any they are the truth, composed for more than two
	// as sim.Pairs does; jobs may meet only if their pair was measured in both directions.
	Pairs []trace.Pair
	GPUs  []rlcore.GPUSpec
	Law   *contention.Law // how sharers slow each other where Pairs doesn't say; nil = MPS
	// Margin is the fraction of GPU memory that the guard keeps free; 0 = its
	// default.
	Margin float64
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
	// Skipped counts jobs that are left out, by why.
	Skipped trace.Skipped
}

// law is how sharers slow each other where Pairs doesn't say.
func (t *Trace) law() *contention.Law {
	if t.Law != nil {
		return t.Law
	}
	return &contention.MPS
}

// Ready checks a trace. Errors wrap ErrTrace and name the job or application.
//
// A job's real run takes the duration its line gives, in its application's shape;
// decisions see the application's profile, and how much its runs differ from it in length.
func (t *Trace) Ready(m int) (*Replayable, error) {
	profiles := map[string]*rlcore.Profile{}
	for _, p := range t.Profiles {
		if profiles[p.App] != nil {
			return nil, fmt.Errorf("%w: there are two profiles of %q", ErrTrace, p.App)
		}
		profiles[p.App] = t.spread(p)
	}
	r := &Replayable{
		Closed: true, Skipped: trace.Skipped{},
		Config: sim.Config{GPUs: slices.Clone(t.GPUs), Truth: sim.Law{Law: t.law()}},
	}
	model := t.measured(&r.Config)
	r.World = &World{M: m, Guard: rlcore.Guard{MemMargin: t.Margin}, Model: model.Clone}
	if err := t.readyJobs(r, profiles); err != nil {
		return nil, err
	}
	if len(r.Config.Jobs) == 0 {
		return nil, fmt.Errorf("%w: no job is left of %d (%v)", ErrTrace, len(t.Jobs), r.Skipped)
	}
	return r, nil
}

// measured makes the measured pairs, where there are any, the truth of cfg, and returns a
// model that knows which pairs may not meet.
func (t *Trace) measured(cfg *sim.Config) *interference.Model {
	model := interference.New(t.law())
	if len(t.Pairs) == 0 {
		return model
	}
	table := sim.Pairs{}
	for _, p := range trace.MeanPairs(t.Pairs) {
		table[[2]string{p.Victim, p.Aggressor}] = p.Slowdown
	}
	cfg.Truth = table
	for i, a := range t.Profiles {
		for _, b := range t.Profiles[i:] {
			if table.Lacks(a.App, b.App) {
				model.Forbid(a.Identity(), b.Identity())
			}
		}
	}
	return model
}

// spread returns an application's profile with how much its runs in the trace differ from
// it in length, which a site's own profiles say as well (DurationSD).
func (t *Trace) spread(p *rlcore.Profile) *rlcore.Profile {
	sq, n := 0.0, 0.0
	for i := range t.Jobs {
		if j := &t.Jobs[i]; j.App == p.App && j.DurationS > 0 {
			sq, n = sq+(j.DurationS-p.DurationS)*(j.DurationS-p.DurationS), n+1
		}
	}
	if n == 0 || p.DurationSD > 0 {
		return p
	}
	q := *p
	q.DurationSD = math.Sqrt(sq / n)
	return &q
}

// readyJobs adds the trace's jobs, or counts them as left out.
func (t *Trace) readyJobs(r *Replayable, profiles map[string]*rlcore.Profile) error {
	largest, first := 0.0, math.Inf(1)
	for _, g := range t.GPUs {
		largest = max(largest, g.MemMiB)
	}
	for _, j := range t.Jobs {
		first = min(first, j.SubmitS)
	}
	type run struct {
		app     string
		seconds float64
	}
	stretched := map[run]*rlcore.Profile{}
	for _, j := range t.Jobs {
		p := profiles[j.App]
		switch {
		case p == nil:
			return fmt.Errorf("%w: job %s: there is no profile of %q", ErrTrace, j.ID, j.App)
		case j.GPUs > 1:
			r.Skipped["more than one GPU"]++
			continue
		case p.Peak().MemMiB > largest:
			r.Skipped["more memory than a GPU has"]++
			continue
		case j.DurationS == 0 && !trace.HasDuration(p):
			return fmt.Errorf("%w: job %s: neither its line nor the profile of %q says how long it takes", ErrTrace, j.ID, j.App)
		}
		of := run{j.App, cmp.Or(j.DurationS, p.DurationS)}
		if stretched[of] == nil {
			stretched[of] = p.Stretched(of.seconds)
		}
		n := sim.Arrival{Job: rlcore.Job{ID: j.ID, User: j.User, Profile: p, SubmitS: j.SubmitS - first, LimitS: j.LimitS}, Truth: stretched[of]}
		if j.DeadlineS > 0 {
			n.DeadlineS = j.DeadlineS - first
		}
		if !trace.HasDuration(p) {
			n.Profile = n.Truth
		}
		r.Closed = r.Closed && n.SubmitS == 0
		r.Config.Jobs = append(r.Config.Jobs, n)
	}
	return nil
}

// knowing returns r with decisions that see each job's own duration, times a factor that
// the seed draws from 1 ± wrong.
func (r *Replayable) knowing(wrong float64, seed uint64) *Replayable {
	rnd := rand.New(rand.NewPCG(seed, 0xd0e)) //nolint:gosec // a replay is repeatable, not secret
	out := *r
	out.Config.Jobs = slices.Clone(r.Config.Jobs)
	for i := range out.Config.Jobs {
		j := &out.Config.Jobs[i]
		known := *j.Truth.Stretched(j.Truth.DurationS * (1 + wrong*(2*rnd.Float64()-1)))
		known.DurationSD = wrong / math.Sqrt(3) * known.DurationS // of the factor
		j.Profile = &known
	}
	return &out
}

// believedLaw is the scenario learners train on: job sets like the trace's in a
// world that follows the site's own belief, since the truth isn't theirs to know.
// The jobs are drawn from the trace; where they come over time, at random times
// with the same density.
func (r *Replayable) believedLaw(law *contention.Law) Scenario {
	jobs := r.Config.Jobs
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
			j.LimitS, j.DeadlineS = 0, 0
			j.SubmitS = at
			at += gap * rnd.ExpFloat64()
			cfg.Jobs = append(cfg.Jobs, j)
		}
		return cfg, nil
	}
}

// ReplayOptions are a replay's settings.
type ReplayOptions struct {
	Policies []string // default ReplayPolicies
	Seeds    int      // trainings and random choices; default 1
	Seed     uint64
	M        int // default rlcore.DefaultWindow
	Effort   Effort
	Tries    int // of the clairvoyant, a seed; default by the number of jobs
	// Objective is "makespan", "turnaround", or "" for the first where all jobs are
	// submitted at once and the second elsewhere.
	Objective string
	// MaxSlowdown and Grace are the contract of every job; see rlcore.Guard.
	MaxSlowdown, Grace float64
	// KeepLimits: a job is ended at its limit even if sharing slowed it; see
	// rlcore.Guard.ExtendLimit.
	KeepLimits bool
	// DurationError, if set, is how well the site knows how long each job will take: decisions see
	// the job's own duration times a factor drawn from 1 ± this, 0..1. nil: they see its
	// application's profile instead.
	DurationError *float64
	// Trained, if set, is dqn's network; elsewhere it is the one built in for the turnaround,
	// and trained on the trace for the makespan.
	Trained  dqn.Network
	Progress func(step, steps int, what string)
}

// ReplayPolicies are the policies that a replay compares by default.
func ReplayPolicies() []string { return []string{Fifo, "sjf", "tetris", "greedy", "srpt", ours} }

// Outcome is what a policy would have made of the trace: means over the seeds.
type Outcome struct {
	MeanSlowdown float64 `json:"mean_slowdown"`
	P95Slowdown  float64 `json:"p95_slowdown"`
	TurnaroundS  float64 `json:"mean_turnaround_s"`
	MakespanS    float64 `json:"makespan_s"`
	OOM          float64 `json:"oom"`                          // runs lost for want of memory
	GainShare    float64 `json:"share_of_clairvoyant_gain"`    // of the objective; 1 where there is nothing to gain
	GainShareSD  float64 `json:"share_of_clairvoyant_gain_sd"` // over the seeds
	MakespanGain float64 `json:"share_of_makespan_gain"`       // the same of the makespan
	GPUUtil      float64 `json:"gpu_util"`                     // 0..1
	MemUtil      float64 `json:"mem_util"`                     // 0..1
	TrainS       float64 `json:"train_s"`                      // wall time
	MakespanSD   float64 `json:"makespan_sd_s"`                // over the seeds
	TurnaroundSD float64 `json:"mean_turnaround_sd_s"`         // over the seeds
	Ends
	Lateness
	Note string `json:"note,omitempty"`
}

// Ends counts the jobs that didn't run to their own end: means over the seeds.
type Ends struct {
	TimedOut      float64 `json:"timed_out"`      // ended at their limit
	HarmedTimeout float64 `json:"harmed_timeout"` // of these, the ones that alone would have ended before
	PastDeadline  float64 `json:"past_deadline"`  // ended at their deadline, or cancelled because of it
}

// add counts a job for part of a seed.
func (e *Ends) add(o *sim.Outcome, part float64) {
	switch o.Ended {
	case sim.AtLimit:
		e.TimedOut += part
	case sim.AtDeadline:
		e.PastDeadline += part
	}
	if o.Harmed {
		e.HarmedTimeout += part
	}
}

// Lateness is how many jobs ended after plain Slurm would have ended them, with whole GPUs
// in order of priority, and by how much; see sim.Outcome.
type Lateness struct {
	Late      float64 `json:"late"`       // part of the jobs that were late by more than a tenth of their own solo time, 0..1; mean over the seeds
	WorstLate float64 `json:"worst_late"` // the most that a job of any seed was late, in its own solo times
}

// add counts a job that stands for part of the jobs and seeds.
func (l *Lateness) add(o *sim.Outcome, part float64) {
	by, late := o.Late()
	l.WorstLate = max(l.WorstLate, by)
	if late {
		l.Late += part
	}
}

// ReplayReport is what a replay found.
type ReplayReport struct {
	Jobs      int            `json:"jobs"`
	Limits    int            `json:"jobs_with_limit"`
	Deadlines int            `json:"jobs_with_deadline"`
	Skipped   map[string]int `json:"skipped,omitempty"`
	GPUs      int            `json:"gpus"`
	Seeds     int            `json:"seeds"`
	Seed      uint64         `json:"seed"`
	Objective string         `json:"objective"`
	// MaxSlowdown and Grace are the jobs' contract, 0 = none and the default;
	// DurationError is how well durations were known, absent = by the applications' profiles.
	MaxSlowdown   float64             `json:"max_slowdown"`
	Grace         float64             `json:"grace"`
	DurationError *float64            `json:"duration_error,omitempty"`
	Policies      map[string]*Outcome `json:"policies"`
	// Users is how each user fared, by policy; "" owns the jobs without a user in the trace.
	Users map[string]map[string]*UserOutcome `json:"users"`
}

// orDefaults checks the options against a trace and fills in what is left out.
func (o ReplayOptions) orDefaults(gpus int) (ReplayOptions, error) {
	o.M, o.Seeds = cmp.Or(o.M, rlcore.DefaultWindow), cmp.Or(o.Seeds, 1)
	if len(o.Policies) == 0 {
		o.Policies = ReplayPolicies()
	}
	if !slices.Contains(o.Policies, Fifo) {
		o.Policies = append([]string{Fifo}, o.Policies...)
	}
	o.Effort = cmp.Or(o.Effort, Effort{Rounds: 40, FlatRounds: 20, Iterations: 40, Tune: 8})
	if gpus == 0 || o.M < 1 || o.M > rlcore.MaxWindow || o.Seeds < 1 {
		return o, fmt.Errorf("%w: %d GPUs, a window of %d (1 to %d), %d seeds", ErrTrace, gpus, o.M, rlcore.MaxWindow, o.Seeds)
	}
	if e := o.DurationError; e != nil && !(*e >= 0 && *e < 1) {
		return o, fmt.Errorf("%w: durations are wrong by a factor of 1 ± %v, which isn't from 0 to below 1", ErrTrace, *e)
	}
	if o.Objective != "" {
		if _, err := policy.ObjectiveNamed(o.Objective); err != nil {
			return o, fmt.Errorf("%w: %w", ErrTrace, err)
		}
	}
	return o, nil
}

// competition is a replay under way.
type competition struct {
	*Replayable
	o         ReplayOptions
	law       *contention.Law
	objective sim.Objective
	report    *ReplayReport
	results   map[string][]seen
	bound     *sim.Result // the best of all seeds: the trace is the same, only the search differs
}

// Replay lets the policies schedule the trace. The gain is against fifo, a GPU
// for every job in the order of arrival; all of it is what the clairvoyant finds.
// dqn learns from the co-runs it sees on the way, as the daemon does; greedy has
// the same model and doesn't.
func Replay(ctx context.Context, t *Trace, o ReplayOptions) (*ReplayReport, error) {
	o, err := o.orDefaults(len(t.GPUs))
	if err != nil {
		return nil, err
	}
	r, err := t.Ready(o.M)
	if err != nil {
		return nil, err
	}
	r.World.Guard.MaxSlowdown, r.World.Guard.Grace, r.World.Guard.ExtendLimit = o.MaxSlowdown, o.Grace, !o.KeepLimits
	if o.Objective == "" && r.Closed {
		o.Objective = "makespan"
	}
	o.Objective = cmp.Or(o.Objective, "turnaround")
	r.World.Objective = policy.Objective(o.Objective)
	o.Tries = cmp.Or(o.Tries, min(4000, max(100, 120_000/len(r.Config.Jobs))))
	c := &competition{
		Replayable: r, o: o, law: t.law(), objective: sim.CostOf(policy.Objective(o.Objective)), results: map[string][]seen{},
		report: &ReplayReport{
			Jobs: len(r.Config.Jobs), Skipped: r.Skipped, GPUs: len(t.GPUs), Seeds: o.Seeds, Seed: o.Seed,
			Objective: o.Objective, MaxSlowdown: o.MaxSlowdown, Grace: o.Grace, DurationError: o.DurationError,
			Policies: map[string]*Outcome{Clairvoyant: {Note: fmt.Sprintf("%d schedules tried a seed", o.Tries)}},
		},
	}
	c.report.Limits, c.report.Deadlines = r.limited()
	for seed := range o.Seeds {
		if err := c.play(ctx, seed); err != nil {
			return nil, err
		}
	}
	fifo := c.results[Fifo]
	c.report.Users = byUser(r.Config.Jobs, c.results)
	c.results[Clairvoyant] = []seen{{Result: c.bound}}
	for name, rs := range c.results {
		c.report.Policies[name].fill(rs, fifo, c.bound, c.objective)
	}
	return c.report, nil
}

// limited counts the jobs with a limit and the jobs with a deadline.
func (r *Replayable) limited() (limits, deadlines int) {
	for i := range r.Config.Jobs {
		if r.Config.Jobs[i].LimitS > 0 {
			limits++
		}
		if r.Config.Jobs[i].DeadlineS > 0 {
			deadlines++
		}
	}
	return limits, deadlines
}

// play lets all policies schedule the trace once, and the clairvoyant after them.
func (c *competition) play(ctx context.Context, seed int) error {
	step := seed * (len(c.o.Policies) + 1)
	progress := func(name string) {
		if c.o.Progress != nil {
			c.o.Progress(step, c.o.Seeds*(len(c.o.Policies)+1), fmt.Sprintf("seed %d: %s", seed, name))
		}
		step++
	}
	r := c.Replayable
	if e := c.o.DurationError; e != nil {
		r = r.knowing(*e, c.o.Seed+uint64(seed))
	}
	train := r.believedLaw(c.law)
	var from []*sim.Result
	for _, name := range c.o.Policies {
		progress(name)
		if err := ctx.Err(); err != nil {
			return err
		}
		contender, err := r.contender(ctx, name, train, c.o, c.o.Seed+uint64(seed))
		if err != nil {
			return err
		}
		watched, delays := contender.watched()
		res, err := watched.Run(r.Config)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.results[name] = append(c.results[name], seen{res, delays})
		from = append(from, res)
		if c.report.Policies[name] == nil {
			c.report.Policies[name] = &Outcome{Note: contender.Note}
		}
		c.report.Policies[name].TrainS += contender.TrainS / float64(c.o.Seeds)
	}
	progress(Clairvoyant)
	bound, err := c.World.Bound(c.Config, c.o.Tries, c.o.Seed+uint64(seed), c.objective, from)
	if err != nil {
		return fmt.Errorf("%s: %w", Clairvoyant, err)
	}
	if c.bound == nil || c.better(bound, c.bound) {
		c.bound = bound
	}
	return nil
}

// better reports whether schedule a loses fewer jobs than b, or as many at less cost.
func (c *competition) better(a, b *sim.Result) bool {
	return cmp.Or(a.Lost()-b.Lost(), cmp.Compare(c.objective(a), c.objective(b))) < 0
}

func (r *Replayable) contender(ctx context.Context, name string, train Scenario, o ReplayOptions, seed uint64) (*Contender, error) {
	var c *Contender
	var err error
	if name == ours && (o.Trained != nil || r.World.Objective == policy.Turnaround) {
		if c, err = r.World.builtIn(name, o.Trained); err != nil {
			return nil, err
		}
	} else if c, err = r.World.Prepare(ctx, name, train, o.Effort, seed); err != nil {
		return nil, err
	}
	spec, _ := policy.Named(name)
	c.learns = spec.Learns
	return c, nil
}

func (x *Outcome) fill(rs, fifo []seen, bound *sim.Result, objective sim.Objective) {
	n := float64(len(rs))
	var share, sq, mk, tt float64
	for i, r := range rs {
		s := r.Slowdowns()
		for _, v := range s {
			x.MeanSlowdown += v / float64(len(s)) / n
		}
		if len(s) > 0 {
			x.P95Slowdown += s[min(len(s)-1, int(0.95*float64(len(s))))] / n
		}
		x.TurnaroundS += r.MeanTurnaroundS / n
		x.MakespanS += r.MakespanS / n
		x.OOM += float64(r.OOM) / n
		for k := range r.Jobs {
			x.Ends.add(&r.Jobs[k], 1/n)
			x.Lateness.add(&r.Jobs[k], 1/n/float64(len(r.Jobs)))
		}
		x.GPUUtil += r.GPUUtil / n
		x.MemUtil += r.MemUtil / n
		base := fifo[min(i, len(fifo)-1)].Result
		g := gainShare(base, r.Result, bound, objective)
		share, sq = share+g/n, sq+g*g/n
		x.MakespanGain += gainShare(base, r.Result, bound, sim.Makespan) / n
		mk, tt = mk+r.MakespanS*r.MakespanS/n, tt+r.MeanTurnaroundS*r.MeanTurnaroundS/n
	}
	x.GainShare = share
	x.GainShareSD = math.Sqrt(max(0, sq-share*share))
	x.MakespanSD = math.Sqrt(max(0, mk-x.MakespanS*x.MakespanS))
	x.TurnaroundSD = math.Sqrt(max(0, tt-x.TurnaroundS*x.TurnaroundS))
}

// gainShare is a result's gain over the base as a part of the bound's; 1 where the
// bound gains nothing.
func gainShare(base, r, bound *sim.Result, objective sim.Objective) float64 {
	could := objective(base) - objective(bound)
	if could <= 1e-9*objective(base) {
		return 1
	}
	return (objective(base) - objective(r)) / could
}
