// Package flow measures how fast GPUs are filled and followed: the same jobs on plain Slurm, a
// whole GPU each, and with the bridge, three on a GPU, on private real Slurms with the default
// scheduler settings, for several shapes of one cluster.
//
// A job sleeps: nothing is computed, and what is seen is how long Slurm and the bridge leave GPUs
// idle. All jobs are there before the first may start. Times are divided by the ideal: all work ÷
// (GPUs × jobs on each). Plain Slurm and the bridge run side by side, under the same load.
package flow

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

const (
	together         = 3    // jobs that fit on a GPU
	memMiB           = 3600 // what a job needs: three fit on a Titan Xp, a fourth doesn't
	shortest, longer = 10, 15
	slowest          = 15 * time.Minute // ends a run that doesn't come to its end
)

type options struct {
	base   *cluster.Setup
	shapes []string
	seeds  []uint
	jobs   int
	json   string
}

// shape is a cluster's: nodes × GPUs on each.
type shape struct{ nodes, gpus int }

// Command is `testbed flow`.
func Command(base *cluster.Setup) *cobra.Command {
	o := options{base: base}
	c := &cobra.Command{
		Use: "flow", Short: "How fast GPUs are filled and followed, plain Slurm and the bridge", Args: cobra.NoArgs,
		Example: "  make flow                                        half an hour\n  make flow ARGS='--shapes 5x8 --seeds " +
			"1 --jobs 120'",
		RunE: func(c *cobra.Command, _ []string) error { return flow(c, &o) },
	}
	f := c.Flags()
	f.StringSliceVar(&o.shapes, "shapes", []string{"40x1", "10x4", "5x8"}, "nodes x GPUs a node")
	f.UintSliceVar(&o.seeds, "seeds", []uint{1, 2, 3}, "of the jobs' lengths")
	f.IntVar(&o.jobs, "jobs", 240, "how many")
	f.StringVar(&o.json, "json", "build/flow.json", "write all figures to `FILE`")
	return c
}

// pace is how fast plain Slurm, or the bridge, was.
type pace struct {
	// Taken is the time that all took, over the ideal.
	Taken float64 `json:"taken"`
	// FillS is how long it took until each GPU of a node had what it takes, a job or three, s; the mean of the nodes.
	FillS float64 `json:"fill_s"`
	// FollowS is the median time from the end of a job to the start of the next one on its GPU, s.
	FollowS float64 `json:"follow_p50_s"`
}

func (p pace) String() string {
	return fmt.Sprintf("%.2f of the ideal (fills in %.1f s, follows in %.1f s)", p.Taken, p.FillS, p.FollowS)
}

// drawn are the figures of one shape and seed.
type drawn struct {
	Shape  string `json:"shape"`
	Seed   uint   `json:"seed"`
	Plain  pace   `json:"plain"`
	Bridge pace   `json:"bridge"`
	// WrongGPU counts members of groups that the bridge saw on another GPU than planned.
	WrongGPU int `json:"wrong_gpu"`
}

// flow runs everything.
func flow(c *cobra.Command, o *options) error {
	shapes := make([]shape, len(o.shapes))
	for i, word := range o.shapes {
		s := &shapes[i]
		if n, _ := fmt.Sscanf(word, "%dx%d", &s.nodes, &s.gpus); n != 2 || s.nodes < 1 || s.gpus < 1 {
			return fmt.Errorf("--shapes: %q is not NODESxGPUS", word)
		}
	}
	out := c.OutOrStdout()
	t := cluster.Table(out, "nodes x GPUs", "plain ÷ ideal", "bridge ÷ ideal", "plain fills, s", "bridge fills, s",
		"plain follows, s", "bridge follows, s", "wrong GPU")
	var all []drawn
	for i, s := range shapes {
		for _, seed := range o.seeds {
			d := drawn{Shape: o.shapes[i], Seed: seed}
			if err := d.both(c.Context(), o, s); err != nil {
				return fmt.Errorf("%s, seed %d: %w", d.Shape, seed, err)
			}
			all = append(all, d)
			fmt.Fprintf(out, "%-5s seed %d  plain %v, bridge %v, %d on a wrong GPU\n", d.Shape, seed, d.Plain, d.Bridge,
				d.WrongGPU)
			if err := cluster.WriteJSON(o.json, all); err != nil {
				return err
			}
		}
		t.AppendRow(row(o.shapes[i], all[len(all)-len(o.seeds):]))
	}
	t.Render()
	return nil
}

// row is a shape's row of the table: means of its seeds, but how many were on a wrong GPU in all.
func row(shape string, seeds []drawn) []any {
	var means [6]float64
	wrong := 0
	for _, d := range seeds {
		wrong += d.WrongGPU
		for k, v := range []float64{
			d.Plain.Taken, d.Bridge.Taken, d.Plain.FillS, d.Bridge.FillS, d.Plain.FollowS, d.Bridge.FollowS,
		} {
			means[k] += v / float64(len(seeds))
		}
	}
	out := []any{shape}
	for _, v := range means {
		out = append(out, fmt.Sprintf("%.2f", v))
	}
	return append(out, wrong)
}

// both runs the same jobs on plain Slurm and with the bridge.
func (d *drawn) both(ctx context.Context, o *options, s shape) error {
	rnd := rand.New(rand.NewPCG(uint64(d.Seed), 0)) //nolint:gosec // repeatable, not secret
	names, work := make([]string, o.jobs), 0
	for i := range names {
		length := shortest + rnd.IntN(longer+1)
		names[i] = app(length)
		work += length
	}
	ideal := float64(work) / float64(s.nodes*s.gpus)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { d.Plain, _, err = run(ctx, o, s, names, ideal, false); return err })
	g.Go(func() (err error) { d.Bridge, d.WrongGPU, err = run(ctx, o, s, names, ideal, true); return err })
	return g.Wait()
}

// app is an application that sleeps for so many s.
func app(s int) string { return fmt.Sprint("sleep", s) }

// run runs the jobs on a cluster of their own. ideal is how long they take with one on each GPU at any time, s.
func run(ctx context.Context, o *options, s shape, names []string, ideal float64, bridged bool) (pace, int, error) {
	setup := *o.base
	setup.Scale, setup.Bare, setup.Sharing, setup.NodeGPUs, setup.Lease = 1, true, "shard",
		slices.Repeat([]int{s.gpus}, s.nodes), 3*time.Minute
	setup.Adjust = func(so *slurmtest.Options) { so.Scheduler, so.CPUs = "", max(4, 4*s.gpus) }
	gres, jobs := "gpu:1", 1
	if bridged {
		setup.Policy, gres, jobs = "greedy", "gpu:shared", together
		setup.Settings = []string{"leave_room: no", fmt.Sprintf("max_group: %d", together)}
		for d := shortest; d <= shortest+longer; d++ {
			setup.Profiles = append(setup.Profiles, &rlcore.Profile{
				App: app(d), DurationS: float64(d), PeriodS: float64(d),
				Series: []rlcore.Use{{GPU: 0.1, Core: 0.1, MemMiB: memMiB}},
			})
		}
	}
	r, err := cluster.Run(ctx, setup, cluster.Work{
		Apps: names, Gres: gres, Args: []string{"--time=3"}, Hold: true, Limit: slowest,
		Command: func(app string) string { return "sleep " + strings.TrimPrefix(app, "sleep") },
	})
	if err != nil {
		return pace{}, 0, err
	}
	for i := range r.Jobs {
		if r.Jobs[i].Ended.IsZero() {
			return pace{}, 0, fmt.Errorf("job %s has not run to its end", r.Jobs[i].ID)
		}
	}
	wrong := 0
	if bridged {
		wrong = r.Bridge.Misplaced
	}
	return pace{takenS(r) / ideal * float64(jobs), fillS(r, s, jobs), followS(r)}, wrong, nil
}

// takenS is how long all took, s.
func takenS(r *cluster.Ran) (last float64) {
	for i := range r.Jobs {
		last = max(last, r.Jobs[i].Ended.Sub(r.Began).Seconds())
	}
	return last
}

// followS is the median time from the end of a job to the start of the next one on its GPU, s; 0 = none followed
// another.
func followS(r *cluster.Ran) float64 {
	var gaps []float64
	for _, x := range r.Jobs {
		gap := math.Inf(1)
		for _, y := range r.Jobs {
			if after := x.Began.Sub(y.Ended).Seconds(); y.Node == x.Node && y.GPU == x.GPU && after >= 0 {
				gap = min(gap, after)
			}
		}
		if !math.IsInf(gap, 1) {
			gaps = append(gaps, gap)
		}
	}
	return cluster.Quantile(0.5, gaps)
}

// fillS is how long it took until each GPU of a node had so many jobs, s; the mean of the nodes. A GPU
// that never had counts with the whole time.
func fillS(r *cluster.Ran, s shape, jobs int) float64 {
	starts := map[[2]string][]float64{} // by node and GPU
	for _, x := range r.Jobs {
		at := [2]string{x.Node, x.GPU}
		starts[at] = append(starts[at], x.Began.Sub(r.Began).Seconds())
	}
	taken := takenS(r)
	full := map[string][]float64{} // of each node's GPUs
	for at, begun := range starts {
		slices.Sort(begun)
		when := taken
		if len(begun) >= jobs {
			when = begun[jobs-1]
		}
		full[at[0]] = append(full[at[0]], when)
	}
	sum := taken * float64(s.nodes-len(full))
	for _, gpus := range full {
		if len(gpus) < s.gpus {
			gpus = append(gpus, taken)
		}
		sum += slices.Max(gpus)
	}
	return sum / float64(s.nodes)
}
