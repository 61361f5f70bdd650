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
	kind     kind
	table    string // of the measured pairs; "" = the law itself is the truth, with the thesis's applications
}

// kind is how jobs come at a place.
type kind int

const (
	exact  kind = iota // at random; each one's length is known
	varied             // at random; runs differ, see vary, and have limits
	sweeps             // users submit many similar jobs at once, of unknown lengths; see Place.sweeps
	atOnce             // all at once: one of the thesis's workloads
)

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
	{Name: "gpu_heavy", Card: rlcore.TitanXp, Law: &contention.MPS, kind: atOnce},
	{Name: "gpu_light", Card: rlcore.TitanXp, Law: &contention.MPS, kind: atOnce},
	{Name: "mem_heavy", Card: rlcore.TitanXp, Law: &contention.MPS, kind: atOnce},
	{Name: "mem_light", Card: rlcore.TitanXp, Law: &contention.MPS, kind: atOnce},
	{Name: "random", Card: rlcore.TitanXp, Law: &contention.MPS, kind: atOnce},
	{Name: "law", Card: rlcore.TitanXp, Law: &contention.MPS},
	{Name: "alnair", Card: unnamed, Law: &contention.MPS, table: "alnair"},
	{Name: "miso", Card: a100, Law: &contention.MPS, table: "miso"},
	{Name: "gavel_p100", Card: p100, Law: &contention.TimeSlice, table: "gavel_p100"},
	{Name: "gavel_k80", Card: k80, Law: &contention.TimeSlice, table: "gavel_k80"},
	{Name: "alnair_varied", Card: unnamed, Law: &contention.MPS, table: "alnair", kind: varied},
	{Name: "miso_varied", Card: a100, Law: &contention.MPS, table: "miso", kind: varied},
	{Name: "alnair_sweeps", Card: unnamed, Law: &contention.MPS, table: "alnair", kind: sweeps},
	{Name: "miso_sweeps", Card: a100, Law: &contention.MPS, table: "miso", kind: sweeps},
}

//go:embed worlds/*.csv
var measured embed.FS

// Workloads names the thesis's five, in its order.
func Workloads() []string { return names(func(p *Place) bool { return p.kind == atOnce }) }

// Worlds names the places where jobs come over time, in the order of a table.
func Worlds() []string { return names(func(p *Place) bool { return p.kind != atOnce }) }

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

// Report is what a competition over places found.
type Report struct {
	Options
	// Lines has one line for each place, load (as %g) and policy.
	Lines map[string]map[string]map[string]*Line `json:"lines"`
	// LowerBoundS is the mean over the seeds of a mean turnaround below which no schedule is, by place and load; of a
	// makespan where all jobs come at once.
	LowerBoundS map[string]map[string]float64 `json:"lower_bound_s"`
	// Geomean is each policy's geometric mean over places and loads of Line.Ratio, without the places where runs differ
	// and have limits, which are GeomeanVaried's, and those of sweeps, which are GeomeanSweeps's.
	Geomean       map[string]float64 `json:"geomean_vs_fifo"`
	GeomeanVaried map[string]float64 `json:"geomean_vs_fifo_varied,omitempty"`
	GeomeanSweeps map[string]float64 `json:"geomean_vs_fifo_sweeps,omitempty"`
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
	ratios := map[kind]map[string][]float64{exact: {}, varied: {}, sweeps: {}, atOnce: {}}
	for _, name := range o.Workloads {
		place, err := PlaceNamed(name)
		if err != nil {
			return nil, err
		}
		r.Lines[name], r.LowerBoundS[name] = map[string]map[string]*Line{}, map[string]float64{}
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
			r.Lines[name][of], r.LowerBoundS[name][of] = c.lines(), c.lowest()
			for policy, l := range r.Lines[name][of] {
				l.Thesis = thesisVsSJF[name][policy]
				ratio, _ := l.Ratio()
				ratios[place.kind][policy] = append(ratios[place.kind][policy], ratio)
			}
		}
	}
	if r.Geomean = geomeans(ratios[exact]); r.Geomean == nil {
		r.Geomean = geomeans(ratios[atOnce])
	}
	r.GeomeanVaried, r.GeomeanSweeps = geomeans(ratios[varied]), geomeans(ratios[sweeps])
	return r, nil
}

// geomeans are the geometric means of each policy's ratios; nil where there are none.
func geomeans(ratios map[string][]float64) (out map[string]float64) {
	for policy, x := range ratios {
		if out == nil {
			out = map[string]float64{}
		}
		out[policy] = stat.GeometricMean(x, nil)
	}
	return out
}

// contest draws one load's job sets.
func (p *Place) contest(o *Options, load float64) (*contest, error) {
	if p.kind == atOnce {
		return p.thesis(o)
	}
	c := &contest{o: o, aim: policy.Turnaround, once: true}
	for i := range o.Seeds {
		r, err := p.ready(o, load, o.Seed+uint64(i))
		if err != nil {
			return nil, err
		}
		c.world, c.sets = r.World, append(c.sets, r.Config)
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
	t := p.Trace(o.GPUs, o.Jobs, load, seed)
	if p.kind == sweeps {
		t = p.sweeps(o.GPUs, o.Jobs, load, seed)
	}
	r, err := t.Ready(o)
	if err != nil {
		return nil, err
	}
	switch {
	case o.DurationError != nil:
		r = r.knowing(*o.DurationError, seed)
	case p.kind != sweeps:
		r = r.knowing(0, seed)
	}
	if p.kind == varied {
		r.vary(seed)
	}
	r.World.Objective, r.World.BuiltIn, r.World.AllGuarded = policy.Turnaround, true, true
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
