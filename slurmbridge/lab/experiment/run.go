package experiment

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Line is how one policy did on one workload.
type Line struct {
	MakespanS     []float64 `json:"makespan_s"`      // by seed
	MakespanVsSJF float64   `json:"makespan_vs_sjf"` // mean over the seeds of the ratios
	MakespanSD    float64   `json:"makespan_vs_sjf_sd"`
	WithTraining  float64   `json:"makespan_vs_sjf_with_training"` // training time added once, as in the thesis's Fig. 16
	LE2           float64   `json:"slowdown_le_2pct"`              // jobs, mean over the seeds
	LT10          float64   `json:"slowdown_lt_10pct"`             // jobs; includes those before
	LT20          float64   `json:"slowdown_lt_20pct"`
	GE20          float64   `json:"slowdown_ge_20pct"`
	Fared
	Cost1          float64 `json:"ec2_cost1_vs_whole"` // Fig. 17; see Cost
	Cost2          float64 `json:"ec2_cost2_vs_whole"`
	ThesisVsSJF    float64 `json:"thesis_makespan_vs_sjf,omitempty"`
	ThesisMakespan float64 `json:"thesis_makespan_s,omitempty"`
}

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
	// LowerBoundS is the mean over the seeds of a makespan below which no schedule is, by workload.
	LowerBoundS map[string]float64 `json:"lower_bound_s"`
	TradeOff    []TradeOff         `json:"trade_off,omitempty"`
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

// experiment is one under way.
type experiment struct {
	o      Options
	report *Report
	step   int
}

// Run runs the thesis's experiment.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Check(&OnWorkloads); err != nil {
		return nil, err
	}
	if o.Objective == "" {
		o.Objective = policy.Makespan
	}
	e := &experiment{o: o, report: &Report{
		Seed: o.Seed, Seeds: o.Seeds, M: o.M, Jobs: JobsPerWorkload, History: o.History, MaxSlowdown: o.MaxSlowdown,
		Grace:     o.Grace,
		Workloads: map[string]map[string]*Line{}, LowerBoundS: map[string]float64{}, Geomean: map[string]float64{},
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
	return e.report, nil
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
	o := &e.o
	scenario, err := Thesis(wl)
	if err != nil {
		return err
	}
	world := &World{
		Model: func() *interference.Model { return interference.New(&contention.MPS) }, M: o.M,
		Objective: o.Objective, Trained: o.Trained,
	}
	world.Guard.MaxSlowdown, world.Guard.Grace = o.MaxSlowdown, o.Grace
	if err := world.Learn(scenario, o.History, o.Seed); err != nil {
		return err
	}
	c := &contest{world: world, o: o, sets: make([]sim.Config, o.Seeds), aim: policy.Makespan, once: true}
	for i := range c.sets {
		if c.sets[i], err = scenario(rand.New(rand.NewPCG(o.Seed+10_000+uint64(i), 0x7e57))); err != nil {
			return err
		}
	}
	c.begin = func(what string) { e.progress(wl + ": " + what) }
	c.prepare = func(ctx context.Context, name string, _ int) (*Contender, error) {
		return world.Prepare(ctx, name, scenario, o.Effort, o.Seed)
	}
	if err := c.run(ctx); err != nil {
		return err
	}
	lines := map[string]*Line{}
	e.report.Workloads[wl], e.report.LowerBoundS[wl] = lines, c.lowest()
	for name := range c.entries {
		lines[name] = c.line(name)
		lines[name].ThesisVsSJF, lines[name].ThesisMakespan = thesisVsSJF[wl][name], thesisMakespan[wl][name]
	}
	if own := c.entries[ours]; wl == "random" && own != nil {
		e.progress("the trade-off between slowdown and makespan")
		return e.tradeOff(ctx, c, own.contender)
	}
	return nil
}

// line sums up a policy on a workload.
func (c *contest) line(name string) *Line {
	l := &Line{Fared: c.fared(name, "sjf")}
	rs, sjf := c.results(name), c.results("sjf")
	n := float64(len(rs))
	l.OOM, l.TimedOut, l.HarmedTimeout, l.PastDeadline = math.Round(n*l.OOM), math.Round(n*l.TimedOut),
		math.Round(n*l.HarmedTimeout), math.Round(n*l.PastDeadline)
	if bound := c.results(Clairvoyant); bound != nil { // one share of all seeds' gains: some have none
		got, _ := over(rs, func(i int, r *sim.Result) float64 { return sjf[i].MakespanS - r.MakespanS })
		could, _ := over(bound, func(i int, r *sim.Result) float64 { return sjf[i].MakespanS - r.MakespanS })
		l.GainShare, l.GainShareSD = gainShare(0, -got, -could), 0
	}
	l.MakespanVsSJF, l.MakespanSD = over(rs, func(i int, r *sim.Result) float64 { return r.MakespanS / sjf[i].MakespanS })
	l.WithTraining, _ = over(rs, func(i int, r *sim.Result) float64 { return (r.MakespanS + l.TrainS) / sjf[i].MakespanS })
	for _, r := range rs {
		l.MakespanS = append(l.MakespanS, r.MakespanS)
		for _, s := range r.Slowdowns() {
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
	}
	l.Cost1, l.Cost2 = Cost(l.MakespanVsSJF)
	return l
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
func (e *experiment) tradeOff(ctx context.Context, c *contest, dqn *Contender) error {
	for _, x := range e.o.Contracts {
		w, o := *dqn.world, e.o
		w.Guard.MaxSlowdown, o.Policies, o.Tries = x, []string{"sjf", ours}, 0
		under := *dqn
		under.world = &w
		point := &contest{world: &w, o: &o, sets: c.sets, aim: c.aim, once: true, begin: func(string) {}}
		point.prepare = func(_ context.Context, name string, _ int) (*Contender, error) {
			if name == ours {
				return &under, nil
			}
			return c.entries[name].contender, nil
		}
		if err := point.run(ctx); err != nil {
			return err
		}
		l := point.line(ours)
		e.report.TradeOff = append(e.report.TradeOff, TradeOff{x, l.MakespanVsSJF, l.MakespanSD, l.LT10, int(l.OOM)})
	}
	return nil
}
