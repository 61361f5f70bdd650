package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
)

// worldsReports is what experiment --worlds writes.
type worldsReports struct {
	Guarded *experiment.WorldsReport `json:"guarded"`
	Bare    *experiment.WorldsReport `json:"bare"`
}

// worlds lets the policies compete on jobs that come over time.
func (s *shared) worlds(ctx context.Context, f *experimentFlags) error {
	o := experiment.WorldsOptions{
		Places: f.Workloads, Loads: f.loads, Seeds: f.Seeds, Seed: f.Seed, GPUs: f.gpus, M: f.M,
		MaxSlowdown: f.MaxSlowdown, Grace: f.Grace, Tries: 300, Tune: 4, KeepLimits: f.keepLimits,
	}
	if f.quick {
		o.Tries, o.Tune, o.Jobs = 30, 2, 100
	}
	for _, name := range o.Places {
		if !slices.Contains(experiment.PlaceNames(), name) {
			return cli.Usage(fmt.Errorf("--workloads: there is no world %q; there are %s", name, strings.Join(experiment.PlaceNames(), ", ")))
		}
	}
	var err error
	if o.Policies, err = policies(f.Policies, "fifo"); err != nil {
		return err
	}
	if err := checkContract(f.MaxSlowdown, f.Grace); err != nil {
		return err
	}
	if err := checkRuns(o.Seeds, o.M); err != nil {
		return err
	}
	if err := writable(f.json); err != nil {
		return err
	}
	if f.checkpoint != "" {
		cp, err := dqn.Load(f.checkpoint)
		if err != nil {
			return err
		}
		if o.Trained, err = cp.Network(interference.New(&contention.MPS)); err != nil {
			return err
		}
	}
	began := time.Now()
	b := cli.NewBar(s.ErrOut)
	var out worldsReports
	for i, report := range []**experiment.WorldsReport{&out.Guarded, &out.Bare} {
		o.Bare = i == 1
		o.Progress = func(step, steps int, what string) { b.At(i*steps+step, 2*steps, what) }
		if *report, err = experiment.Worlds(ctx, o); err != nil {
			b.Done()
			return badOptions(err)
		}
	}
	b.Done()
	if f.json != "-" {
		s.printWorlds(&out, time.Since(began))
	}
	return s.writeJSON(f.json, out)
}

// worldColumns are the figures of a policy in a world.
var worldColumns = []column[*experiment.WorldLine]{
	{"turnaround s", func(x *experiment.WorldLine) any { return fixed(0, x.TurnaroundS) }},
	{"÷ fifo", func(x *experiment.WorldLine) any { return fixed(3, x.VsFifo) }},
	{"±", func(x *experiment.WorldLine) any { return fixed(3, x.VsFifoSD) }},
	{"share", func(x *experiment.WorldLine) any { return percent(x.GainShare) }},
	{"late", func(x *experiment.WorldLine) any { return tenths(x.Late) }},
	{"worst late", func(x *experiment.WorldLine) any { return fixed(2, x.WorstLate) }},
	{"slowdown", func(x *experiment.WorldLine) any { return fixed(2, x.MeanSlowdown) }},
	{"95 %", func(x *experiment.WorldLine) any { return fixed(2, x.P95Slowdown) }},
	{"worst", func(x *experiment.WorldLine) any { return fixed(2, x.MaxSlowdown) }},
	{"harmed", func(x *experiment.WorldLine) any { return fixed(1, x.Harmed) }},
	{"lost runs", func(x *experiment.WorldLine) any { return fixed(1, x.OOM) }},
}

func (s *shared) printWorlds(all *worldsReports, took time.Duration) {
	g := all.Guarded
	fmt.Fprintf(s.Out, "%d jobs on %d GPUs, %d sets from seed %d, window %d; load 1 is what the GPUs do without sharing\n", g.Jobs, g.GPUs, g.Seeds, g.Seed, g.M)
	order := append(policy.Names(policy.Contenders()), experiment.Clairvoyant)
	for _, part := range []struct {
		title string
		r     *experiment.WorldsReport
	}{
		{contract(g.MaxSlowdown, g.Grace), g},
		{"bare: any slowdown is allowed, and any end", all.Bare},
	} {
		fmt.Fprintln(s.Out, part.title)
		for _, place := range part.r.Places {
			t := s.Table(place, head(worldColumns, "load", "policy")...)
			for i, load := range part.r.Loads {
				if i > 0 {
					t.AppendSeparator()
				}
				for _, name := range order {
					if l := part.r.Lines[place][fmt.Sprintf("%g", load)][name]; l != nil {
						t.AppendRow(row(worldColumns, l, load, name))
					}
				}
			}
			t.Render()
		}
	}
	t := s.Table("geometric mean over worlds and loads of turnaround ÷ fifo's", "policy", "under the guard", "bare")
	for _, name := range order {
		if x, ok := g.Geomean[name]; ok {
			t.AppendRow([]any{name, fixed(3, x), fixed(3, all.Bare.Geomean[name])})
		}
	}
	t.Render()
	if g.GeomeanVaried != nil {
		t = s.Table("the same over the worlds where runs differ and have limits", "policy", "under the guard", "bare")
		for _, name := range order {
			if x, ok := g.GeomeanVaried[name]; ok {
				t.AppendRow([]any{name, fixed(3, x), fixed(3, all.Bare.GeomeanVaried[name])})
			}
		}
		t.Render()
	}
	fmt.Fprintf(s.Out, "Took %.0f s.\n", took.Seconds())
}
