package experiment

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"fmt"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
)

// Place is a kind of site to compete on: its applications, its card, and how they really slow each other there.
type Place struct {
	Name string
	// Pairs are measured slowdowns, which are then the truth; see Trace.
	Profiles []*rlcore.Profile
	Pairs    []trace.Pair
	Card     rlcore.GPUSpec
	Law      *contention.Law // what a site believes there before it has seen any co-run
	habits   habits          // how its users submit jobs; not used where all come at once
	atOnce   bool            // all jobs come at once: one of the thesis's workloads
	table    string          // of the measured pairs; "" = the law itself is the truth, with the thesis's applications
}

// The measured places' cards: alnair's isn't named, and its memory is assumed; gavel's utilisations and memory are.
var (
	unnamed = rlcore.GPUSpec{Model: "unnamed", MemMiB: 12288}
	a100    = rlcore.GPUSpec{Model: "a100", MemMiB: 40536} // miso's slowdowns are lower bounds
	p100    = rlcore.GPUSpec{Model: "p100", MemMiB: 16280}
	k80     = rlcore.GPUSpec{Model: "k80", MemMiB: 11441}
)

// places are all places, in the order of a table. Nothing is fitted to the published slowdowns here, and no network is
// trained on them.
var places = []Place{
	{Name: "gpu_heavy", Card: rlcore.TitanXp, Law: &contention.MPS, atOnce: true},
	{Name: "gpu_light", Card: rlcore.TitanXp, Law: &contention.MPS, atOnce: true},
	{Name: "mem_heavy", Card: rlcore.TitanXp, Law: &contention.MPS, atOnce: true},
	{Name: "mem_light", Card: rlcore.TitanXp, Law: &contention.MPS, atOnce: true},
	{Name: "random", Card: rlcore.TitanXp, Law: &contention.MPS, atOnce: true},
	{Name: "law", Card: rlcore.TitanXp, Law: &contention.MPS, habits: byRun},
	{Name: "alnair", Card: unnamed, Law: &contention.MPS, table: "alnair", habits: byRun},
	{Name: "miso", Card: a100, Law: &contention.MPS, table: "miso", habits: byRun},
	{Name: "gavel_p100", Card: p100, Law: &contention.TimeSlice, table: "gavel_p100", habits: byRun},
	{Name: "gavel_k80", Card: k80, Law: &contention.TimeSlice, table: "gavel_k80", habits: byRun},
	{Name: "alnair_users", Card: unnamed, Law: &contention.MPS, table: "alnair", habits: byUser},
	{Name: "miso_users", Card: a100, Law: &contention.MPS, table: "miso", habits: byUser},
	{Name: "alnair_clusters", Card: unnamed, Law: &contention.MPS, table: "alnair", habits: twoClusters},
	{Name: "miso_clusters", Card: a100, Law: &contention.MPS, table: "miso", habits: twoClusters},
	{Name: "alnair_sweeps", Card: unnamed, Law: &contention.MPS, table: "alnair", habits: sweeps},
	{Name: "miso_sweeps", Card: a100, Law: &contention.MPS, table: "miso", habits: sweeps},
}

//go:embed worlds/*.csv
var measured embed.FS

// Workloads names the thesis's five, in its order.
func Workloads() []string { return names(func(p *Place) bool { return p.atOnce }) }

// Worlds names the places where jobs come over time, in the order of a table.
func Worlds() []string { return names(func(p *Place) bool { return !p.atOnce }) }

func names(of func(*Place) bool) (out []string) {
	for i := range places {
		if of(&places[i]) {
			out = append(out, places[i].Name)
		}
	}
	return out
}

// PlaceNamed reads a place.
func PlaceNamed(name string) (*Place, error) {
	i := slices.IndexFunc(places, func(p Place) bool { return p.Name == name })
	if i < 0 {
		return nil, optionError(fmt.Sprintf("workloads: there is no world %q; there are %v", name, Worlds()))
	}
	p := places[i]
	if p.table == "" {
		for _, app := range apps.Names() {
			p.Profiles = append(p.Profiles, thesisApps[app])
		}
		return &p, nil
	}
	solo, err := measured.ReadFile("worlds/" + p.table + "_solo.csv")
	if err != nil {
		return nil, err
	}
	pairs, err := measured.ReadFile("worlds/" + p.table + "_pairs.csv")
	if err != nil {
		return nil, err
	}
	if p.Profiles, err = trace.ReadProfiles(bytes.NewReader(solo), name); err != nil {
		return nil, err
	}
	p.Pairs, err = trace.ReadPairs(bytes.NewReader(pairs), name)
	return &p, err
}

// Report is what a competition over places found.
type Report struct {
	Options
	// Lines has one line for each place, load (as %g) and policy.
	Lines map[string]map[string]map[string]*Line `json:"lines"`
	// LowerBoundS is the mean over the seeds of a mean turnaround below which no schedule is, by place and load; of a
	// makespan where all jobs come at once.
	LowerBoundS map[string]map[string]float64 `json:"lower_bound_s"`
	// Geomean is each policy's geometric mean over places and loads of Line.Ratio.
	Geomean map[string]float64 `json:"geomean_vs_fifo"`
}

// WorldPolicies are the policies that compete by default where jobs come over time.
func WorldPolicies() []string {
	return []string{Fifo, "sjf", "tetris", "random", "greedy", "srpt", "lookahead", ours}
}

// Run lets policies compete at places: on the thesis's workloads, or on jobs that come over time, with measured
// slowdowns and under the law itself. There all policies that share are under the same guard and believe the same
// model, which learns from the co-runs it sees, as the daemon's does.
func Run(ctx context.Context, o Options, k *Kind) (*Report, error) {
	if err := o.Check(k); err != nil {
		return nil, err
	}
	r := &Report{
		Options: o, Lines: map[string]map[string]map[string]*Line{}, LowerBoundS: map[string]map[string]float64{},
	}
	begin := o.steps(len(o.Workloads) * len(o.Loads))
	ratios := map[string][]float64{}
	for _, name := range o.Workloads {
		place, err := PlaceNamed(name)
		if err != nil {
			return nil, err
		}
		r.Lines[name] = map[string]map[string]*Line{}
		r.LowerBoundS[name] = map[string]float64{}
		for _, load := range o.Loads {
			of := fmt.Sprintf("%g", load)
			what := name
			if load > 0 {
				what += ", load " + of
			}
			c, err := place.contest(&o, load)
			if err == nil {
				c.begin = func(policy string) { begin(what + ": " + policy) }
				err = c.run(ctx)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", what, err)
			}
			r.Lines[name][of] = c.lines()
			r.LowerBoundS[name][of] = c.lowest()
			for policy, l := range r.Lines[name][of] {
				l.Thesis = thesisVsSJF[name][policy]
				ratio, _ := l.Ratio()
				ratios[policy] = append(ratios[policy], ratio)
			}
		}
	}
	r.Geomean = map[string]float64{}
	for policy, x := range ratios {
		r.Geomean[policy] = stat.GeometricMean(x, nil)
	}
	return r, nil
}

// contest draws one load's job sets.
func (p *Place) contest(o *Options, load float64) (*contest, error) {
	if p.atOnce {
		return p.thesis(o)
	}
	c := &contest{o: o, aim: policy.Turnaround, once: true}
	for i := range o.Seeds {
		r, err := p.ready(o, load, o.Seed+uint64(i))
		if err != nil {
			return nil, err
		}
		c.world = r.World
		c.sets = append(c.sets, r.Config)
	}
	// Knobs are tuned on other job sets, in the world as the site believes it to be.
	believed := *p
	believed.Pairs = nil
	c.train = func(r *rand.Rand) (sim.Config, error) {
		x, err := believed.ready(o, load, r.Uint64())
		if err != nil {
			return sim.Config{}, err
		}
		for i := range x.Config.GPUs {
			if len(p.Pairs) > 0 {
				x.Config.GPUs[i].MaxClients = 2 // what pairs say most of
			}
		}
		return x.Config, nil
	}
	return c, nil
}

// thesisVsSJF is the thesis's ratio of makespans, where it prints one (ch. 5). On one GPU sjf's makespan is fifo's.
var thesisVsSJF = map[string]map[string]float64{
	"gpu_heavy": {"dqngpu": 4891. / 4807, "deeprm_mean": 5530. / 4807},
	"gpu_light": {"dqngpu": 1214. / 2295},
	"random":    {"dqngpu": 1.027, "tetris": 1.294, "deeprm_max": 1.255, "deeprm_mean": 1.346},
}

// thesis draws the thesis's job sets, for a site that has run some before.
func (p *Place) thesis(o *Options) (*contest, error) {
	train, err := Thesis(p.Name)
	if err != nil {
		return nil, err
	}
	w := &World{
		Model: func() *interference.Model { return interference.New(p.Law) }, M: o.M,
		Objective: cmp.Or(o.Objective, policy.Makespan), Trained: o.Trained,
		Rules: rlcore.Rules{MaxSlowdown: o.MaxSlowdown, Grace: o.Grace},
	}
	if err := w.Learn(train, o.History, o.Seed); err != nil {
		return nil, err
	}
	c := &contest{world: w, o: o, aim: policy.Makespan, once: true, train: train}
	for i := range o.Seeds {
		set, err := train(rand.New(rand.NewPCG(o.Seed+10_000+uint64(i), 0x7e57)))
		if err != nil {
			return nil, err
		}
		c.sets = append(c.sets, set)
	}
	return c, nil
}

// ready draws a job set.
func (p *Place) ready(o *Options, load float64, seed uint64) (*Replayable, error) {
	t, jobs := p.draw(o.GPUs, o.Jobs, load, seed)
	r, err := t.without(o)
	if err != nil {
		return nil, err
	}
	profiles := map[string]*rlcore.Profile{}
	for _, app := range t.Profiles {
		profiles[app.App] = app
	}
	r.Config.Jobs = arrivals(jobs, profiles, profiles)
	switch {
	case o.Omniscient:
		r = r.knowing(0, seed)
		if len(p.Pairs) > 0 {
			r.World.Slowdowns = r.Config.Truth
		}
	case o.DurationError != nil:
		r = r.knowing(*o.DurationError, seed)
	}
	r.World.Objective = policy.Turnaround
	r.World.BuiltIn = true
	r.World.AllGuarded = true
	return r, nil
}
