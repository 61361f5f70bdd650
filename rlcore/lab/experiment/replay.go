package experiment

import (
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
	"github.com/slurmbridge/slurmbridge/rlcore/lab/trace"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Trace is a site's past: its jobs, what their applications use alone, and, where
// somebody measured them, the slowdowns of pairs.
type Trace struct {
	Jobs     []trace.Job
	Profiles []*rlcore.Profile
	// Pairs are measured slowdowns. When there are any they are the truth: a pair
	// that wasn't measured in both directions may not meet, and neither may three,
	// which nobody measured.
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

// Ready checks a trace. Errors wrap ErrTrace and name the job or application.
//
// A job's real run takes the duration its line gives, in its application's shape;
// what a decision is told is the application's profile.
func (t *Trace) Ready(m int) (*Replayable, error) {
	r := &Replayable{Closed: true, Skipped: trace.Skipped{}}
	law := t.Law
	if law == nil {
		law = &contention.MPS
	}
	profiles := map[string]*rlcore.Profile{}
	for _, p := range t.Profiles {
		if profiles[p.App] != nil {
			return nil, fmt.Errorf("%w: there are two profiles of %q", ErrTrace, p.App)
		}
		profiles[p.App] = p
	}
	r.Config = sim.Config{GPUs: slices.Clone(t.GPUs), Truth: sim.Law{Law: law}}
	var forbidden [][2]string
	if len(t.Pairs) > 0 {
		for i := range r.Config.GPUs {
			r.Config.GPUs[i].MaxClients = 2
		}
		table := sim.Pairs{}
		for _, p := range trace.MeanPairs(t.Pairs) {
			table[[2]string{p.Victim, p.Aggressor}] = p.Slowdown
		}
		r.Config.Truth = table
		for i, a := range t.Profiles {
			for _, b := range t.Profiles[i:] {
				if table.Lacks(a.App, b.App) {
					forbidden = append(forbidden, [2]string{a.App, b.App})
				}
			}
		}
	}
	card := t.GPUs[0]
	for _, g := range t.GPUs {
		if g.MemMiB > card.MemMiB {
			card = g
		}
	}
	first := math.Inf(1)
	for _, j := range t.Jobs {
		first = min(first, j.SubmitS)
	}
	scaled := map[string]*rlcore.Profile{}
	for _, j := range t.Jobs {
		p := profiles[j.App]
		switch {
		case p == nil:
			return nil, fmt.Errorf("%w: job %s: there is no profile of %q", ErrTrace, j.ID, j.App)
		case j.GPUs > 1:
			r.Skipped["more than one GPU"]++
			continue
		case p.Peak().MemMiB > card.MemMiB:
			r.Skipped["more memory than a GPU has"]++
			continue
		}
		length := j.DurationS
		if length == 0 {
			if !trace.HasDuration(p) {
				return nil, fmt.Errorf("%w: job %s: neither its line nor the profile of %q says how long it takes", ErrTrace, j.ID, j.App)
			}
			length = p.DurationS
		}
		key := fmt.Sprint(j.App, " ", length)
		if scaled[key] == nil {
			scaled[key] = p.Stretched(length)
		}
		n := sim.Arrival{Job: rlcore.Job{ID: j.ID, User: j.User, Profile: p, SubmitS: j.SubmitS - first}, Truth: scaled[key]}
		if !trace.HasDuration(p) {
			n.Profile = n.Truth
		}
		r.Closed = r.Closed && n.SubmitS == 0
		r.Config.Jobs = append(r.Config.Jobs, n)
	}
	if len(r.Config.Jobs) == 0 {
		return nil, fmt.Errorf("%w: no job is left of %d (%v)", ErrTrace, len(t.Jobs), r.Skipped)
	}
	r.World = &World{
		M:     m,
		Guard: rlcore.Guard{MemMargin: t.Margin},
		Model: func() *interference.Model {
			m := interference.New(law)
			for _, p := range forbidden {
				m.Forbid(p[0], p[1])
			}
			return m
		},
	}
	return r, nil
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
			j.SubmitS = at
			at += gap * rnd.ExpFloat64()
			cfg.Jobs = append(cfg.Jobs, j)
		}
		return cfg, nil
	}
}

// ReplayOptions are a replay's settings.
type ReplayOptions struct {
	Policies []string // default fifo, sjf, tetris, greedy, dqn
	Seeds    int      // trainings and random choices; default 1
	Seed     uint64
	M        int // default 5
	Effort   Effort
	Tries    int // of the clairvoyant, a seed; default by the number of jobs
	// Objective is "makespan", "turnaround", or "" for the first where all jobs are
	// submitted at once and the second elsewhere.
	Objective string
	// Trained, if set, is dqn's network; elsewhere it is trained on the trace.
	Trained  dqn.Network
	Progress func(step, steps int, what string)
}

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
	Note         string  `json:"note,omitempty"`
}

// ReplayReport is what a replay found.
type ReplayReport struct {
	Jobs      int                 `json:"jobs"`
	Skipped   map[string]int      `json:"skipped,omitempty"`
	GPUs      int                 `json:"gpus"`
	Seeds     int                 `json:"seeds"`
	Seed      uint64              `json:"seed"`
	Objective string              `json:"objective"`
	Policies  map[string]*Outcome `json:"policies"`
	// Users is how each user fared, by policy; "" owns the jobs of which the trace
	// doesn't say whose they are.
	Users map[string]map[string]*UserOutcome `json:"users"`
}

// Replay lets the policies schedule the trace. The gain is against fifo, a GPU
// for every job in the order of arrival; all of it is what the clairvoyant finds.
// dqn learns from the co-runs it sees on the way, as the daemon does; greedy has
// the same model and doesn't.
func Replay(ctx context.Context, t *Trace, o ReplayOptions) (*ReplayReport, error) {
	if o.M == 0 {
		o.M = 5
	}
	if o.Seeds == 0 {
		o.Seeds = 1
	}
	if len(o.Policies) == 0 {
		o.Policies = []string{"fifo", "sjf", "tetris", "greedy", "dqn"}
	}
	if o.Effort == (Effort{}) {
		o.Effort = Effort{Rounds: 40, FlatRounds: 20, Iterations: 40, Tune: 8}
	}
	if len(t.GPUs) == 0 || o.M < 1 || o.M > rlcore.MaxWindow || o.Seeds < 1 {
		return nil, fmt.Errorf("%w: %d GPUs, a window of %d (1 to %d), %d seeds", ErrTrace, len(t.GPUs), o.M, rlcore.MaxWindow, o.Seeds)
	}
	r, err := t.Ready(o.M)
	if err != nil {
		return nil, err
	}
	switch o.Objective {
	case "":
		o.Objective = "turnaround"
		if r.Closed {
			o.Objective = "makespan"
		}
	case "makespan", "turnaround":
	default:
		return nil, fmt.Errorf("%w: there is no objective %q; there are makespan and turnaround", ErrTrace, o.Objective)
	}
	objective := sim.Objective(sim.Makespan)
	if o.Objective == "turnaround" {
		objective = sim.Turnaround
	}
	if o.Tries == 0 {
		o.Tries = min(4000, max(100, 120_000/len(r.Config.Jobs)))
	}
	names := slices.Clone(o.Policies)
	if !slices.Contains(names, "fifo") {
		names = append([]string{"fifo"}, names...)
	}
	law := t.Law
	if law == nil {
		law = &contention.MPS
	}
	train := r.believedLaw(law)
	results, witnessed := map[string][]*sim.Result{}, map[string][]seen{}
	out := &ReplayReport{
		Jobs: len(r.Config.Jobs), Skipped: r.Skipped, GPUs: len(t.GPUs), Seeds: o.Seeds, Seed: o.Seed,
		Objective: o.Objective, Policies: map[string]*Outcome{},
	}
	steps := o.Seeds * (len(names) + 1)
	for seed := range o.Seeds {
		var from []*sim.Result
		for i, name := range names {
			if o.Progress != nil {
				o.Progress(seed*(len(names)+1)+i, steps, fmt.Sprintf("seed %d: %s", seed, name))
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			c, err := r.contender(ctx, name, train, o, o.Seed+uint64(seed))
			if err != nil {
				return nil, err
			}
			watched, waits := c.watched()
			res, err := watched.Run(r.Config)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			results[name] = append(results[name], res)
			witnessed[name] = append(witnessed[name], seen{res, waits})
			from = append(from, res)
			if out.Policies[name] == nil {
				out.Policies[name] = &Outcome{Note: c.Note}
			}
			out.Policies[name].TrainS += c.TrainS / float64(o.Seeds)
		}
		if o.Progress != nil {
			o.Progress((seed+1)*(len(names)+1)-1, steps, fmt.Sprintf("seed %d: %s", seed, Clairvoyant))
		}
		res, err := r.World.Bound(r.Config, o.Tries, o.Seed+uint64(seed), objective, from)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Clairvoyant, err)
		}
		results[Clairvoyant] = append(results[Clairvoyant], res)
	}
	// One bound for all seeds: the trace is the same, only the search differs.
	bound := results[Clairvoyant][0]
	for _, b := range results[Clairvoyant] {
		if objective(b) < objective(bound) {
			bound = b
		}
	}
	results[Clairvoyant] = []*sim.Result{bound}
	out.Policies[Clairvoyant] = &Outcome{Note: fmt.Sprintf("%d schedules tried a seed", o.Tries)}
	for name, x := range out.Policies {
		x.fill(results[name], results["fifo"], bound, objective)
	}
	out.Users = byUser(r.Config.Jobs, witnessed)
	return out, nil
}

func (r *Replayable) contender(ctx context.Context, name string, train Scenario, o ReplayOptions, seed uint64) (*Contender, error) {
	var c *Contender
	var err error
	if name == ours && o.Trained != nil {
		c = r.World.Trained(name, o.Trained)
	} else if c, err = r.World.Prepare(ctx, name, train, o.Effort, seed); err != nil {
		return nil, err
	}
	spec, _ := rlcore.PolicyNamed(name)
	c.learns = spec.Learns
	return c, nil
}

func (x *Outcome) fill(rs, fifo []*sim.Result, bound *sim.Result, objective sim.Objective) {
	n := float64(len(rs))
	var share, sq, mk, tt float64
	for i, r := range rs {
		s := r.Slowdowns()
		for _, v := range s {
			x.MeanSlowdown += v / float64(len(s)) / n
		}
		x.P95Slowdown += s[min(len(s)-1, int(0.95*float64(len(s))))] / n
		x.TurnaroundS += r.MeanTurnaroundS / n
		x.MakespanS += r.MakespanS / n
		x.OOM += float64(r.OOM) / n
		x.GPUUtil += r.GPUUtil / n
		x.MemUtil += r.MemUtil / n
		base := fifo[min(i, len(fifo)-1)]
		g := gainShare(base, r, bound, objective)
		share, sq = share+g/n, sq+g*g/n
		x.MakespanGain += gainShare(base, r, bound, sim.Makespan) / n
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
