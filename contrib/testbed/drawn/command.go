// Package drawn runs clusters and jobs that are drawn from a seed, out of what Slurm's manuals list, on plain Slurm and
// beside it on Slurm with the bridge, and says in one line a job what differs.
//
//	make soak SEEDS=1..20                          on this machine's Slurm
//	make soak SEEDS=1..20 RELEASES="bookworm forky"
//	build/testbed/testbed soak --case build/soak/22.05.8/seed-7.json
//	build/testbed/testbed soak --seeds 7 --build OTHER/build --lua OTHER/contrib/job_submit.lua
//
// # What is drawn
//
// draw.tsv has a line for each option and setting, with its weight, Slurm's manual page, and the release that brought
// it. In most cases jobs only sleep, and the bridge knows their applications: what differs is what Slurm and the bridge
// do. In some they compute on simulated GPUs, or are services that the bridge doesn't know and that are cancelled. On
// plain Slurm gpu:shared is gpu:1. Where power saving is drawn Slurm ends and starts the nodes' slurmds.
// Plain Slurm starts first, and a seed whose configuration it refuses is skipped, as is a job that it refuses or never
// starts. With --length the cluster is larger, jobs compute on simulated GPUs, and daemons are killed, stopped and cut
// off, partitions go down and a disk fills; what breaks Slurm breaks plain Slurm at the same time. From 20 minutes on
// sessions are idle for eleven (--every 0 --gpus 4: nothing but that).
//
// # What is compared
//
// Start, run time, state and exit code of each job; its CPUs, memory, nodes and tasks; the order of an array's tasks;
// the exit codes of steps, and the environment that each step sees, as a whole. No job has a whole GPU that another one
// is on. A job that an event (hold, requeue, update) met in different states on the two sides isn't compared, nor
// is one that a fault hit which plain Slurm feels as well, or that ended an MPS server: it must end all the same.
//
// What differs is run again, and counts if it differs again; under faults it counts at once. Differences that the pages
// state are in the judge's rules, each with its sentence. At least as many jobs as seeds must have shared a GPU in a
// block of 20 seeds or more, or nothing is shown.
package drawn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// options say what to draw and how to run it.
type options struct {
	base             *cluster.Setup
	seeds            string
	files            []string
	length           time.Duration
	gpus             int
	everyS           float64
	roots            []string
	all, small, once bool
	parallel         int
	dir              string
	out              io.Writer
}

// outcome is what became of a case.
type outcome struct {
	Release string       `json:"release"`
	Skipped string       `json:"skipped,omitempty"` // why it counts for nothing
	Jobs    int          `json:"jobs"`
	Parts   int          `json:"parts"` // jobs that shared a GPU
	Differs []difference `json:"differs,omitempty"`
	Apart   int          `json:"apart"` // jobs that an event met in different states
	why     map[string]string
}

// unstated are the differences that no page states.
func (o *outcome) unstated() (out []difference) {
	for _, d := range o.Differs {
		if d.Stated == "" {
			out = append(out, d)
		}
	}
	return out
}

// parseSeeds reads seeds and ranges of seeds, such as 1..200,307.
func parseSeeds(text string) (out []uint64, err error) {
	for word := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(word, "..")
		if !isRange {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 64)
		to, err2 := strconv.ParseUint(high, 10, 64)
		if errors.Join(err, err2) != nil || to < from || to-from > mostSeeds {
			return nil, fmt.Errorf("%q is no seed, and no range of seeds such as 1..200", word)
		}
		for seed := from; seed <= to; seed++ {
			out = append(out, seed)
		}
	}
	return out, nil
}

const mostSeeds = 100_000

// both runs a case on plain Slurm and beside it with the bridge.
func (o *options) both(ctx context.Context, c *Case, root string) (*outcome, error) {
	out := &outcome{}
	plain, err := o.start(ctx, c, root, true)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		out.Skipped = "plain Slurm doesn't start: " + firstLine(err.Error())
		return out, nil
	}
	defer plain.close()
	out.Release = plain.s.Release
	bridge, err := o.start(ctx, c, root, false)
	if err != nil {
		return nil, err
	}
	defer bridge.close()
	berr := bridge.s.Bridge(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	begin := time.Now().Truncate(time.Second).Add(2 * time.Second)
	plain.begin, bridge.begin = begin, begin
	var results [2]*result
	done := make(chan struct{})
	var g errgroup.Group
	g.Go(func() (err error) { results[0], err = plain.play(ctx, nil); close(done); return err })
	g.Go(func() (err error) { results[1], err = bridge.play(ctx, done); return err })
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		out.Skipped = "Slurm doesn't answer: " + firstLine(err.Error())
		return out, nil
	}
	if slices.ContainsFunc(c.Jobs, func(j Job) bool { return j.App != "" }) && !results[0].computed(c) {
		out.Skipped = "no job that computes ends well on plain Slurm"
		return out, nil
	}
	if berr != nil {
		results[1].Says = append(results[1].Says, berr.Error())
	}
	out.Jobs, out.Parts = len(results[0].Jobs), results[1].parts()
	out.Differs = judge(c, results[0], results[1])
	out.why = map[string]string{}
	if out.unstated() != nil {
		out.why["logs"] = bridge.s.Logs(150)
	}
	for _, d := range out.unstated() {
		if s := results[1].Jobs[d.Job]; s != nil && len(out.why) < 5 {
			out.why[d.Job] = bridge.why(ctx, s.ID)
		}
	}
	return out, nil
}

// computed reports whether a job that computes has ended well, or a service as its owner wants it to.
func (r *result) computed(c *Case) bool {
	return slices.ContainsFunc(c.Jobs, func(j Job) bool {
		s := r.Jobs[j.Name]
		return j.App != "" && s != nil && (s.State == "COMPLETED" || j.New && s.State == "CANCELLED")
	})
}

// twice runs a case again if something differs, and keeps what differs again: what was the machine's load doesn't.
func (o *options) twice(ctx context.Context, c *Case, root string) (*outcome, error) {
	first, err := o.both(ctx, c, root)
	if err != nil || first.unstated() == nil || o.once || len(c.Faults) > 0 { // which never hit alike
		return first, err
	}
	second, err := o.both(ctx, c, root)
	if err != nil || second.Skipped != "" {
		return second, err
	}
	second.Differs = slices.DeleteFunc(second.Differs, func(d difference) bool {
		return d.Stated == "" && !slices.ContainsFunc(first.Differs, func(other difference) bool {
			return other.Job == d.Job && other.Kind == d.Kind
		})
	})
	return second, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// run runs cases on the Slurm of a root folder, so many at once, and returns an error where something differs that no
// page states.
func (o *options) run(ctx context.Context, cases []*Case, root string) error {
	release, err := slurmtest.ReleaseOf(ctx, root)
	if err != nil {
		return err
	}
	dir := filepath.Join(o.dir, release)
	var mu sync.Mutex
	var done, skipped, jobs, parts, differ int
	outcomes := make([]*outcome, len(cases))
	whole := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.parallel)
	for i, c := range cases {
		g.Go(func() error {
			r, err := o.twice(ctx, c, root)
			if err != nil {
				if ctx.Err() != nil {
					return err
				}
				r = &outcome{Skipped: "the stage: " + firstLine(err.Error())}
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			jobs, parts = jobs+r.Jobs, parts+r.Parts
			if r.Skipped != "" {
				skipped++
			} else if r.unstated() != nil {
				differ++
			}
			o.report(c, r)
			fmt.Fprintf(o.out, "-- seed %d, %d of %d on %s: %d differ, %d skipped, %d jobs, %d shared a GPU\n", c.Seed,
				done, len(cases), release, differ, skipped, jobs, parts)
			outcomes[i] = r
			return o.keep(dir, c, r)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, c := range cases {
		if o.small {
			if err := o.shrinkFirst(whole, dir, c, outcomes[i], root); err != nil {
				return err
			}
		}
	}
	if skipped > done/2 {
		return fmt.Errorf("%d of %d seeds are skipped: nothing is shown", skipped, done)
	}
	if n := done - skipped; n >= 20 && parts < n {
		return fmt.Errorf("only %d jobs of %d seeds shared a GPU: nothing is shown", parts, n)
	}
	if differ > 0 {
		return errors.New("with the bridge jobs fare otherwise than on plain Slurm")
	}
	return nil
}

// report says what differs in a case.
func (o *options) report(c *Case, r *outcome) {
	if r.Skipped != "" {
		fmt.Fprintf(o.out, "seed %d is skipped: %s\n", c.Seed, r.Skipped)
		return
	}
	for _, d := range together(r.unstated()) {
		what := ""
		if j := c.find(d.Job); j != nil {
			what = "   [" + j.String() + "]"
		}
		fmt.Fprintf(o.out, "seed %d  %v%s\n", c.Seed, &d, what)
	}
}

// keep writes a case in which something differs, with what differs and what the bridge says of it.
func (o *options) keep(dir string, c *Case, r *outcome) error {
	if r.Skipped == "" && r.Differs == nil {
		return nil
	}
	name := filepath.Join(dir, fmt.Sprint("seed-", c.Seed))
	if err := cluster.WriteJSON(name+".json", c); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintln(&b, r.Skipped)
	for _, d := range r.Differs {
		fmt.Fprintf(&b, "%v %s\n", &d, d.Stated)
	}
	for job, why := range r.why {
		fmt.Fprintf(&b, "\n== %s\n%s\n", job, why)
	}
	return os.WriteFile(name+".txt", []byte(b.String()), 0o644)
}

// Command is `testbed soak`.
func Command(base *cluster.Setup) *cobra.Command {
	o := &options{base: base, out: os.Stdout}
	c := &cobra.Command{
		Use: "soak", Short: "Drawn clusters, jobs and faults, beside plain Slurm: what differs", Args: cobra.NoArgs,
		Example: "  make soak                                         an hour of jobs and faults\n" +
			"  make soak SOAK=4m ARGS='--seeds 7'                  another campaign\n" +
			"  make soak SEEDS=1..200 RELEASES='bookworm forky'    small clusters of any shape, a minute each",
		RunE: func(c *cobra.Command, _ []string) error { return o.runAll(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&o.seeds, "seeds", "", "seeds to draw from, `FROM..TO` or numbers (default one at random)")
	f.StringSliceVar(&o.files, "case", nil, "run the cases in these `FILES` instead")
	f.DurationVar(&o.length, "length", 0, "how long jobs that compute come, under faults (0 = a dozen jobs that sleep)")
	f.IntVar(&o.gpus, "gpus", 0, "GPUs of a campaign (default 44, or 8 for less than 20 minutes)")
	f.Float64Var(&o.everyS, "every", 10, "mean seconds between two faults of a campaign (0 = none)")
	f.StringSliceVar(&o.roots, "roots", []string{cmp.Or(os.Getenv("SLURMBRIDGE_TEST_ROOT"), own)},
		"root folders of Slurm's releases, one after the other; "+own+" = this machine's Slurm")
	f.BoolVar(&o.all, "all", false, "draw also what is refused with a sentence, and what is known to be wrong")
	f.BoolVar(&o.small, "shrink", false, "shrink each case to what its first difference needs (10 minutes each)")
	f.BoolVar(&o.once, "once", false, "don't run again what differs")
	f.IntVar(&o.parallel, "parallel", 8, "pairs of clusters at once")
	f.StringVar(&o.dir, "out", "build/soak", "`FOLDER` for the cases in which something differs")
	return c
}

// own stands for the Slurm of this machine among root folders.
const own = "own"

// runAll runs what the flags ask for.
func (o *options) runAll(ctx context.Context) error {
	if o.seeds == "" {
		o.seeds = strconv.FormatUint(rand.Uint64()>>12, 10) // exact in JSON
	}
	o.gpus = cmp.Or(o.gpus, map[bool]int{true: 8, false: 44}[o.length < 20*time.Minute])
	var errs error
	for _, root := range o.roots {
		if root == own {
			root = ""
		}
		cases, err := o.cases(ctx, root)
		if err != nil {
			return err
		}
		errs = errors.Join(errs, o.run(ctx, cases, root))
	}
	return errs
}

// cases reads the cases in the files or, where no file is given, draws them from the seeds.
func (o *options) cases(ctx context.Context, root string) ([]*Case, error) {
	var out []*Case
	for _, file := range o.files {
		c, err := readCase(file)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	if out != nil {
		return out, nil
	}
	release, err := slurmtest.ReleaseOf(ctx, root)
	if err != nil {
		return nil, err
	}
	seeds, err := parseSeeds(o.seeds)
	var long *campaign
	if o.length > 0 {
		long = &campaign{o.gpus, int(o.length.Seconds()), o.everyS}
	}
	for _, seed := range seeds {
		out = append(out, draw(seed, release, o.all, long))
	}
	return out, err
}
