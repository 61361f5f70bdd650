package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
)

// measuredFlags name what was measured of applications, alone and together.
type measuredFlags struct{ profiles, pairs, observed, law string }

func (m *measuredFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&m.profiles, "profiles", "",
		"solo profiles: CSV (app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms)")
	f.StringVar(&m.pairs, "pairs", "",
		"measured slowdowns: CSV (victim,aggressor,slowdown; groups in aggressor2, …); in a replay, pairs that aren't "+
			"there may not meet")
	f.StringVar(&m.observed, "observed", "", "measured slowdowns that were learned from before: CSV as for --pairs")
	f.StringVar(&m.law, "law", contention.MPS.Name,
		"how sharers slow each other where nothing was measured or learned: mps or time-slice")
}

// read reads the files, and returns the applications that have profiles.
func (m *measuredFlags) read(t *experiment.Trace) (known []string, err error) {
	if t.Law, err = lawNamed(m.law); err != nil {
		return nil, err
	}
	if t.Profiles, err = trace.ReadFile(m.profiles, trace.ReadProfiles); err != nil {
		return nil, err
	}
	for _, p := range t.Profiles {
		known = append(known, p.App)
	}
	pairs := func(r io.Reader, name string) ([]trace.Pair, error) { return trace.ReadPairs(r, name, known...) }
	if m.pairs != "" {
		if t.Pairs, err = trace.ReadFile(m.pairs, pairs); err != nil {
			return nil, err
		}
	}
	if m.observed != "" {
		t.Observed, err = trace.ReadFile(m.observed, pairs)
	}
	return known, err
}

// traceFlags are what a trace is read from.
type traceFlags struct {
	measuredFlags
	jobs     string
	gpus     int
	memMiB   float64
	sameUser bool
}

func (t *traceFlags) add(c *cobra.Command) {
	t.measuredFlags.add(c)
	f := c.Flags()
	f.StringVar(&t.jobs, "jobs", "",
		"jobs: CSV (job,submit_s,app,duration_s,user,gpus,limit_s), or what sacct --parsable2 prints")
	f.IntVar(&t.gpus, "gpus", 1, "GPUs")
	f.Float64Var(&t.memMiB, "mem-mib", rlcore.TitanXp.MemMiB, "memory of a GPU, MiB")
	f.BoolVar(&t.sameUser, "same-user", false, "one user a GPU at a time, as MPS demands before Volta")
}

// cards makes the GPUs and finds the law of sharing them.
func (t *traceFlags) cards() ([]rlcore.GPUSpec, *contention.Law, error) {
	if t.gpus < 1 || t.gpus > 10_000 || !(t.memMiB > 0 && t.memMiB < 1e9) {
		return nil, nil, cli.Usage(fmt.Errorf("--gpus %d, --mem-mib %v: 1 to 10000 GPUs, with memory", t.gpus, t.memMiB))
	}
	law, err := lawNamed(t.law)
	if err != nil {
		return nil, nil, err
	}
	card := rlcore.GPUSpec{Model: "gpu", MemMiB: t.memMiB, PCIeMBps: rlcore.TitanXp.PCIeMBps, SameUser: t.sameUser}
	return slices.Repeat([]rlcore.GPUSpec{card}, t.gpus), law, nil
}

// read reads the files and makes the GPUs. What it skipped are rows of the jobs' file that are sound but no use.
func (t *traceFlags) read() (_ *experiment.Trace, skipped table.Skipped, err error) {
	if t.jobs == "" || t.profiles == "" {
		return nil, nil, cli.Usage(errors.New("--jobs and --profiles are needed"))
	}
	out := &experiment.Trace{}
	if out.GPUs, _, err = t.cards(); err != nil {
		return nil, nil, err
	}
	known, err := t.measuredFlags.read(out)
	if err != nil {
		return nil, nil, err
	}
	out.Jobs, skipped, err = trace.ReadJobsFile(t.jobs, known...)
	return out, skipped, err
}

// placed names the file of jobs that can't be replayed.
func (t *traceFlags) placed(err error) error {
	if errors.Is(err, experiment.ErrTrace) {
		return fmt.Errorf("%s: %w", t.jobs, err)
	}
	return err
}

// replayFlags are the command's.
type replayFlags struct {
	commonFlags
	from traceFlags
}

func newReplay(s *shared) *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay --jobs FILE --profiles FILE",
		Short: "What each policy would have made of a cluster's past",
		Long: `replay lets policies schedule a trace on the simulator: which jobs came when, what
their applications use alone, and, if measured, how much pairs slow each other. It needs no
Slurm, no GPU and no daemon, and changes nothing.

Without --pairs the contention law says how sharers slow each other. With it the measured
values are the truth, which policies don't know: they predict from the profiles. A pair
that wasn't measured both ways never shares a GPU. The columns aggressor2, aggressor3 and so
on hold groups that were measured; of other groups the excesses over 1 of their pairs add up
(1.2 and 1.3 make 1.5), as published mixes of three confirm.

Every policy that shares learns slowdowns from the co-runs it sees, as the daemon does, and
starts from what --observed shows it.

fifo gives each job a GPU of its own in the order of arrival. Policies are compared by the makespan where
all jobs are submitted at once, by the mean turnaround elsewhere: ÷ fifo, ÷ the best other policy. Below
the lower bound there is no schedule; of possible is the part of the gain over fifo that it leaves.
dqn is the network
that is built in, for the makespan trained on job sets drawn from the trace in the world as predicted, or
comes from --checkpoint.

The last table says what the guard's reasons cost: while a GPU that had room got no job, the first job
that would have joined but for one reason waited for that. Reasons don't add up.

late is the part of the jobs that ended later than plain Slurm would have ended them, with
whole GPUs in order of arrival, by more than a tenth of their own run time alone; worst
late is by how many of these one did at most. --grace is what sharing may cost, --max-slowdown how
slow it may make a job; the daemon has settings of these names.

Decisions don't see a job's own duration_s. They expect it to take as long as the runs of its application
that have ended by then foretell, by its limit and its user, and before these as long as its profile says.
--duration-error gives them each job's own duration, wrong by a random part of up to this much (0.2 = 20 %,
0 = to the second).

Jobs end at their time limits (limit_s, sacct's TimelimitRaw or Timelimit), as Slurm ends them. Where the trace has
any, the table counts the jobs that timed out, and of them the harmed ones, which alone would have ended
before. A column that would be empty isn't shown. A slowdown then counts the work that was done. A job
that is ended early shortens the mean turnaround, so compare policies by what they harm first.

Jobs of several GPUs (gpus, AllocTRES) hold them unshared, whichever become free, in their turn;
so do sacct's jobs whose names no profile has.
Jobs that need more GPUs than there are, or more memory than a GPU has, are left out and counted;
so are sacct's rows of jobs with a line break in their name or on an instance of a GPU (MIG).`,
		Example: `  slurmbridge lab replay --jobs jobs.csv --profiles solo.csv --gpus 4 --mem-mib 40536
  slurmbridge lab replay --jobs jobs.csv --profiles solo.csv --pairs measured.csv \
      --policies fifo,srpt,dqn --seeds 10 --json out.json
  sacct -a -P -S 2026-01-01 -o JobID,JobName,User,Submit,Start,End,ElapsedRaw,State,AllocTRES,TimelimitRaw > past.txt
  slurmbridge lab replay --jobs past.txt --profiles solo.csv`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.replay(c.Context(), &f)
		},
	}
	f.from.add(c)
	fl := c.Flags()
	o := &f.Options
	fl.StringSliceVar(&o.Policies, "policies", experiment.ReplayPolicies(), "of "+strings.Join(experiment.Names(), ", "))
	f.add(fl, 3, rlcore.DefaultWindow)
	fl.StringVar(&f.objective, "objective", "",
		"what policies are compared by, and learn: makespan or turnaround (default by the arrivals)")
	cli.Values(c, "policies", experiment.Names()...)
	cli.Values(c, "objective", policy.Objectives()...)
	return c
}

func (s *shared) replay(ctx context.Context, f *replayFlags) error {
	f.Objective = policy.Objective(f.objective)
	if err := checkOptions(&f.Options, &experiment.OnTrace, f.json); err != nil {
		return err
	}
	if f.checkpoint != "" && !slices.Contains(f.Policies, pretrained.Name) {
		return cli.Usage(errors.New("--checkpoint is dqn's, which isn't among --policies"))
	}
	t, skipped, err := f.from.read()
	if err != nil {
		return err
	}
	if f.Trained, err = trained(f.checkpoint, t.Law); err != nil {
		return err
	}
	b := cli.NewBar(s.ErrOut)
	f.Progress = b.At
	r, err := experiment.Replay(ctx, t, f.Options)
	b.Done()
	if err != nil {
		return f.from.placed(err)
	}
	for why, n := range skipped {
		r.Skipped[why] += n
	}
	if f.json != "-" {
		s.printReplay(r)
	}
	return s.WriteJSON(f.json, r)
}

func (s *shared) printReplay(r *experiment.ReplayReport) {
	fmt.Fprintf(s.Out, "%d jobs on %d GPUs, %d seeds from %d; compared by %s\n", r.Jobs, r.GPUs, r.Seeds, r.Seed,
		r.Objective)
	fmt.Fprintln(s.Out, contract(r.MaxSlowdown, r.Grace))
	if r.Unknown > 0 {
		fmt.Fprintf(s.Out, "unshared: %d jobs whose names no profile has\n", r.Unknown)
	}
	for _, why := range slices.Sorted(maps.Keys(r.Skipped)) {
		fmt.Fprintf(s.Out, "left out: %d jobs (%s)\n", r.Skipped[why], why)
	}
	t := s.lineTable("")
	appendLines(t, "", r.Lines, r.LowerBoundS, string(r.Objective)+" s")
	t.Render()
	s.printKept(r.Lines)
}
