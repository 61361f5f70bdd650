package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Options are an experiment's settings.
type Options struct {
	Workloads []string // default: all five
	Policies  []string // default: all; sjf is added, everything is compared with it
	Seeds     int      // default 10
	Seed      uint64   // of the trainings; the competition's are this + 10,000 …
	M         int      // window; default 5
	// Objective is what policies learn, and are tuned, to keep small; default policy.Makespan.
	Objective policy.Objective
	Effort    Effort
	// History is how many job sets the site has run before, of each workload, and
	// learned slowdowns from (see World.Learn). 0: it knows solo profiles only.
	History int
	// Tries is how many schedules the clairvoyant looks at, a seed. 0: no bound.
	Tries int
	// MaxSlowdown and Grace are the contract of every job; see rlcore.Guard.
	MaxSlowdown, Grace float64
	// Contracts are the slowdowns at which dqn's trade-off is drawn on the random
	// workload; none: no curve.
	Contracts []float64
	// Progress, if set, is called with what begins: step of steps.
	Progress func(step, steps int, what string)
}

// Line is how one policy did on one workload. Lists have one entry a seed.
type Line struct {
	MakespanS     []float64 `json:"makespan_s"`
	MakespanVsSJF float64   `json:"makespan_vs_sjf"` // mean over the seeds of the ratios
	MakespanSD    float64   `json:"makespan_vs_sjf_sd"`
	WithTraining  float64   `json:"makespan_vs_sjf_with_training"` // training time added once, as in the thesis's Fig. 16
	TurnaroundS   float64   `json:"mean_turnaround_s"`
	GPUUtil       float64   `json:"gpu_util"` // 0..1, over the makespan
	MemUtil       float64   `json:"mem_util"`
	LE2           float64   `json:"slowdown_le_2pct"`  // jobs, mean over the seeds
	LT10          float64   `json:"slowdown_lt_10pct"` // jobs; includes those before
	LT20          float64   `json:"slowdown_lt_20pct"`
	GE20          float64   `json:"slowdown_ge_20pct"`
	MeanSlowdown  float64   `json:"mean_slowdown"`
	OOM           int       `json:"oom"`            // over all seeds, like the next three
	TimedOut      int       `json:"timed_out"`      // jobs ended at their limit
	HarmedTimeout int       `json:"harmed_timeout"` // of these, the ones that alone would have ended before
	PastDeadline  int       `json:"past_deadline"`  // jobs ended at their deadline, or cancelled because of it
	Lateness
	TrainS         float64 `json:"train_s"`
	GainShare      float64 `json:"share_of_clairvoyant_gain"` // of the makespan; NaN-free: 1 where there is nothing to gain
	Cost1          float64 `json:"ec2_cost1_vs_whole"`        // Fig. 17; see Cost
	Cost2          float64 `json:"ec2_cost2_vs_whole"`
	Note           string  `json:"note,omitempty"`
	ThesisVsSJF    float64 `json:"thesis_makespan_vs_sjf,omitempty"`
	ThesisMakespan float64 `json:"thesis_makespan_s,omitempty"`

	first *sim.Result // of the first seed, for pictures
}

// First is the first seed's result, with its track.
func (l *Line) First() *sim.Result { return l.first }

// TradeOff is one point of the curve slowdown against makespan.
type TradeOff struct {
	Contract      float64 `json:"contract"` // slowdown allowed, as predicted
	MakespanVsSJF float64 `json:"makespan_vs_sjf"`
	MakespanSD    float64 `json:"makespan_vs_sjf_sd"`
	LT10          float64 `json:"slowdown_lt_10pct"`
	OOM           int     `json:"oom"`
}

// Report is what an experiment found.
type Report struct {
	Seed    uint64 `json:"seed"`
	Seeds   int    `json:"seeds"`
	M       int    `json:"window"`
	Jobs    int    `json:"jobs"`
	History int    `json:"history"`
	// MaxSlowdown and Grace are the jobs' contract, 0 = none and the default.
	MaxSlowdown float64                     `json:"max_slowdown"`
	Grace       float64                     `json:"grace"`
	Workloads   map[string]map[string]*Line `json:"workloads"`
	TradeOff    []TradeOff                  `json:"trade_off,omitempty"`
	Pairs       *PairMatrix                 `json:"pairs"`
	// Geomean is each policy's geometric mean over the workloads of
	// makespan_vs_sjf.
	Geomean map[string]float64 `json:"geomean_vs_sjf"`
}

// thesisVsSJF is the thesis's ratio of makespans, where it prints one (ch. 5).
var thesisVsSJF = map[string]map[string]float64{
	"gpu_heavy": {"dqngpu": 4891. / 4807, "deeprm_mean": 5530. / 4807},
	"gpu_light": {"dqngpu": 1214. / 2295},
	"random":    {"dqngpu": 1.027, "tetris": 1.294, "deeprm_max": 1.255, "deeprm_mean": 1.346},
}

var thesisMakespan = map[string]map[string]float64{
	"gpu_heavy": {"sjf": 4807, "dqngpu": 4891, "deeprm_mean": 5530},
	"gpu_light": {"sjf": 2295, "dqngpu": 1214},
	"mem_light": {"dqngpu": 3928},
	"random":    {"sjf": 2416, "dqngpu": 2481},
}

// ErrOptions marks options that make no sense.
var ErrOptions = errors.New("bad options")

func (o Options) orDefaults() (Options, error) {
	o.Seeds, o.M, o.Effort, o.Objective = cmp.Or(o.Seeds, 10), cmp.Or(o.M, 5), cmp.Or(o.Effort, Full), cmp.Or(o.Objective, policy.Makespan)
	if len(o.Workloads) == 0 {
		o.Workloads = Workloads()
	}
	o.Workloads = uniq(o.Workloads)
	if len(o.Policies) == 0 {
		o.Policies = Names()
	}
	if !slices.Contains(o.Policies, "sjf") {
		o.Policies = append([]string{"sjf"}, o.Policies...)
	}
	o.Policies = uniq(o.Policies)
	if o.Seeds < 1 || o.M < 1 || o.M > rlcore.MaxWindow {
		return o, fmt.Errorf("%w: seeds is %d, window %d: at least 1, and at most %d for the window", ErrOptions, o.Seeds, o.M, rlcore.MaxWindow)
	}
	return o, nil
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

// experiment is one under way.
type experiment struct {
	o      Options
	report *Report
	step   int
}

// Run runs the experiment.
func Run(ctx context.Context, o Options) (*Report, error) {
	o, err := o.orDefaults()
	if err != nil {
		return nil, err
	}
	e := &experiment{o: o, report: &Report{
		Seed: o.Seed, Seeds: o.Seeds, M: o.M, Jobs: JobsPerWorkload, History: o.History, MaxSlowdown: o.MaxSlowdown, Grace: o.Grace,
		Workloads: map[string]map[string]*Line{}, Geomean: map[string]float64{},
	}}
	for _, wl := range o.Workloads {
		if err := e.play(ctx, wl); err != nil {
			return nil, fmt.Errorf("%s: %w", wl, err)
		}
	}
	for _, wl := range o.Workloads { // in their order: a sum of floats depends on it
		for name, l := range e.report.Workloads[wl] {
			e.report.Geomean[name] += math.Log(l.MakespanVsSJF) / float64(len(o.Workloads))
		}
	}
	for name, x := range e.report.Geomean {
		e.report.Geomean[name] = math.Exp(x)
	}
	e.report.Pairs, err = pairMatrix()
	return e.report, err
}

// progress reports what begins.
func (e *experiment) progress(what string) {
	if e.o.Progress != nil {
		e.o.Progress(e.step, len(e.o.Workloads)*(len(e.o.Policies)+1)+1, what)
	}
	e.step++
}

// play lets all policies compete on one workload, and the clairvoyant after them.
func (e *experiment) play(ctx context.Context, wl string) error {
	o := e.o
	scenario, err := Thesis(wl)
	if err != nil {
		return err
	}
	world := &World{Model: func() *interference.Model { return interference.New(&contention.MPS) }, M: o.M, Objective: o.Objective}
	world.Guard.MaxSlowdown, world.Guard.Grace = o.MaxSlowdown, o.Grace
	if err := world.Learn(scenario, o.History, o.Seed); err != nil {
		return err
	}
	cfgs := make([]sim.Config, o.Seeds)
	for i := range cfgs {
		if cfgs[i], err = scenario(rand.New(rand.NewPCG(o.Seed+10_000+uint64(i), 0x7e57))); err != nil {
			return err
		}
		cfgs[i].Track = i == 0
	}
	results, lines := map[string][]*sim.Result{}, map[string]*Line{}
	e.report.Workloads[wl] = lines
	var own *Contender
	for _, name := range o.Policies {
		e.progress(wl + ": " + name)
		c, err := world.Prepare(ctx, name, scenario, o.Effort, o.Seed)
		if err != nil {
			return err
		}
		if name == ours {
			own = c
		}
		if results[name], err = c.runAll(ctx, cfgs); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		lines[name] = &Line{TrainS: c.TrainS, Note: c.Note}
	}
	e.progress(wl + ": " + Clairvoyant)
	if o.Tries > 0 {
		if results[Clairvoyant], err = world.bounds(ctx, cfgs, o, results); err != nil {
			return fmt.Errorf("%s: %w", Clairvoyant, err)
		}
		lines[Clairvoyant] = &Line{Note: fmt.Sprintf("%d schedules tried", o.Tries)}
	}
	for name, l := range lines {
		l.fill(results[name], results["sjf"], results[Clairvoyant])
		l.ThesisVsSJF, l.ThesisMakespan = thesisVsSJF[wl][name], thesisMakespan[wl][name]
	}
	if wl == "random" && own != nil {
		e.progress("the trade-off between slowdown and makespan")
		e.report.TradeOff, err = tradeOff(ctx, own, o.Contracts, cfgs, results["sjf"])
	}
	return err
}

// parallel runs f for 0 … n−1, two at a time, and returns the first error.
func parallel(ctx context.Context, n int, f func(i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for i := range n {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return f(i)
		})
	}
	return g.Wait()
}

func (c *Contender) runAll(ctx context.Context, cfgs []sim.Config) ([]*sim.Result, error) {
	out := make([]*sim.Result, len(cfgs))
	err := parallel(ctx, len(cfgs), func(i int) (err error) {
		out[i], err = c.Run(cfgs[i])
		return err
	})
	return out, err
}

func (w *World) bounds(ctx context.Context, cfgs []sim.Config, o Options, results map[string][]*sim.Result) ([]*sim.Result, error) {
	out := make([]*sim.Result, len(cfgs))
	err := parallel(ctx, len(cfgs), func(i int) (err error) {
		var from []*sim.Result
		for _, name := range o.Policies {
			from = append(from, results[name][i])
		}
		out[i], err = w.Bound(cfgs[i], o.Tries, o.Seed+uint64(i), sim.Makespan, from)
		return err
	})
	return out, err
}

// fill computes a line from the results of its policy, SJF's and the bound's.
func (l *Line) fill(rs, sjf, bound []*sim.Result) {
	n := float64(len(rs))
	l.first = rs[0]
	var sum, sq, gain, could float64
	for i, r := range rs {
		l.MakespanS = append(l.MakespanS, r.MakespanS)
		x := r.MakespanS / sjf[i].MakespanS
		sum, sq = sum+x, sq+x*x
		l.WithTraining += (r.MakespanS + l.TrainS) / sjf[i].MakespanS / n
		l.TurnaroundS += r.MeanTurnaroundS / n
		l.GPUUtil += r.GPUUtil / n
		l.MemUtil += r.MemUtil / n
		l.OOM += r.OOM
		l.TimedOut, l.HarmedTimeout, l.PastDeadline = l.TimedOut+r.TimedOut, l.HarmedTimeout+r.Harmed, l.PastDeadline+r.PastDeadline
		for k := range r.Jobs {
			l.Lateness.add(&r.Jobs[k], 1/n/float64(len(r.Jobs)))
		}
		slowdowns := r.Slowdowns()
		for _, s := range slowdowns {
			l.MeanSlowdown += s / n / float64(len(slowdowns))
			// A millionth is rounding: 1.1 is not below 10 %.
			switch {
			case s >= 1.2-1e-6:
				l.GE20 += 1 / n
				continue
			case s <= 1.02+1e-6:
				l.LE2 += 1 / n
			}
			l.LT20 += 1 / n
			if s < 1.1-1e-6 {
				l.LT10 += 1 / n
			}
		}
		if bound != nil {
			gain += sjf[i].MakespanS - r.MakespanS
			could += sjf[i].MakespanS - bound[i].MakespanS
		}
	}
	l.MakespanVsSJF = sum / n
	l.MakespanSD = math.Sqrt(max(0, sq/n-l.MakespanVsSJF*l.MakespanVsSJF))
	l.GainShare = 1
	if could > 1e-9 {
		l.GainShare = gain / could
	}
	l.Cost1, l.Cost2 = Cost(l.MakespanVsSJF)
}

// Cost is what the random workload costs on a shared EC2 instance over what it
// costs on whole ones, by the thesis's two countings (its Table 5 and Fig. 17):
// half a g4dn.4xlarge ($0.602/h) instead of a g3.xlarge ($0.75/h) where GPU memory
// is counted, a quarter ($0.301/h) instead of a g4dn.xlarge ($0.526/h) where vCPUs
// and memory are. ratio is the shared makespan over the exclusive one.
func Cost(ratio float64) (byGPUMemory, byCPU float64) {
	return ratio * 0.602 / 0.75, ratio * 0.301 / 0.526
}

// tradeOff lets the trained dqn run under contracts: the slowdown that no job may
// be expected to exceed.
func tradeOff(ctx context.Context, c *Contender, contracts []float64, cfgs []sim.Config, sjf []*sim.Result) ([]TradeOff, error) {
	var out []TradeOff
	for _, x := range contracts {
		w := *c.world
		w.Guard.MaxSlowdown = x
		under := *c
		under.world = &w
		rs, err := under.runAll(ctx, cfgs)
		if err != nil {
			return nil, err
		}
		var l Line
		l.fill(rs, sjf, nil)
		out = append(out, TradeOff{x, l.MakespanVsSJF, l.MakespanSD, l.LT10, l.OOM})
	}
	return out, nil
}
