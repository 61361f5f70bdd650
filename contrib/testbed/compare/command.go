// Package compare runs the thesis's five workloads, and three with jobs that come over time, on
// private real Slurms with one simulated Titan Xp each: plain, plain with shares, and with the
// bridge. The demo is one of the workloads under two of the variants.
package compare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

const long = `compare runs workloads of 30 jobs of the thesis's eleven applications each on real
Slurm daemons. Every run has a private cluster of its own with one simulated Titan Xp; time
runs faster there. The jobs of a workload are the same under every variant:

  whole       plain Slurm: a GPU to each job
  shard_half  plain Slurm: gres/shard, every job asks for half; the GPU switches between them
  mps_half    plain Slurm: gres/mps, every job asks for half; one MPS daemon
  tetris      the bridge, jobs packed by what they use
  greedy      the bridge, the combination of the highest predicted throughput
  srpt        the bridge, shortest remaining times first among those that hardly slow each other
  lookahead   the bridge, srpt with its best few combinations played out
  dqn         the bridge as it comes, with its trained network
  adopted     the same, with the jobs of whole: a rule of the site makes them share, at most 1.3
              times slower (from Slurm 23.11.5 on: --root)

The thesis's five workloads are closed: all jobs are there before the first may start. They are
judged by their makespan, and the bridge decides for it (dqn-makespan). In the open ones,
open-1 to open-3, the jobs of the random workload come at random times, --load times as much work
as one GPU can do without sharing; each has a seed of its own. They are judged by mean turnaround.
For both, the table counts the jobs that ended later than under whole.

Under plain sharing Slurm knows nothing of GPU memory, so jobs can fail for want of it; nobody
submits them again.

Slurm's own pauses between jobs take as long as ever while the jobs run faster: they count
--scale times, in jobs' ends under whole, too. The table shows how long the GPU was idle.`

const examples = `  make compare                            all eight workloads, a quarter of an hour
  make compare QUICK=1                    three of them, under five minutes
  make compare ARGS='--workloads open'    jobs that come over time, three seeds
  make compare ARGS='--workloads random --variants whole,dqn --scale 5'`

// quick are the workloads that --quick runs: one in which everything fits
// together, the thesis's mixture, in which it doesn't, and the mixture over time.
var quick = []string{"gpu_light", "random", openName + "-1"}

// Command is `testbed compare`.
func Command(base *cluster.Setup) *cobra.Command {
	o := options{base: base}
	var isQuick bool
	var names []string
	var jsonFile string
	c := &cobra.Command{
		Use: "compare", Short: "Plain Slurm, plain shares and the bridge, side by side on real daemons",
		Long: long, Example: examples,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if isQuick && len(o.workloads) == 0 {
				o.workloads = quick
			}
			if !c.Flags().Changed("scale") {
				o.scale = map[bool]float64{true: 12, false: 6}[isQuick]
			}
			if err := o.check(c.Context(), names); err != nil {
				return err
			}
			// A file that can't be written should be known before long work, not after it.
			if err := cluster.WriteJSON(jsonFile, report{}); err != nil {
				return fmt.Errorf("--json: %w", err)
			}
			return compareAll(c.Context(), &o, jsonFile)
		},
	}
	f := c.Flags()
	f.BoolVar(&isQuick, "quick", false, "three workloads only, "+strings.Join(quick, ", ")+", and faster")
	f.StringSliceVar(&o.workloads, "workloads", nil,
		"some of "+strings.Join(workloads(), ",")+"; "+openName+" = those of that name (default all)")
	f.StringSliceVar(&names, "variants", nil, "some of "+strings.Join(namesOf(variants()), ",")+" (default all)")
	f.IntVar(&o.jobs, "jobs", experiment.JobsPerWorkload, "jobs of each workload")
	f.Uint64Var(&o.seed, "seed", 2019, "of the draw of jobs; the open workloads' are this one and the next two")
	f.Float64Var(&o.load, "load", 1.2, "work that comes in open workloads ÷ what one GPU can do without sharing")
	f.Float64Var(&o.scale, "scale", 0,
		"GPU seconds that pass in a second (default 6, with --quick 12; less: truer, and longer)")
	f.StringVar(&o.root, "root", os.Getenv("SLURMBRIDGE_TEST_ROOT"),
		"run the Slurm of this root folder (contrib/mkroot makes one)")
	f.IntVar(&o.parallel, "parallel", 30, "private clusters at a time")
	f.StringVar(&jsonFile, "json", "build/compare.json", "write all figures to `FILE`")
	return c
}

// check refuses settings before anything starts. The adopted variant is left out of all on releases that can't make a
// job of a whole GPU share.
func (o *options) check(ctx context.Context, names []string) error {
	var err error
	if o.workloads, err = choose(o.workloads, workloads()); err != nil {
		return fmt.Errorf("--workloads: %w", err)
	}
	known := variants()
	chosen, err := choose(names, namesOf(known))
	if err != nil {
		return fmt.Errorf("--variants: %w", err)
	}
	o.variants = slices.DeleteFunc(known, func(v variant) bool { return !slices.Contains(chosen, v.name) })
	switch {
	case o.jobs < 1 || o.jobs > 1000:
		return fmt.Errorf("--jobs is %d, not 1 to 1000", o.jobs)
	case !(o.scale >= 0.1 && o.scale <= 60):
		return fmt.Errorf("--scale is %v, not 0.1 to 60: faster than that jobs last no longer than Slurm's own pauses",
			o.scale)
	case !(o.load >= 0.1 && o.load <= 10):
		return fmt.Errorf("--load is %v, not 0.1 to 10 (1: as much work as one GPU can do without sharing)", o.load)
	case o.parallel < 1 || o.parallel > 64:
		return fmt.Errorf("--parallel is %d, not 1 to 64", o.parallel)
	}
	if !slices.Contains(chosen, adopted) {
		return nil
	}
	release, err := slurmtest.ReleaseOf(ctx, o.root)
	if err != nil || !text.GivesUsedGPUs(release) {
		return err
	}
	if len(names) > 0 {
		return fmt.Errorf("--variants: %s takes Slurm 23.11.5, and this is %s: name a root folder with --root", adopted,
			release)
	}
	o.variants = slices.DeleteFunc(o.variants, func(v variant) bool { return v.name == adopted })
	return nil
}

// compareAll measures and shows. What was measured is shown and written even if a run failed, which is then the error.
func compareAll(ctx context.Context, o *options, jsonFile string) error {
	cells, err := o.cells()
	if err != nil {
		return err
	}
	fmt.Printf("%d runs of %d jobs, seed %d, each on a private real Slurm with one simulated Titan Xp.\n", len(cells),
		o.jobs, o.seed)
	fmt.Printf("%g GPU seconds pass in one second; up to %d clusters at a time.\n\n", o.scale, o.parallel)
	load := cluster.NewLoad()
	compare(ctx, o, cells, newBoard(cluster.NewLine(30*time.Second), cells))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r, errs := collect(cells), failures(cells)
	if len(r) == 0 {
		return errs
	}
	fmt.Println()
	r.show(os.Stdout, o)
	if part, ok := load.Since(); ok {
		fmt.Printf("This machine's CPUs were busy for %.0f %% of the time; from 85 %% on Slurm's pauses grow: fewer "+
			"clusters\n"+
			"at a time (--parallel) or a smaller --scale give truer figures.\n", 100*part)
	}
	fmt.Printf("\nAll figures: %s\n", jsonFile)
	return errors.Join(errs, cluster.WriteJSON(jsonFile, r))
}

// failures joins the errors of the runs without figures, and reports jobs that failed where none may.
func failures(cells []*cell) error {
	var errs []error
	for _, c := range cells {
		switch {
		case c.err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", c, c.err))
		case c.figures != nil && !c.variant.mayFail && c.figures.JobsFailed > 0:
			errs = append(errs, fmt.Errorf("%s: %d jobs failed", c, c.figures.JobsFailed))
		}
	}
	return errors.Join(errs...)
}
