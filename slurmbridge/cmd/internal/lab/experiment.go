package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
)

type experimentFlags struct {
	commonFlags
	quick, worlds bool
}

func newExperiment(s *shared) *cobra.Command {
	var f experimentFlags
	c := &cobra.Command{
		Use:   "experiment",
		Short: "The thesis's experiments: five workloads, every policy, many seeds",
		Long: `experiment lets every policy schedule the thesis's five workloads (30 jobs each, one
Titan Xp) on the simulator, and compares makespan, utilisation, slowdowns, memory
failures and training time. It needs no Slurm, no GPU and no daemon.

Learning policies are trained, and policies with a parameter are tuned, on other job sets
than the comparison's. fifo gives each job a GPU of its own, in the order of arrival: everything is
compared with it (its makespan is that of sjf, the thesis's base), and with the best other policy.
Below the lower bound there is no schedule; of possible is the part of the gain over fifo that it
leaves. late is the part of the jobs that ended later than plain Slurm would have ended
them, with whole GPUs in the order of arrival, by more than a tenth of their own run time alone; worst
late is by how many of these one did at most. A column that would be empty isn't shown.

The thesis's own printed figures stand next to ours. Applications' durations and how
HPC codes meet under MPS are assumptions; rlcore/LEARNING.md lists them.

--worlds is another experiment: jobs come over time, their runs differ in length, and the mean
turnaround counts. Its worlds are the law of slowdowns itself, and published measurements of
pairs, which no policy knows: all use one model, which learns from the co-runs it sees, and all
are under the same guard. In most each run has its own length; in worlds of users these and
their limits tell it, in those of clusters a script trains or evaluates, in those of sweeps
one script comes many times. Loads are parts of what the GPUs do without sharing.`,
		Example: `  slurmbridge lab experiment --quick                      less training, in a minute
  slurmbridge lab experiment --json out.json              everything
  slurmbridge lab experiment --workloads random --policies greedy,dqn --seeds 30
  slurmbridge lab experiment --worlds                     jobs that come over time`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, name := range []string{"loads", "gpus", "jobs", "duration-error", "omniscient", "checkpoint"} {
				if !f.worlds && c.Flags().Changed(name) {
					return cli.Usage(fmt.Errorf("--%s is one of --worlds", name))
				}
			}
			kind := &experiment.OnWorkloads
			f.Objective = policy.Objective(f.objective)
			if f.worlds {
				kind, f.Objective = &experiment.InWorlds, policy.Turnaround
				if !c.Flags().Changed("window") {
					f.M = rlcore.DefaultWindow
				}
				if f.quick && !c.Flags().Changed("jobs") {
					f.Jobs = 100
				}
				if c.Flags().Changed("objective") {
					return cli.Usage(errors.New("--worlds is about the turnaround alone"))
				}
			}
			if err := checkOptions(&f.Options, kind, f.json); err != nil {
				return err
			}
			return s.experiment(c.Context(), &f, kind)
		},
	}
	fl, o := c.Flags(), &f.Options
	list := func(names []string) string { return strings.Join(names, ", ") }
	fl.StringSliceVar(&o.Workloads, "workloads", nil, "of "+list(experiment.Workloads())+
		", with --worlds of "+list(experiment.Worlds())+" (default all)")
	fl.StringSliceVar(&o.Policies, "policies", nil, "of "+list(experiment.Names())+
		" (default all, with --worlds "+list(experiment.WorldPolicies())+")")
	fl.StringVar(&f.objective, "objective", string(policy.Makespan),
		"what policies learn to keep small: "+strings.Join(policy.Objectives(), " or "))
	fl.BoolVar(&f.worlds, "worlds", false, "jobs that come over time, where slowdowns were measured")
	fl.Float64SliceVar(&o.Loads, "loads", nil,
		"with --worlds: how much work comes, of what the GPUs do without sharing (default 0.7,0.9,1.1)")
	fl.IntVar(&o.GPUs, "gpus", 0, "with --worlds: GPUs (default 2)")
	fl.IntVar(&o.Jobs, "jobs", 0, "with --worlds: jobs of a set (default 300)")
	f.add(fl, 10, 5)
	fl.BoolVar(&o.Omniscient, "omniscient", false,
		"with --worlds: decisions know each job's duration and the true slowdowns: what perfect predictions would bring")
	fl.IntVar(&o.History, "history", 20, "job sets the site ran before and learned slowdowns from")
	fl.BoolVar(&f.quick, "quick", false, "less training: a minute on two cores")
	c.MarkFlagsMutuallyExclusive("duration-error", "omniscient")
	cli.Values(c, "policies", experiment.Names()...)
	cli.Values(c, "objective", policy.Objectives()...)
	return c
}

func (s *shared) experiment(ctx context.Context, f *experimentFlags, kind *experiment.Kind) error {
	o := f.Options
	switch {
	case f.quick && f.worlds:
		o.Effort = experiment.Effort{Tune: 2}
	case f.quick:
		o.Effort = experiment.Quick
	}
	var err error
	if o.Trained, err = trained(f.checkpoint, &contention.MPS); err != nil {
		return err
	}
	began := time.Now()
	b := cli.NewBar(s.ErrOut)
	o.Progress = b.At
	r, err := experiment.Run(ctx, o, kind)
	b.Done()
	if err != nil {
		return err
	}
	if f.json != "-" {
		s.printExperiment(r, time.Since(began))
	}
	return s.WriteJSON(f.json, r)
}

// trained reads the network of a checkpoint; nil without one.
func trained(file string, law *contention.Law) (*dqn.Scorer, error) {
	if file == "" {
		return nil, nil
	}
	cp, err := dqn.Load(file)
	if err != nil {
		return nil, err
	}
	return cp.Network(interference.New(law))
}

// checkOptions refuses settings, and a file of results that can't be written, before anything is read or computed.
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

func (s *shared) printExperiment(r *experiment.Report, took time.Duration) {
	fmt.Fprintf(s.Out, "%d jobs on %d GPUs, %d sets from seed %d, window %d; load 1 is what the GPUs do without sharing\n",
		r.Jobs, r.GPUs, r.Seeds, r.Seed, r.M)
	fmt.Fprintln(s.Out, contract(r.MaxSlowdown, r.Grace))
	for _, place := range r.Workloads {
		t := s.lineTable(place)
		for i, load := range r.Loads {
			if i > 0 {
				t.AppendSeparator()
			}
			of, bounded := fmt.Sprintf("%g", load), "turnaround s"
			shown := of
			if load == 0 {
				shown, bounded = "", "makespan s"
			}
			appendLines(t, shown, r.Lines[place][of], r.LowerBoundS[place][of], bounded)
		}
		t.Render()
	}
	t := s.Table("geometric mean of ÷ fifo", "policy", "÷ fifo")
	for _, name := range experiment.Names() {
		if x, ok := r.Geomean[name]; ok {
			t.AppendRow([]any{name, fixed(3, x)})
		}
	}
	t.Render()
	fmt.Fprintf(s.Out, "lost runs: runs that failed for want of GPU memory. Took %.0f s.\n", took.Seconds())
}
