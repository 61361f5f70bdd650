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
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
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
	// Varied: runs differ, see vary, and jobs have limits.
	Varied bool
}

// Published slowdowns. Nothing is fitted to them here, and no network is trained on them.
//
//go:embed worlds/*.csv
var measured embed.FS

// lawPlace is the place with the law itself as truth, and the thesis's applications.
const lawPlace = "law"

// measuredPlaces are the places with a table of measured pairs.
var measuredPlaces = []Place{
	{Name: "alnair", About: "MPS, card unnamed; memory assumed", Card: rlcore.GPUSpec{Model: "unnamed", MemMiB: 12288}, Law: &contention.MPS},
	{Name: "miso", About: "MPS on an A100; lower bounds of slowdowns", Card: rlcore.GPUSpec{Model: "a100", MemMiB: 40536}, Law: &contention.MPS},
	{Name: "gavel_p100", About: "time-slicing on a P100; utilisation and memory assumed", Card: rlcore.GPUSpec{Model: "p100", MemMiB: 16280}, Law: &contention.TimeSlice},
	{Name: "gavel_k80", About: "time-slicing on a K80; utilisation and memory assumed", Card: rlcore.GPUSpec{Model: "k80", MemMiB: 11441}, Law: &contention.TimeSlice},
}

// variedSuffix names the place like another one where runs differ.
const variedSuffix = "_varied"

// PlaceNames lists the places, in the order of a table.
func PlaceNames() []string {
	out := []string{lawPlace}
	for _, p := range measuredPlaces {
		out = append(out, p.Name)
	}
	return append(out, "alnair"+variedSuffix, "miso"+variedSuffix)
}

// PlaceNamed reads a place. One with _varied behind its name is the same place, where runs differ and have limits.
func PlaceNamed(name string) (*Place, error) {
	if like, ok := strings.CutSuffix(name, variedSuffix); ok {
		p, err := PlaceNamed(like)
		if err != nil {
			return nil, err
		}
		p.Name, p.Varied, p.About = name, true, p.About+"; runs differ, and have limits"
		return p, nil
	}
	if name == lawPlace {
		p := &Place{Name: lawPlace, About: "the thesis's applications on a Titan Xp, under the law itself", Card: rlcore.TitanXp, Law: &contention.MPS}
		for _, app := range apps.Names() {
			x, _ := apps.ByName(app)
			p.Profiles = append(p.Profiles, x)
		}
		return p, nil
	}
	i := slices.IndexFunc(measuredPlaces, func(p Place) bool { return p.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("%w: there is no world %q; there are %v", ErrOptions, name, PlaceNames())
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

// WorldsOptions are the settings of a competition over places.
type WorldsOptions struct {
	Places   []string  // default: all
	Loads    []float64 // default: 0.7, 0.9 and 1.1
	Policies []string  // default: WorldPolicies
	Seeds    int       // default 10
	Seed     uint64
	GPUs     int // default 2
	Jobs     int // default 300
	M        int // default rlcore.DefaultWindow
	// MaxSlowdown and Grace are the contract of every job; see rlcore.Guard. Bare: there is
	// none, nor a promise, and memory is all that the guard looks at.
	MaxSlowdown, Grace float64
	Bare               bool
	// KeepLimits: a job is ended at its limit even if sharing slowed it; see
	// rlcore.Guard.ExtendLimit.
	KeepLimits bool
	// DurationError is how well each job's duration is known, see ReplayOptions.
	DurationError float64
	Tries         int         // of the clairvoyant, a seed; 0 = none
	Tune          int         // job sets that a knob is tuned on; 0 = its first setting
	Trained       dqn.Network // dqn's; nil = the one built in
	Progress      func(step, steps int, what string)
}

// WorldLine is how a policy did at a place under a load: means over the seeds.
type WorldLine struct {
	TurnaroundS  float64 `json:"mean_turnaround_s"`
	VsFifo       float64 `json:"turnaround_vs_fifo"` // mean over the seeds of the ratios
	VsFifoSD     float64 `json:"turnaround_vs_fifo_sd"`
	MakespanS    float64 `json:"makespan_s"`
	MeanSlowdown float64 `json:"mean_slowdown"`
	P95Slowdown  float64 `json:"p95_slowdown"`
	MaxSlowdown  float64 `json:"worst_slowdown"` // over the seeds
	OOM          float64 `json:"oom"`
	Harmed       float64 `json:"harmed_timeout"` // jobs ended at their limits for having shared
	Lateness
	GainShare  float64 `json:"share_of_clairvoyant_gain"` // in turnaround; 0 where it wasn't looked for
	DecisionUS float64 `json:"decision_us"`               // wall time of the simulation, µs a decision
	Note       string  `json:"note,omitempty"`

	turnaroundS []float64 // by seed
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
	// Geomean is each policy's geometric mean over places and loads of turnaround ÷ fifo's.
	Geomean map[string]float64 `json:"geomean_vs_fifo"`
	// GeomeanVaried is the same over the places where runs differ and have limits, which Geomean leaves out.
	GeomeanVaried map[string]float64 `json:"geomean_vs_fifo_varied,omitempty"`
}

// WorldPolicies are the policies that compete over places by default.
func WorldPolicies() []string {
	return []string{Fifo, "sjf", "tetris", "random", "greedy", "srpt", "lookahead", ours}
}

func (o WorldsOptions) orDefaults() (WorldsOptions, error) {
	o.Seeds, o.GPUs, o.Jobs, o.M = cmp.Or(o.Seeds, 10), cmp.Or(o.GPUs, 2), cmp.Or(o.Jobs, 300), cmp.Or(o.M, rlcore.DefaultWindow)
	if len(o.Places) == 0 {
		o.Places = PlaceNames()
	}
	if len(o.Loads) == 0 {
		o.Loads = []float64{0.7, 0.9, 1.1}
	}
	if len(o.Policies) == 0 {
		o.Policies = WorldPolicies()
	}
	if !slices.Contains(o.Policies, Fifo) {
		o.Policies = append([]string{Fifo}, o.Policies...)
	}
	o.Places, o.Policies = uniq(o.Places), uniq(o.Policies)
	for _, load := range o.Loads {
		if !(load > 0 && load <= 10) {
			return o, fmt.Errorf("%w: a load of %v, not above 0 and up to 10", ErrOptions, load)
		}
	}
	if o.Seeds < 1 || o.GPUs < 1 || o.Jobs < 2 || o.M < 1 || o.M > rlcore.MaxWindow {
		return o, fmt.Errorf("%w: %d seeds, %d GPUs, %d jobs, a window of %d: at least one of each, two jobs, a window up to %d", ErrOptions, o.Seeds, o.GPUs, o.Jobs, o.M, rlcore.MaxWindow)
	}
	return o, nil
}

// Worlds lets policies compete on jobs that come over time, at places with measured slowdowns and
// under the law itself. All policies that share are under the same guard and believe the same
// model, which learns from the co-runs it sees, as the daemon's does.
func Worlds(ctx context.Context, o WorldsOptions) (*WorldsReport, error) {
	o, err := o.orDefaults()
	if err != nil {
		return nil, err
	}
	r := &WorldsReport{
		Seed: o.Seed, Seeds: o.Seeds, M: o.M, GPUs: o.GPUs, Jobs: o.Jobs, Loads: o.Loads, Places: o.Places, MaxSlowdown: o.MaxSlowdown, Grace: o.Grace,
		Bare: o.Bare, DurationError: o.DurationError, Lines: map[string]map[string]map[string]*WorldLine{},
	}
	step := 0
	for _, name := range o.Places {
		place, err := PlaceNamed(name)
		if err != nil {
			return nil, err
		}
		r.Lines[name] = map[string]map[string]*WorldLine{}
		for _, load := range o.Loads {
			if o.Progress != nil {
				o.Progress(step, len(o.Places)*len(o.Loads), fmt.Sprintf("%s, load %g", name, load))
			}
			step++
			lines, err := place.compete(ctx, &o, load)
			if err != nil {
				return nil, fmt.Errorf("%s, load %g: %w", name, load, err)
			}
			r.Lines[name][fmt.Sprintf("%g", load)] = lines
		}
	}
	r.Geomean, r.GeomeanVaried = r.geomean(false), r.geomean(true)
	return r, nil
}

// geomean is each policy's geometric mean over the places of a kind, and all loads; nil where there is no such place.
func (r *WorldsReport) geomean(varied bool) map[string]float64 {
	logs := map[string][]float64{}
	for name, loads := range r.Lines {
		if strings.HasSuffix(name, variedSuffix) != varied {
			continue
		}
		for _, lines := range loads {
			for policy, l := range lines {
				logs[policy] = append(logs[policy], math.Log(l.VsFifo))
			}
		}
	}
	var out map[string]float64
	for policy, all := range logs {
		if out == nil {
			out = map[string]float64{}
		}
		slices.Sort(all) // the same sum each time
		sum := 0.0
		for _, x := range all {
			sum += x / float64(len(all))
		}
		out[policy] = math.Exp(sum)
	}
	return out
}

// worldRun is one seed: each policy's result.
type worldRun struct {
	results map[string]*sim.Result
	tookUS  map[string]float64
}

// compete lets the policies schedule one load's job sets.
func (p *Place) compete(ctx context.Context, o *WorldsOptions, load float64) (map[string]*WorldLine, error) {
	base, err := p.ready(o, load, o.Seed)
	if err != nil {
		return nil, err
	}
	contenders := map[string]*Contender{}
	for _, name := range o.Policies {
		if contenders[name], err = p.contender(ctx, name, base.World, o, load); err != nil {
			return nil, err
		}
	}
	runs := make([]worldRun, o.Seeds)
	err = parallel(ctx, o.Seeds, func(i int) (err error) {
		runs[i], err = p.run(ctx, o, contenders, load, o.Seed+uint64(i))
		return err
	})
	if err != nil {
		return nil, err
	}
	lines := map[string]*WorldLine{}
	for name := range runs[0].results {
		lines[name] = &WorldLine{}
		if c := contenders[name]; c != nil {
			lines[name].Note = c.Note
		}
		lines[name].fill(runs, name)
	}
	return lines, nil
}

// ready draws a job set.
func (p *Place) ready(o *WorldsOptions, load float64, seed uint64) (*Replayable, error) {
	r, err := p.Trace(o.GPUs, o.Jobs, load, seed).Ready(o.M)
	if err != nil {
		return nil, err
	}
	r = r.knowing(o.DurationError, seed)
	if p.Varied {
		r.vary(seed)
	}
	r.World.Objective = policy.Turnaround
	r.World.Guard.MaxSlowdown, r.World.Guard.Grace, r.World.Guard.ExtendLimit = o.MaxSlowdown, o.Grace, !o.KeepLimits
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

// vary draws another length for each run, log-normal around the one that is known of its application, and a limit. What is
// known is the mean and its standard deviation.
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

// contender makes a policy under the common guard. Knobs are tuned on other job sets, in the
// world as the site believes it to be.
func (p *Place) contender(ctx context.Context, name string, w *World, o *WorldsOptions, load float64) (*Contender, error) {
	if name == ours {
		c, err := w.builtIn(name, o.Trained)
		if err == nil {
			c.learns = true
		}
		return c, err
	}
	believed := *p
	believed.Pairs = nil
	tune := func(r *rand.Rand) (sim.Config, error) {
		x, err := believed.ready(o, load, r.Uint64())
		if err != nil {
			return sim.Config{}, err
		}
		x.Config.GPUs = slices.Clone(x.Config.GPUs)
		for i := range x.Config.GPUs {
			if len(p.Pairs) > 0 {
				x.Config.GPUs[i].MaxClients = 2 // as in the competition
			}
		}
		return x.Config, nil
	}
	c, err := w.Prepare(ctx, name, tune, Effort{Tune: o.Tune}, o.Seed)
	if err != nil {
		return nil, err
	}
	c.bare, c.learns = false, !c.alone
	return c, nil
}

// builtIn returns a contender that decides by a network, nil = the one that is built in.
func (w *World) builtIn(name string, net dqn.Network) (*Contender, error) {
	if net != nil {
		return w.Trained(name, net), nil
	}
	cp, err := pretrained.Checkpoint(w.Objective)
	if err != nil {
		return nil, err
	}
	if net, err = cp.Network(w.Model()); err != nil {
		return nil, err
	}
	c := w.Trained(name, net)
	c.Note = pretrained.BuiltInFor(w.Objective)
	return c, nil
}

// run lets the policies schedule one job set, and the clairvoyant after them.
func (p *Place) run(ctx context.Context, o *WorldsOptions, contenders map[string]*Contender, load float64, seed uint64) (worldRun, error) {
	out := worldRun{map[string]*sim.Result{}, map[string]float64{}}
	r, err := p.ready(o, load, seed)
	if err != nil {
		return out, err
	}
	var from []*sim.Result
	for _, name := range o.Policies {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		began := time.Now()
		res, err := contenders[name].Run(r.Config)
		if err != nil {
			return out, fmt.Errorf("%s: %w", name, err)
		}
		out.tookUS[name] = time.Since(began).Seconds() * 1e6 / float64(max(1, res.Decisions))
		out.results[name] = res
		from = append(from, res)
	}
	if o.Tries > 0 {
		out.results[Clairvoyant], err = r.World.Bound(r.Config, o.Tries, seed, sim.Turnaround, from)
	}
	return out, err
}

func (l *WorldLine) fill(runs []worldRun, name string) {
	n := float64(len(runs))
	sq := 0.0
	for _, run := range runs {
		r, fifo := run.results[name], run.results[Fifo]
		x := r.MeanTurnaroundS / fifo.MeanTurnaroundS
		l.turnaroundS = append(l.turnaroundS, r.MeanTurnaroundS)
		l.TurnaroundS, l.MakespanS, l.OOM = l.TurnaroundS+r.MeanTurnaroundS/n, l.MakespanS+r.MakespanS/n, l.OOM+float64(r.OOM)/n
		l.Harmed += float64(r.Harmed) / n
		l.VsFifo, sq = l.VsFifo+x/n, sq+x*x/n
		l.DecisionUS += run.tookUS[name] / n
		s := r.Slowdowns()
		for _, v := range s {
			l.MeanSlowdown += v / float64(len(s)) / n
		}
		if len(s) > 0 {
			l.P95Slowdown += s[min(len(s)-1, int(0.95*float64(len(s))))] / n
			l.MaxSlowdown = max(l.MaxSlowdown, s[len(s)-1])
		}
		for k := range r.Jobs {
			l.Lateness.add(&r.Jobs[k], 1/n/float64(len(r.Jobs)))
		}
		if bound := run.results[Clairvoyant]; bound != nil {
			l.GainShare += gainShare(fifo, r, bound, sim.Turnaround) / n
		}
	}
	l.VsFifoSD = math.Sqrt(max(0, sq-l.VsFifo*l.VsFifo))
}
