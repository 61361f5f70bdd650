// Command flow measures how fast GPUs are filled and followed: the same jobs on plain Slurm, a
// whole GPU each, and with the bridge, three on a GPU, on private real Slurms with the default
// scheduler settings, for several shapes of one cluster. `make flow` calls it.
//
// A job sleeps: nothing is computed, and what is seen is how long Slurm and the bridge leave GPUs
// idle. All jobs are there before the first may start. Times are divided by the ideal: all work ÷
// (GPUs × jobs on each). Plain Slurm and the bridge run side by side, under the same load.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

// together is how many of the jobs fit on a GPU.
const together = 3

type options struct {
	shapes           []shape
	seeds            []uint64
	jobs             int
	shortest, longer int // s
	sharing          string
	json, build, lua string
}

// shape is a cluster's: nodes × GPUs on each.
type shape struct{ nodes, gpus int }

func (s shape) String() string { return fmt.Sprintf("%dx%d", s.nodes, s.gpus) }

func main() {
	cluster.Main("flow", func(ctx context.Context) error {
		o, err := parse(os.Args[1:])
		if err != nil {
			return err
		}
		if err := cluster.Missing(); err != nil {
			return err
		}
		return flow(ctx, o, os.Stdout)
	})
}

func parse(args []string) (*options, error) {
	o := &options{shortest: 10, longer: 15}
	f := flag.NewFlagSet("flow", flag.ContinueOnError)
	shapes := f.String("shapes", "40x1,10x4,5x8", "nodes x GPUs a node")
	seeds := f.String("seeds", "1,2,3", "of the jobs' lengths")
	f.IntVar(&o.jobs, "jobs", 240, "how many")
	f.StringVar(&o.sharing, "sharing", "shard", "shard or mps")
	f.StringVar(&o.json, "json", "build/flow.json", "the figures' file")
	f.StringVar(&o.build, "build", "build", "where make build put the programs")
	f.StringVar(&o.lua, "lua", "contrib/job_submit.lua", "the job_submit script")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	for word := range strings.SplitSeq(*shapes, ",") {
		var s shape
		if n, err := fmt.Sscanf(word, "%dx%d", &s.nodes, &s.gpus); n != 2 || err != nil || s.nodes < 1 || s.gpus < 1 {
			return nil, fmt.Errorf("--shapes: %q is not NODESxGPUS", word)
		}
		o.shapes = append(o.shapes, s)
	}
	for word := range strings.SplitSeq(*seeds, ",") {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("--seeds: %w", err)
		}
		o.seeds = append(o.seeds, n)
	}
	var err error
	if o.build, err = filepath.Abs(o.build); err != nil {
		return nil, err
	}
	o.lua, err = filepath.Abs(o.lua)
	return o, err
}

// figures are the figures of a shape: means of the seeds, except for WrongGPU, which is a sum.
type figures struct {
	// Plain and Bridge are the time taken over the ideal.
	Plain  float64 `json:"plain"`
	Bridge float64 `json:"bridge"`
	// FillPlain and FillBridge are how long it took until each GPU of a node had what it takes,
	// a job or three, s; the mean of the nodes.
	FillPlain  float64 `json:"fill_plain_s"`
	FillBridge float64 `json:"fill_bridge_s"`
	// WakeP50 is the median time from the end of a job to the release of the next one on its GPU, s.
	WakeP50 float64 `json:"end_to_release_p50_s"`
	// WrongGPU counts members of groups that the bridge saw on another GPU than planned.
	WrongGPU int     `json:"wrong_gpu"`
	Seeds    []drawn `json:"seeds,omitempty"`
}

// drawn are the figures of one seed.
type drawn struct {
	Seed uint64 `json:"seed"`
	figures
}

// flow runs everything.
func flow(ctx context.Context, o *options, out io.Writer) error {
	all := map[string]*figures{}
	for _, s := range o.shapes {
		sum := &figures{}
		all[s.String()] = sum
		for _, seed := range o.seeds {
			one, err := both(ctx, o, s, seed)
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", s, seed, err)
			}
			sum.Seeds = append(sum.Seeds, drawn{seed, *one})
			fmt.Fprintf(out, "%-5s seed %d  plain %.2f  bridge %.2f of the ideal; filled in %.1f s, %.1f s; the next job released after %.2f s (median); %d on a wrong GPU\n",
				s, seed, one.Plain, one.Bridge, one.FillPlain, one.FillBridge, one.WakeP50, one.WrongGPU)
			sum.mean()
			if err := write(o.json, all); err != nil {
				return err
			}
		}
	}
	t := cluster.Table(out, "nodes x GPUs", "plain ÷ ideal", "bridge ÷ ideal", "plain fills, s", "bridge fills, s", "end to release, s", "wrong GPU")
	for _, s := range o.shapes {
		f := all[s.String()]
		t.AppendRow([]any{s, two(f.Plain), two(f.Bridge), two(f.FillPlain), two(f.FillBridge), two(f.WakeP50), f.WrongGPU})
	}
	t.Render()
	return nil
}

func two(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// mean sets the figures to the means of the seeds.
func (f *figures) mean() {
	*f = figures{Seeds: f.Seeds}
	n := float64(len(f.Seeds))
	for i := range f.Seeds {
		s := &f.Seeds[i].figures
		f.Plain, f.Bridge = f.Plain+s.Plain/n, f.Bridge+s.Bridge/n
		f.FillPlain, f.FillBridge = f.FillPlain+s.FillPlain/n, f.FillBridge+s.FillBridge/n
		f.WakeP50 += s.WakeP50 / n
		f.WrongGPU += s.WrongGPU
	}
}

func write(file string, v any) error {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(body, '\n'), 0o644)
}

// both runs the same jobs on plain Slurm and with the bridge.
func both(ctx context.Context, o *options, s shape, seed uint64) (*figures, error) {
	r := rand.New(rand.NewPCG(seed, 0))
	lengths, work := make([]int, o.jobs), 0
	for i := range lengths {
		lengths[i] = o.shortest + r.IntN(o.longer+1)
		work += lengths[i]
	}
	var plain, bridged *ran
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { plain, err = play(ctx, o, s, lengths, false); return err })
	g.Go(func() (err error) { bridged, err = play(ctx, o, s, lengths, true); return err })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	ideal := float64(work) / float64(s.nodes*s.gpus)
	return &figures{
		Plain: plain.takenS / ideal, Bridge: bridged.takenS / (ideal / together),
		FillPlain: plain.fillS(s, 1), FillBridge: bridged.fillS(s, together), WakeP50: bridged.wakeS(), WrongGPU: bridged.wrong,
	}, nil
}
