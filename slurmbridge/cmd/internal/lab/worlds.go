package lab

import (
	"context"
	"fmt"
	"slices"
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
	o := f.Options
	o.Tries, o.Effort = 300, experiment.Effort{Tune: 4}
	if f.quick {
		o.Tries, o.Effort, o.Jobs = 30, experiment.Effort{Tune: 2}, 100
	}
	var err error
	if o.Trained, err = trained(f.checkpoint, &contention.MPS); err != nil {
		return err
	}
	began := time.Now()
	b := cli.NewBar(s.ErrOut)
	var out worldsReports
	for i, report := range []**experiment.WorldsReport{&out.Guarded, &out.Bare} {
		o.Bare = i == 1
		o.Progress = func(step, steps int, what string) { b.At(i*steps+step, 2*steps, what) }
		if *report, err = experiment.Worlds(ctx, o); err != nil {
			b.Done()
			return err
		}
	}
	b.Done()
	if f.json != "-" {
		s.printWorlds(&out, time.Since(began))
	}
	return s.writeJSON(f.json, out)
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

// worldColumns are the figures of a policy in a world.
var worldColumns = []column[*experiment.WorldLine]{
	{"turnaround s", func(x *experiment.WorldLine) any { return fixed(0, x.TurnaroundS) }},
	{"÷ fifo", func(x *experiment.WorldLine) any { return fixed(3, x.VsFifo) }},
	{"±", func(x *experiment.WorldLine) any { return fixed(3, x.VsFifoSD) }},
	{"÷ best other", func(x *experiment.WorldLine) any { return vsBest(&x.Fared) }},
	{"of possible", func(x *experiment.WorldLine) any { return percent(x.PossibleShare) }},
	{"late", func(x *experiment.WorldLine) any { return tenths(x.Late) }},
	{"worst late", func(x *experiment.WorldLine) any { return fixed(2, x.WorstLate) }},
	{"slowdown", func(x *experiment.WorldLine) any { return fixed(2, x.MeanSlowdown) }},
	{"95 %", func(x *experiment.WorldLine) any { return fixed(2, x.P95Slowdown) }},
	{"worst", func(x *experiment.WorldLine) any { return fixed(2, x.MaxSlowdown) }},
	{"harmed", func(x *experiment.WorldLine) any { return fixed(1, x.HarmedTimeout) }},
	{"lost runs", func(x *experiment.WorldLine) any { return fixed(1, x.OOM) }},
}

func (s *shared) printWorlds(all *worldsReports, took time.Duration) {
	g := all.Guarded
	fmt.Fprintf(s.Out, "%d jobs on %d GPUs, %d sets from seed %d, window %d; load 1 is what the GPUs do without sharing\n",
		g.Jobs, g.GPUs, g.Seeds, g.Seed, g.M)
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
			searched := slices.ContainsFunc(part.r.Loads, func(load float64) bool {
				return part.r.Lines[place][fmt.Sprintf("%g", load)][experiment.Clairvoyant] != nil
			})
			share := shareColumn(searched, func(x *experiment.WorldLine) *experiment.Fared { return &x.Fared })
			columns := slices.Concat(worldColumns, share)
			t := s.Table(place, head(columns, "load", "policy")...)
			for i, load := range part.r.Loads {
				if i > 0 {
					t.AppendSeparator()
				}
				of := fmt.Sprintf("%g", load)
				for _, name := range order {
					if l := part.r.Lines[place][of][name]; l != nil {
						t.AppendRow(row(columns, l, load, name))
					}
				}
				least := part.r.LowerBoundS[place][of]
				t.AppendRow([]any{
					load, "lower bound", fixed(0, least),
					fixed(3, least/part.r.Lines[place][of][experiment.Fifo].TurnaroundS),
				})
			}
			t.Render()
		}
	}
	for _, of := range []struct {
		title         string
		guarded, bare map[string]float64
	}{
		{"geometric mean over worlds and loads of turnaround ÷ fifo's", g.Geomean, all.Bare.Geomean},
		{"the same over the worlds where runs differ and have limits", g.GeomeanVaried, all.Bare.GeomeanVaried},
		{"the same over the worlds of sweeps", g.GeomeanSweeps, all.Bare.GeomeanSweeps},
	} {
		if of.guarded == nil {
			continue
		}
		t := s.Table(of.title, "policy", "under the guard", "bare")
		for _, name := range order {
			if x, ok := of.guarded[name]; ok {
				t.AppendRow([]any{name, fixed(3, x), fixed(3, of.bare[name])})
			}
		}
		t.Render()
	}
	fmt.Fprintf(s.Out, "Took %.0f s.\n", took.Seconds())
}
