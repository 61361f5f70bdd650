package experiment

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
)

// Place is a kind of site to compete on: its applications, its card, and how they really
// slow each other there.
type Place struct {
	Name, About string
	// Pairs are measured slowdowns, which are then the truth; see Trace.
	Profiles []*rlcore.Profile
	Pairs    []trace.Pair
	Card     rlcore.GPUSpec
	Law      *contention.Law // what a site believes there before it has seen any co-run
	// Varied: runs differ, see vary, and jobs have limits. Sweeps: jobs come as Place.sweeps draws them.
	Varied, Sweeps bool
}

// Published slowdowns. Nothing is fitted to them here, and no network is trained on them.
//
//go:embed worlds/*.csv
var measured embed.FS

// lawPlace is the place with the law itself as truth, and the thesis's applications.
const lawPlace = "law"

// measuredPlaces are the places with a table of measured pairs.
var measuredPlaces = []Place{
	{
		Name: "alnair", About: "MPS, card unnamed; memory assumed", Card: rlcore.GPUSpec{Model: "unnamed", MemMiB: 12288},
		Law: &contention.MPS,
	},
	{
		Name: "miso", About: "MPS on an A100; lower bounds of slowdowns", Card: rlcore.GPUSpec{Model: "a100", MemMiB: 40536},
		Law: &contention.MPS,
	},
	{
		Name: "gavel_p100", About: "time-slicing on a P100; utilisation and memory assumed",
		Card: rlcore.GPUSpec{Model: "p100", MemMiB: 16280}, Law: &contention.TimeSlice,
	},
	{
		Name: "gavel_k80", About: "time-slicing on a K80; utilisation and memory assumed",
		Card: rlcore.GPUSpec{Model: "k80", MemMiB: 11441}, Law: &contention.TimeSlice,
	},
}

// variedSuffix names the place like another one where runs differ, sweepsSuffix where they come in sweeps.
const variedSuffix, sweepsSuffix = "_varied", "_sweeps"

// PlaceNames lists the places, in the order of a table.
func PlaceNames() []string {
	out := []string{lawPlace}
	for _, p := range measuredPlaces {
		out = append(out, p.Name)
	}
	return append(out, "alnair"+variedSuffix, "miso"+variedSuffix, "alnair"+sweepsSuffix, "miso"+sweepsSuffix)
}

// PlaceNamed reads a place. One with _varied behind its name is the same place, where runs differ and have limits; one
// with _sweeps a place where users submit sweeps of jobs whose lengths nobody knows.
func PlaceNamed(name string) (*Place, error) {
	if like, ok := strings.CutSuffix(name, variedSuffix); ok {
		p, err := PlaceNamed(like)
		if err != nil {
			return nil, err
		}
		p.Name, p.Varied, p.About = name, true, p.About+"; runs differ, and have limits"
		return p, nil
	}
	if like, ok := strings.CutSuffix(name, sweepsSuffix); ok {
		p, err := PlaceNamed(like)
		if err != nil {
			return nil, err
		}
		p.Name, p.Sweeps, p.About = name, true, p.About+"; sweeps of jobs, whose lengths nobody knows"
		return p, nil
	}
	if name == lawPlace {
		p := &Place{
			Name: lawPlace, About: "the thesis's applications on a Titan Xp, under the law itself",
			Card: rlcore.TitanXp, Law: &contention.MPS,
		}
		for _, app := range apps.Names() {
			p.Profiles = append(p.Profiles, thesisApps[app])
		}
		return p, nil
	}
	i := slices.IndexFunc(measuredPlaces, func(p Place) bool { return p.Name == name })
	if i < 0 {
		return nil, optionError(fmt.Sprintf("workloads: there is no world %q; there are %v", name, PlaceNames()))
	}
	p := measuredPlaces[i]
	solo, err := measured.ReadFile("worlds/" + name + "_solo.csv")
	if err != nil {
		return nil, err
	}
	pairs, err := measured.ReadFile("worlds/" + name + "_pairs.csv")
	if err != nil {
		return nil, err
	}
	if p.Profiles, err = trace.ReadProfiles(bytes.NewReader(solo), name); err != nil {
		return nil, err
	}
	p.Pairs, err = trace.ReadPairs(bytes.NewReader(pairs), name)
	return &p, err
}

// Arrivals of a place: the durations are log-normal around ten minutes (σ = 0.8), as a
// cluster's are: most are short, and the long ones are most of the work.
const (
	medianS, spreadOfS = 600, 0.8
	leastS, mostS      = 30, 20_000
)

// Trace draws n jobs that come at random (Poisson) to so many GPUs. A load of 1 is as much work as
// they do without sharing.
func (p *Place) Trace(gpus, n int, load float64, seed uint64) *Trace {
	r := rand.New(rand.NewPCG(seed, 0x3012d)) //nolint:gosec // an experiment is repeatable, not secret
	t := &Trace{Profiles: p.Profiles, Pairs: p.Pairs, Law: p.Law, GPUs: slices.Repeat([]rlcore.GPUSpec{p.Card}, gpus)}
	gap := medianS * math.Exp(spreadOfS*spreadOfS/2) / load / float64(gpus)
	at := 0.0
	for i := range n {
		s := medianS * math.Exp(spreadOfS*r.NormFloat64())
		t.Jobs = append(t.Jobs, trace.Job{
			ID: fmt.Sprint(i + 1), User: "world", App: p.Profiles[r.IntN(len(p.Profiles))].App,
			SubmitS: at, DurationS: math.Round(max(leastS, min(mostS, s))),
		})
		at += gap * r.ExpFloat64()
	}
	return t
}

// WorldLine is how a policy did at a place under a load.
type WorldLine struct {
	VsFifo    float64 `json:"turnaround_vs_fifo"` // mean over the seeds of the ratios
	VsFifoSD  float64 `json:"turnaround_vs_fifo_sd"`
	MakespanS float64 `json:"makespan_s"`
	Fared
	DecisionUS float64 `json:"decision_us"` // wall time of the simulation, µs a decision
}

// WorldsReport is what a competition over places found.
type WorldsReport struct {
	Seed          uint64    `json:"seed"`
	Seeds         int       `json:"seeds"`
	M             int       `json:"window"`
	GPUs          int       `json:"gpus"`
	Jobs          int       `json:"jobs"`
	Loads         []float64 `json:"loads"`
	Places        []string  `json:"worlds"`
	MaxSlowdown   float64   `json:"max_slowdown"`
	Grace         float64   `json:"grace"`
	Bare          bool      `json:"bare"`
	DurationError float64   `json:"duration_error"`
	// Lines has one line for each place, load (as %g) and policy.
	Lines map[string]map[string]map[string]*WorldLine `json:"lines"`
	// LowerBoundS is the mean over the seeds of a mean turnaround below which no schedule is, by place and load.
	LowerBoundS map[string]map[string]float64 `json:"lower_bound_s"`
	// Geomean is each policy's geometric mean over places and loads of turnaround ÷ fifo's.
	Geomean map[string]float64 `json:"geomean_vs_fifo"`
	// GeomeanVaried is the same over the places where runs differ and have limits, GeomeanSweeps over those of sweeps.
	// Geomean leaves both out.
	GeomeanVaried map[string]float64 `json:"geomean_vs_fifo_varied,omitempty"`
	GeomeanSweeps map[string]float64 `json:"geomean_vs_fifo_sweeps,omitempty"`
}

// WorldPolicies are the policies that compete over places by default.
func WorldPolicies() []string {
	return []string{Fifo, "sjf", "tetris", "random", "greedy", "srpt", "lookahead", ours}
}

// Worlds lets policies compete on jobs that come over time, at places with measured slowdowns and
// under the law itself. All policies that share are under the same guard and believe the same
// model, which learns from the co-runs it sees, as the daemon's does.
func Worlds(ctx context.Context, o Options) (*WorldsReport, error) {
	if err := o.Check(&InWorlds); err != nil {
		return nil, err
	}
	exactly := 0.0
	r := &WorldsReport{
		Seed: o.Seed, Seeds: o.Seeds, M: o.M, GPUs: o.GPUs, Jobs: o.Jobs, Loads: o.Loads, Places: o.Workloads,
		MaxSlowdown: o.MaxSlowdown, Grace: o.Grace,
		Bare: o.Bare, DurationError: *cmp.Or(o.DurationError, &exactly), Lines: map[string]map[string]map[string]*WorldLine{},
		LowerBoundS: map[string]map[string]float64{},
	}
	step := 0
	for _, name := range o.Workloads {
		place, err := PlaceNamed(name)
		if err != nil {
			return nil, err
		}
		r.Lines[name], r.LowerBoundS[name] = map[string]map[string]*WorldLine{}, map[string]float64{}
		for _, load := range o.Loads {
			if o.Progress != nil {
				o.Progress(step, len(o.Workloads)*len(o.Loads), fmt.Sprintf("%s, load %g", name, load))
			}
			step++
			of := fmt.Sprintf("%g", load)
			if r.Lines[name][of], r.LowerBoundS[name][of], err = place.compete(ctx, &o, load); err != nil {
				return nil, fmt.Errorf("%s, load %g: %w", name, load, err)
			}
		}
	}
	r.Geomean, r.GeomeanVaried, r.GeomeanSweeps = r.geomean(""), r.geomean(variedSuffix), r.geomean(sweepsSuffix)
	return r, nil
}

// geomean is each policy's geometric mean over the places of a kind, and all loads; nil where there is no such place.
func (r *WorldsReport) geomean(kind string) map[string]float64 {
	var out map[string]float64
	all := map[string][]float64{}
	for _, name := range r.Places { // in their order: the same sum each time
		if _, of, _ := strings.Cut(name, "_"); kind != "" && "_"+of != kind || kind == "" &&
			("_"+of == variedSuffix || "_"+of == sweepsSuffix) {
			continue
		}
		for _, load := range r.Loads {
			for policy, l := range r.Lines[name][fmt.Sprintf("%g", load)] {
				all[policy] = append(all[policy], l.VsFifo)
			}
		}
	}
	for policy, x := range all {
		if out == nil {
			out = map[string]float64{}
		}
		out[policy] = stat.GeometricMean(x, nil)
	}
	return out
}

// compete lets the policies schedule one load's job sets, and returns the mean lower bound of them.
func (p *Place) compete(ctx context.Context, o *Options, load float64) (map[string]*WorldLine, float64, error) {
	c := &contest{o: o, aim: policy.Turnaround, once: true, begin: func(string) {}}
	for i := range o.Seeds {
		r, err := p.ready(o, load, o.Seed+uint64(i))
		if err != nil {
			return nil, 0, err
		}
		c.world, c.sets = r.World, append(c.sets, r.Config)
	}
	// Knobs are tuned on other job sets, in the world as the site believes it to be.
	believed := *p
	believed.Pairs = nil
	tune := func(r *rand.Rand) (sim.Config, error) {
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
	c.prepare = func(ctx context.Context, name string, _ int) (*Contender, error) {
		return c.world.Prepare(ctx, name, tune, o.Effort, o.Seed)
	}
	if err := c.run(ctx); err != nil {
		return nil, 0, err
	}
	lines := map[string]*WorldLine{}
	for name, e := range c.entries {
		l := &WorldLine{Fared: c.fared(name, Fifo)}
		fifo := c.results(Fifo)
		l.VsFifo, l.VsFifoSD = over(e.results,
			func(i int, r *sim.Result) float64 { return r.MeanTurnaroundS / fifo[i].MeanTurnaroundS })
		l.MakespanS, _ = over(e.results, func(_ int, r *sim.Result) float64 { return r.MakespanS })
		if e.tookUS != nil {
			l.DecisionUS = stat.Mean(e.tookUS, nil)
		}
		lines[name] = l
	}
	return lines, c.lowest(), nil
}

// ready draws a job set.
func (p *Place) ready(o *Options, load float64, seed uint64) (*Replayable, error) {
	t := p.Trace(o.GPUs, o.Jobs, load, seed)
	if p.Sweeps {
		t = p.sweeps(o.GPUs, o.Jobs, load, seed)
	}
	r, err := t.Ready(o)
	if err != nil {
		return nil, err
	}
	switch {
	case o.DurationError != nil:
		r = r.knowing(*o.DurationError, seed)
	case !p.Sweeps:
		r = r.knowing(0, seed)
	}
	if p.Varied {
		r.vary(seed)
	}
	r.World.Objective, r.World.BuiltIn, r.World.AllGuarded = policy.Turnaround, true, true
	if o.Bare {
		r.World.Guard.MaxSlowdown, r.World.Guard.Bare = 0, true
	}
	return r, nil
}

// What is drawn of a varied run: the spread of its logarithm around its application's mean, and its limit in parts of
// its own length, as jobs of real clusters have them.
const (
	variedSigma               = 0.7
	leastOfLimit, mostOfLimit = 1.5, 5
)

// vary draws another length for each run, log-normal around the one that is known of its application, and a limit. What
// is known is the mean and its standard deviation.
func (r *Replayable) vary(seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0x7a21ed)) //nolint:gosec // an experiment is repeatable, not secret
	r.Config.Jobs = slices.Clone(r.Config.Jobs)
	for i := range r.Config.Jobs {
		j := &r.Config.Jobs[i]
		known := *j.Truth
		known.DurationSD = known.DurationS * math.Sqrt(math.Exp(variedSigma*variedSigma)-1)
		j.Profile = &known
		s := known.DurationS * math.Exp(variedSigma*rnd.NormFloat64()-variedSigma*variedSigma/2)
		j.Truth = j.Truth.Stretched(max(1, s))
		j.LimitS = j.Truth.DurationS * (leastOfLimit + (mostOfLimit-leastOfLimit)*rnd.Float64())
	}
}
