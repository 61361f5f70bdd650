package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
)

type experimentFlags struct {
	experiment.Options
	quick, worlds         bool
	objective, checkpoint string
	durationError         float64
	json                  string
}

func newExperiment(s *shared) *cobra.Command {
	var f experimentFlags
	c := &cobra.Command{
		Use:   "experiment",
		Short: "The thesis's experiments: five workloads, every policy, many seeds",
		Long: `experiment lets every policy schedule the thesis's five workloads (30 jobs each, one
Titan Xp) on the simulator, and compares makespan, utilisation, slowdowns, memory
failures, training time and cost. It needs no Slurm, no GPU and no daemon.

Learning policies are trained, and policies with a parameter are tuned, on other job sets
than the comparison's. sjf gives each job a GPU of its own, shortest first:
everything is compared with it, and with the best other policy. Below the lower bound there is no
schedule; of possible is the part of the gain over sjf that it leaves. clairvoyant is no policy but a
search that knows the whole future and starts from the policies' schedules; where it finds better ones,
share is how much of its gain over sjf a policy reaches. It may not find the best. late is the part
of the jobs that ended later than plain Slurm would have ended them, with whole GPUs in
the order of arrival, by more than a tenth of their own run time alone; worst late is by
how many of these one did at most.

The thesis's own printed figures stand next to ours. Applications' durations and how
HPC codes meet under MPS are assumptions; rlcore/LEARNING.md lists them.

--worlds is another experiment: jobs come over time, and the mean turnaround counts. Its
worlds are the law of slowdowns itself, and published measurements of pairs, which no policy
knows: all use one model, which learns from the co-runs it sees, and all are under the same
guard, then again without contract and promise. Loads are parts of what the GPUs do without
sharing; policies are compared with fifo. There is no clairvoyant: of more than 100 jobs its search
finds little that policies don't.`,
		Example: `  slurmbridge experiment --quick                      less training, in a minute
  slurmbridge experiment --json out.json              everything
  slurmbridge experiment --workloads random --policies greedy,dqn --seeds 30
  slurmbridge experiment --worlds                     jobs that come over time`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, name := range []string{"loads", "gpus", "jobs", "duration-error", "checkpoint"} {
				if !f.worlds && c.Flags().Changed(name) {
					return cli.Usage(fmt.Errorf("--%s is one of --worlds", name))
				}
			}
			if c.Flags().Changed("duration-error") {
				f.DurationError = &f.durationError
			}
			kind := &experiment.OnWorkloads
			if f.Objective = policy.Objective(f.objective); f.worlds {
				kind = &experiment.InWorlds
				if !c.Flags().Changed("window") {
					f.M = rlcore.DefaultWindow
				}
				if c.Flags().Changed("objective") {
					return cli.Usage(errors.New("--worlds is about the turnaround alone"))
				}
			}
			if err := checkOptions(&f.Options, kind, f.json); err != nil {
				return err
			}
			if f.worlds {
				return s.worlds(c.Context(), &f)
			}
			return s.experiment(c.Context(), &f)
		},
	}
	fl, o := c.Flags(), &f.Options
	list := func(names []string) string { return strings.Join(names, ", ") }
	fl.StringSliceVar(&o.Workloads, "workloads", nil, "of "+list(experiment.Workloads())+
		", with --worlds of "+list(experiment.PlaceNames())+" (default all)")
	fl.StringSliceVar(&o.Policies, "policies", nil, "of "+list(experiment.Names())+
		" (default all, with --worlds "+list(experiment.WorldPolicies())+")")
	fl.StringVar(&f.objective, "objective", string(policy.Makespan),
		"what policies learn to keep small: "+strings.Join(policy.Objectives(), " or "))
	fl.BoolVar(&f.worlds, "worlds", false, "jobs that come over time, where slowdowns were measured")
	fl.Float64SliceVar(&o.Loads, "loads", []float64{0.7, 0.9, 1.1},
		"with --worlds: how much work comes, of what the GPUs do without sharing")
	addCheckpoint(fl, &f.checkpoint)
	fl.IntVar(&o.GPUs, "gpus", 2, "with --worlds: GPUs")
	fl.IntVar(&o.Jobs, "jobs", 300, "with --worlds: jobs of a set")
	fl.Float64Var(&f.durationError, "duration-error", 0,
		"with --worlds: decisions see each job's own duration, times a factor drawn from 1 ± `PART`; "+
			"in worlds of sweeps the default is what earlier runs foretell")
	addOptions(fl, o, 10, 5, &f.json)
	fl.IntVar(&o.History, "history", 20, "job sets the site ran before and learned slowdowns from")
	fl.BoolVar(&f.quick, "quick", false, "less training and searching: a minute on two cores")
	return c
}

func (s *shared) experiment(ctx context.Context, f *experimentFlags) error {
	f.Effort, f.Tries = experiment.Full, 4000
	if f.quick {
		f.Effort, f.Tries = experiment.Quick, 300
	}
	f.Contracts = []float64{1.05, 1.1, 1.2, 1.3, 1.5, 2, 0}
	b := cli.NewBar(s.ErrOut)
	f.Progress = b.At
	began := time.Now()
	r, err := experiment.Run(ctx, f.Options)
	b.Done()
	if err != nil {
		return err
	}
	if f.json != "-" {
		s.printExperiment(r, time.Since(began))
	}
	return s.writeJSON(f.json, r)
}

// checkOptions refuses settings, and a file of results that can't be written, before anything is
// read or computed.
func checkOptions(o *experiment.Options, k *experiment.Kind, json string) error {
	if o.Seeds == 0 || o.M == 0 {
		return cli.Usage(fmt.Errorf("--seeds %d, --window %d: at least 1", o.Seeds, o.M))
	}
	if err := o.Check(k); err != nil {
		return cli.Usage(fmt.Errorf("--%w", err))
	}
	if err := checkContract(o.MaxSlowdown, o.Grace); err != nil {
		return err
	}
	return writable(json)
}

// lineColumns are the figures of a policy on a workload.
var lineColumns = []column[*experiment.Line]{
	{"makespan s", func(l *experiment.Line) any { return fixed(0, average(l.MakespanS)) }},
	{"÷ sjf", func(l *experiment.Line) any { return fixed(3, l.MakespanVsSJF) }},
	{"±", func(l *experiment.Line) any { return fixed(3, l.MakespanSD) }},
	{"thesis", func(l *experiment.Line) any {
		if l.ThesisVsSJF == 0 {
			return ""
		}
		return fixed(3, l.ThesisVsSJF)
	}},
	{"÷ best other", func(l *experiment.Line) any { return vsBest(&l.Fared) }},
	{"of possible", func(l *experiment.Line) any { return percent(l.PossibleShare) }},
	{"GPU", func(l *experiment.Line) any { return percent(l.GPUUtil) }},
	{"memory", func(l *experiment.Line) any { return percent(l.MemUtil) }},
	{"≤2 %", func(l *experiment.Line) any { return fixed(1, l.LE2) }},
	{"<10 %", func(l *experiment.Line) any { return fixed(1, l.LT10) }},
	{"<20 %", func(l *experiment.Line) any { return fixed(1, l.LT20) }},
	{"≥20 %", func(l *experiment.Line) any { return fixed(1, l.GE20) }},
	{"late", func(l *experiment.Line) any { return tenths(l.Late) }},
	{"worst late", func(l *experiment.Line) any { return fixed(2, l.WorstLate) }},
	{"lost runs", func(l *experiment.Line) any { return l.OOM }},
	{"training s", func(l *experiment.Line) any { return fixed(1, l.TrainS) }},
}

func (s *shared) printExperiment(r *experiment.Report, took time.Duration) {
	fmt.Fprintf(s.Out, "%d jobs a set, %d sets, window %d, seed %d, %d sets of history; simulated Titan Xp under MPS\n",
		r.Jobs, r.Seeds, r.M, r.Seed, r.History)
	fmt.Fprintln(s.Out, contract(r.MaxSlowdown, r.Grace))
	all := append(experiment.Names(), experiment.Clairvoyant)
	for _, wl := range experiment.Workloads() {
		if r.Workloads[wl] == nil {
			continue
		}
		share := shareColumn(r.Workloads[wl][experiment.Clairvoyant] != nil,
			func(l *experiment.Line) *experiment.Fared { return &l.Fared })
		columns := slices.Concat(lineColumns, share)
		t := s.Table(wl, head(columns, "policy")...)
		for _, name := range all {
			if l := r.Workloads[wl][name]; l != nil {
				t.AppendRow(row(columns, l, name))
			}
		}
		t.AppendRow(table.Row{
			"lower bound", fixed(0, r.LowerBoundS[wl]),
			fixed(3, r.LowerBoundS[wl]/average(r.Workloads[wl]["sjf"].MakespanS)),
		})
		t.Render()
	}
	if len(r.TradeOff) > 0 {
		s.printTradeOff(r.TradeOff)
	}
	t := s.Table("geometric mean over the workloads of makespan ÷ sjf; cost of random against whole instances (thesis: "+
		"0.701, 0.500)",
		"policy", "geomean", "cost by GPU memory", "cost by vCPU")
	for _, name := range all {
		g, ok := r.Geomean[name]
		if !ok {
			continue
		}
		byMemory, byCPU := "", ""
		spec, _ := policy.Named(name)
		if l := r.Workloads["random"][name]; l != nil && !spec.Alone {
			byMemory, byCPU = fixed(3, l.Cost1), fixed(3, l.Cost2)
		}
		t.AppendRow(table.Row{name, fixed(3, g), byMemory, byCPU})
	}
	t.Render()
	fmt.Fprintf(s.Out, "lost runs: runs that failed for want of GPU memory, over all sets. Took %.0f s.\n", took.Seconds())
}

func (s *shared) printTradeOff(points []experiment.TradeOff) {
	t := s.Table("dqn on random: the slowdown a job allows, and what it costs", "contract", "makespan ÷ sjf", "±",
		"jobs <10 %", "lost runs")
	for _, x := range points {
		contract := "none"
		if x.Contract > 0 {
			contract = fixed(2, x.Contract)
		}
		t.AppendRow(table.Row{contract, fixed(3, x.MakespanVsSJF), fixed(3, x.MakespanSD), fixed(1, x.LT10), x.OOM})
	}
	t.Render()
}
