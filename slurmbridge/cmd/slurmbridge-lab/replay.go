package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/lab/experiment"
	"github.com/slurmbridge/slurmbridge/rlcore/lab/trace"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
)

// traceFlags are what a trace is read from.
type traceFlags struct {
	jobs, profiles, pairs, law string
	gpus                       int
	memMiB                     float64
	sameUser                   bool
}

func (t *traceFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&t.jobs, "jobs", "", "jobs: CSV (job,submit_s,app,duration_s,user), SWF, or what sacct --parsable2 prints")
	f.StringVar(&t.profiles, "profiles", "", "solo profiles: CSV (app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms)")
	f.StringVar(&t.pairs, "pairs", "", "measured slowdowns: CSV (victim,aggressor,slowdown); what isn't there may not meet")
	f.IntVar(&t.gpus, "gpus", 1, "GPUs")
	f.Float64Var(&t.memMiB, "mem-mib", rlcore.TitanXp.MemMiB, "memory of a GPU, MiB")
	f.BoolVar(&t.sameUser, "same-user", false, "one user a GPU at a time, as MPS demands before Volta")
	f.StringVar(&t.law, "law", "mps", "how sharers slow each other where --pairs doesn't say: mps or time-slice")
}

// cards makes the GPUs and finds the law of sharing them.
func (t *traceFlags) cards() ([]rlcore.GPUSpec, *contention.Law, error) {
	if t.gpus < 1 || t.gpus > 10_000 || !(t.memMiB > 0 && t.memMiB < 1e9) {
		return nil, nil, cli.Usage(fmt.Errorf("--gpus %d, --mem-mib %v: 1 to 10000 GPUs, with memory", t.gpus, t.memMiB))
	}
	laws := map[string]*contention.Law{"mps": &contention.MPS, "time-slice": &contention.TimeSlice}
	law := laws[t.law]
	if law == nil {
		return nil, nil, cli.Usage(fmt.Errorf("--law is %q; there are mps and time-slice", t.law))
	}
	card := rlcore.GPUSpec{Model: "gpu", MemMiB: t.memMiB, PCIeMBps: rlcore.TitanXp.PCIeMBps, SameUser: t.sameUser}
	return slices.Repeat([]rlcore.GPUSpec{card}, t.gpus), law, nil
}

// read reads the files and makes the GPUs. What it skipped are rows of the jobs'
// file that are sound but no use.
func (t *traceFlags) read() (_ *experiment.Trace, skipped trace.Skipped, _ error) {
	if t.jobs == "" || t.profiles == "" {
		return nil, nil, cli.Usage(errors.New("--jobs and --profiles are needed"))
	}
	out := &experiment.Trace{}
	var err error
	if out.GPUs, out.Law, err = t.cards(); err != nil {
		return nil, nil, err
	}
	if out.Profiles, err = trace.ReadProfilesFile(t.profiles); err != nil {
		return nil, nil, err
	}
	var known []string
	for _, p := range out.Profiles {
		known = append(known, p.App)
	}
	if out.Jobs, skipped, err = trace.ReadJobsFile(t.jobs, known...); err != nil {
		return nil, nil, err
	}
	if t.pairs != "" {
		if out.Pairs, err = trace.ReadPairsFile(t.pairs, known...); err != nil {
			return nil, nil, err
		}
	}
	return out, skipped, nil
}

// placed names the file of jobs that can't be replayed.
func (t *traceFlags) placed(err error) error {
	if errors.Is(err, experiment.ErrTrace) {
		return fmt.Errorf("%s: %w", t.jobs, err)
	}
	return err
}

func newReplay(s *shared) *cobra.Command {
	var from traceFlags
	var o experiment.ReplayOptions
	var jsonFile, checkpoint string
	c := &cobra.Command{
		Use:   "replay --jobs FILE --profiles FILE",
		Short: "What each policy would have made of a cluster's past",
		Long: `replay lets policies schedule a trace on the simulator: which jobs came when, what
their applications use alone, and, where somebody measured it, how much pairs slow
each other. It needs no Slurm, no GPU and no daemon, and changes nothing.

Without --pairs the contention law says how sharers slow each other. With it the
measured values are the truth, which no policy is told: they go by what they predict
from the profiles. A pair that wasn't measured both ways is never put together.

fifo gives each job a GPU of its own in the order of arrival. clairvoyant is no
policy but a search that knows everything; share is how much of its gain over fifo a
policy reaches, in the makespan where all jobs are submitted at once, in the mean
turnaround elsewhere. dqn is trained on job sets drawn from the trace in the world as
predicted, or comes from --checkpoint; it goes on learning slowdowns from the co-runs
it sees, as the daemon does.

A second table says how each user fared: mean wait and turnaround, the part of the
jobs that ended later than under fifo, the worst slowdown, how often decisions went
past a job, on average and at most, and the longest that one was kept waiting beside an
idle GPU.

Jobs of several GPUs, and those that need more memory than a GPU has, are left out
and counted.`,
		Example: `  slurmbridge replay --jobs jobs.csv --profiles solo.csv --gpus 4 --mem-mib 40536
  slurmbridge replay --jobs jobs.csv --profiles solo.csv --pairs measured.csv \
      --policies fifo,greedy,dqn --seeds 10 --json out.json
  sacct -a -P -S 2026-01-01 -o JobID,JobName,User,Submit,Start,End,ElapsedRaw,State,AllocTRES > past.txt
  slurmbridge replay --jobs past.txt --profiles solo.csv`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.Policies, err = policies(o.Policies, "fifo"); err != nil {
				return err
			}
			if err := checkRuns(o.Seeds, o.M); err != nil {
				return err
			}
			if !slices.Contains([]string{"", "makespan", "turnaround"}, o.Objective) {
				return cli.Usage(fmt.Errorf("--objective is %q; there are makespan and turnaround", o.Objective))
			}
			if checkpoint != "" && !slices.Contains(o.Policies, "dqn") {
				return cli.Usage(errors.New("--checkpoint is dqn's, which isn't among --policies"))
			}
			if err := writable(jsonFile); err != nil {
				return err
			}
			t, skipped, err := from.read()
			if err != nil {
				return err
			}
			if checkpoint != "" {
				cp, err := dqn.Load(checkpoint)
				if err != nil {
					return err
				}
				if o.Trained, err = cp.Network(interference.New(t.Law)); err != nil {
					return err
				}
			}
			b := cli.NewBar(s.ErrOut)
			o.Progress = b.At
			r, err := experiment.Replay(c.Context(), t, o)
			b.Done()
			if err != nil {
				return from.placed(badOptions(err))
			}
			for why, n := range skipped {
				r.Skipped[why] += n
			}
			if jsonFile != "-" {
				s.printReplay(r, o.Policies)
			}
			return s.writeJSON(jsonFile, r)
		},
	}
	from.add(c)
	f := c.Flags()
	f.StringSliceVar(&o.Policies, "policies", []string{"fifo", "sjf", "tetris", "greedy", "dqn"}, "of "+strings.Join(experiment.Names(), ","))
	f.IntVar(&o.Seeds, "seeds", 3, "trainings, each with a seed of its own")
	f.Uint64Var(&o.Seed, "seed", 1, "the first of them")
	f.IntVar(&o.M, "window", 5, "pending jobs a decision looks at")
	f.StringVar(&o.Objective, "objective", "", "what share is of: makespan or turnaround (default by the arrivals)")
	f.StringVar(&checkpoint, "checkpoint", "", "dqn decides by this `FILE` of slurmbridge train")
	f.StringVar(&jsonFile, "json", "", "write all figures to `FILE` (- = standard output)")
	return c
}

func (s *shared) printReplay(r *experiment.ReplayReport, order []string) {
	fmt.Fprintf(s.Out, "%d jobs on %d GPUs, %d seeds from %d; share of the clairvoyant's gain in %s\n", r.Jobs, r.GPUs, r.Seeds, r.Seed, r.Objective)
	why := make([]string, 0, len(r.Skipped))
	for k := range r.Skipped {
		why = append(why, k)
	}
	slices.Sort(why)
	for _, k := range why {
		fmt.Fprintf(s.Out, "left out: %d jobs (%s)\n", r.Skipped[k], k)
	}
	t := table.NewWriter()
	t.SetOutputMirror(s.Out)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"policy", "makespan s", "turnaround s", "share", "±", "slowdown", "95 %", "GPU", "memory", "lost runs", "training s"})
	names := slices.Clone(order)
	if !slices.Contains(names, "fifo") {
		names = append([]string{"fifo"}, names...)
	}
	for _, name := range append(names, experiment.Clairvoyant) {
		x := r.Policies[name]
		if x == nil {
			continue
		}
		t.AppendRow(table.Row{
			name, fmt.Sprintf("%.0f", x.MakespanS), fmt.Sprintf("%.0f", x.TurnaroundS), percent(x.GainShare), fmt.Sprintf("%.0f", 100*x.GainShareSD),
			fmt.Sprintf("%.2f", x.MeanSlowdown), fmt.Sprintf("%.2f", x.P95Slowdown), percent(x.GPUUtil), percent(x.MemUtil),
			fmt.Sprintf("%.1f", x.OOM), fmt.Sprintf("%.1f", x.TrainS),
		})
	}
	t.Render()
	s.printUsers(r, names)
}
