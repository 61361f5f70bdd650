package compare

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

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

// shape is a cluster's: nodes × GPUs on each.
type shape struct{ nodes, gpus int }

// Flow is `testbed flow`: how fast GPUs are filled and followed. The same jobs run on plain Slurm, a whole GPU each, and
// with the bridge, three on a GPU, with the default scheduler settings, for several shapes of one cluster.
//
// A job sleeps: nothing is computed, and what is seen is how long Slurm and the bridge leave GPUs idle. All jobs are
// there before the first may start. Times are divided by the ideal: all work ÷ (GPUs × jobs on each). Plain Slurm and
// the bridge run side by side, under the same load.
func Flow(base *cluster.Setup) *cobra.Command {
	o := options{base: base, scale: 1, parallel: 2, limit: slowest}
	var shapes []string
	var seeds []uint
	var file string
	c := &cobra.Command{
		Use: "flow", Short: "How fast GPUs are filled and followed, plain Slurm and the bridge", Args: cobra.NoArgs,
		Example: "  make flow                                        half an hour\n  make flow ARGS='--shapes 5x8 --seeds " +
			"1 --jobs 120'",
		RunE: func(c *cobra.Command, _ []string) error {
			return o.flow(c.Context(), c.OutOrStdout(), shapes, seeds, file)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&shapes, "shapes", []string{"40x1", "10x4", "5x8"}, "nodes x GPUs a node")
	f.UintSliceVar(&seeds, "seeds", []uint{1, 2, 3}, "of the jobs' lengths")
	f.IntVar(&o.jobs, "jobs", 240, "how many")
	f.StringVar(&file, "json", "build/flow.json", "write all figures to `FILE`")
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

// paces are the figures of one shape and seed.
type paces struct {
	Shape  string `json:"shape"`
	Seed   uint   `json:"seed"`
	Plain  pace   `json:"plain"`
	Bridge pace   `json:"bridge"`
	// WrongGPU counts members of groups that the bridge saw on another GPU than planned.
	WrongGPU int `json:"wrong_gpu"`
}

// flow runs each shape with each seed.
func (o *options) flow(ctx context.Context, out io.Writer, names []string, seeds []uint, file string) error {
	shapes := make([]shape, len(names))
	for i, word := range names {
		s := &shapes[i]
		if n, _ := fmt.Sscanf(word, "%dx%d", &s.nodes, &s.gpus); n != 2 || s.nodes < 1 || s.gpus < 1 {
			return fmt.Errorf("--shapes: %q is not NODESxGPUS", word)
		}
	}
	t := cluster.Table(out, "nodes x GPUs", "plain ÷ ideal", "bridge ÷ ideal", "plain fills, s", "bridge fills, s",
		"plain follows, s", "bridge follows, s", "wrong GPU")
	var all []*paces
	for i, s := range shapes {
		for _, seed := range seeds {
			p := &paces{Shape: names[i], Seed: seed}
			cells := o.pair(p, s)
			compare(ctx, o, cells, newBoard(cluster.NewLine(30*time.Second), cells))
			if err := failures(cells); err != nil {
				return err
			}
			all = append(all, p)
			if err := cluster.WriteJSON(file, all); err != nil {
				return err
			}
		}
		t.AppendRow(row(names[i], all[len(all)-len(seeds):]))
	}
	t.Render()
	return nil
}

// row is a shape's row of the table: means of its seeds, but how many were on a wrong GPU in all.
func row(shape string, seeds []*paces) []any {
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

// pair are the same jobs on plain Slurm and with the bridge, whose figures go to p.
func (o *options) pair(p *paces, s shape) []*cell {
	rnd := rand.New(rand.NewPCG(uint64(p.Seed), 0)) //nolint:gosec // repeatable, not secret
	apps, work := make([]string, o.jobs), 0
	for i := range apps {
		length := shortest + rnd.IntN(longer+1)
		apps[i] = sleeper(length)
		work += length
	}
	name := fmt.Sprintf("%s, seed %d", p.Shape, p.Seed)
	ideal := float64(work) / float64(s.nodes*s.gpus)
	plain := o.sleepers(name, apps, variant{name: "plain", gres: "gpu:1"}, s)
	plain.judge = func(r *ran) error { return p.Plain.judge(plain, r, s, ideal, 1) }
	bridge := o.sleepers(name, apps, variant{name: "bridge", gres: "gpu:shared", policy: "greedy"}, s)
	bridge.judge = func(r *ran) error {
		p.WrongGPU = r.bridge.Misplaced
		return p.Bridge.judge(bridge, r, s, ideal, together)
	}
	return []*cell{plain, bridge}
}

// sleeper is an application that sleeps for so many s.
func sleeper(s int) string { return fmt.Sprint("sleep", s) }

// sleepers is a cell with applications that sleep, on a cluster of a shape.
func (o *options) sleepers(name string, apps []string, v variant, s shape) *cell {
	setup := *o.base
	setup.Scale, setup.Bare, setup.Sharing, setup.Lease = o.scale, true, "shard", 3*time.Minute
	setup.NodeGPUs, setup.Policy = slices.Repeat([]int{s.gpus}, s.nodes), v.policy
	setup.Adjust = func(so *slurmtest.Options) { so.Scheduler, so.CPUs = "", max(4, 4*s.gpus) }
	setup.Settings = []string{fmt.Sprintf("max_group: %d", together)}
	for d := shortest; d <= shortest+longer; d++ {
		setup.Profiles = append(setup.Profiles, &rlcore.Profile{
			App: sleeper(d), DurationS: float64(d), PeriodS: float64(d),
			Series: []rlcore.Use{{GPU: 0.1, Core: 0.1, MemMiB: memMiB}},
		})
	}
	return &cell{
		workload: workload{name: name, apps: apps}, variant: v, setup: setup, hold: true, args: []string{"--time=3"},
		command: func(app string) string { return "sleep " + strings.TrimPrefix(app, "sleep") },
	}
}

// judge reads how fast a cell's jobs ran, so many on a GPU. ideal is how long they take with one on each GPU at any
// time, s.
func (p *pace) judge(c *cell, r *ran, s shape, ideal float64, jobs int) error {
	for i := range r.jobs {
		if r.jobs[i].ended.IsZero() {
			return fmt.Errorf("job %s has not run to its end", r.jobs[i].id)
		}
	}
	*p = pace{takenS(r) / ideal * float64(jobs), fillS(r, s, jobs), followS(r)}
	c.says = p.String()
	return nil
}

// takenS is how long all took, s.
func takenS(r *ran) (last float64) {
	for i := range r.jobs {
		last = max(last, r.jobs[i].ended.Sub(r.began).Seconds())
	}
	return last
}

// followS is the median time from the end of a job to the start of the next one on its GPU, s; 0 = none followed
// another.
func followS(r *ran) float64 {
	var gaps []float64
	for _, x := range r.jobs {
		gap := math.Inf(1)
		for _, y := range r.jobs {
			if after := x.began.Sub(y.ended).Seconds(); y.node == x.node && y.gpu == x.gpu && after >= 0 {
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
func fillS(r *ran, s shape, jobs int) float64 {
	starts := map[[2]string][]float64{} // by node and GPU
	for _, x := range r.jobs {
		at := [2]string{x.node, x.gpu}
		starts[at] = append(starts[at], x.began.Sub(r.began).Seconds())
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
