package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore/experiment"
)

func newExperiment(s *shared) *cobra.Command {
	var o experiment.Options
	var quick bool
	var jsonFile, figures, format string
	c := &cobra.Command{
		Use:   "experiment",
		Short: "The thesis's experiments: five workloads, every policy, many seeds",
		Long: `experiment lets every policy schedule the thesis's five workloads (30 jobs each, one
Titan Xp) on the simulator, and compares makespan, utilisation, slowdowns, memory
failures, training time and cost. It needs no Slurm, no GPU and no daemon.

Policies that learn are trained, and those with a knob are tuned, on other job sets
than those of the comparison. sjf gives each job a GPU of its own, shortest first:
everything is compared with it. clairvoyant is no policy but a search that knows the
whole future; share is how much of its gain over sjf a policy reaches.

The thesis's own printed figures stand beside ours. Applications' durations and how
HPC codes meet under MPS are assumptions; rlcore/LEARNING.md lists them.`,
		Example: `  slurmbridge experiment --quick                      less training, in a minute
  slurmbridge experiment --figures out --json out.json   everything, and pictures
  slurmbridge experiment --workloads random --policies greedy,dqn --seeds 30`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"png", "svg"}, format) {
				return usageError{fmt.Errorf("--format is %q; there are png and svg", format)}
			}
			o.Effort, o.Tries = experiment.Full, 4000
			if quick {
				o.Effort, o.Tries = experiment.Quick, 300
			}
			o.Contracts = []float64{1.05, 1.1, 1.2, 1.3, 1.5, 2, 0}
			b := newBar(s.errOut)
			o.Progress = b.at
			began := time.Now()
			r, err := experiment.Run(c.Context(), o)
			b.done()
			if err != nil {
				return badOptions(err)
			}
			if jsonFile != "" {
				if err := s.writeJSON(jsonFile, r); err != nil {
					return err
				}
			}
			if jsonFile != "-" {
				s.printExperiment(r, time.Since(began))
			}
			if figures == "" {
				return nil
			}
			files, err := r.Figures(figures, format)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.errOut, "%d figures in %s\n", len(files), figures)
			return nil
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Workloads, "workloads", nil, "of "+strings.Join(experiment.Workloads(), ",")+" (default all)")
	f.StringSliceVar(&o.Policies, "policies", nil, "of "+strings.Join(experiment.Names(), ",")+" (default all)")
	f.IntVar(&o.Seeds, "seeds", 10, "job sets compared, each a seed of its own")
	f.Uint64Var(&o.Seed, "seed", 1, "of trainings and job sets")
	f.IntVar(&o.M, "window", 5, "pending jobs a decision looks at")
	f.IntVar(&o.History, "history", 20, "job sets the site ran before and learned slowdowns from")
	f.BoolVar(&quick, "quick", false, "less training and searching: a minute on two cores")
	f.StringVar(&jsonFile, "json", "", "write all figures to `FILE` (- = standard output)")
	f.StringVar(&figures, "figures", "", "write pictures into `DIR`")
	f.StringVar(&format, "format", "png", "of the pictures: png or svg")
	return c
}

// badOptions makes a mistake of the user's a usage error.
func badOptions(err error) error {
	if errors.Is(err, experiment.ErrOptions) {
		return usageError{err}
	}
	return err
}

// writeJSON writes v to a file, or to standard output for "-".
func (s *shared) writeJSON(file string, v any) error {
	if file == "-" {
		return s.printJSON(v)
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if err := renameio.WriteFile(file, append(text, '\n'), 0o644, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}

func (s *shared) printExperiment(r *experiment.Report, took time.Duration) {
	fmt.Fprintf(s.out, "%d jobs a set, %d sets, window %d, seed %d, %d sets of history; simulated Titan Xp under MPS\n",
		r.Jobs, r.Seeds, r.M, r.Seed, r.History)
	for _, wl := range experiment.Workloads() {
		lines := r.Workloads[wl]
		if lines == nil {
			continue
		}
		t := table.NewWriter()
		t.SetOutputMirror(s.out)
		t.SetStyle(table.StyleLight)
		t.SetTitle(wl)
		t.AppendHeader(table.Row{"policy", "makespan s", "÷ sjf", "±", "thesis", "share", "GPU", "memory", "≤2 %", "<10 %", "<20 %", "≥20 %", "lost runs", "training s"})
		for _, name := range append(experiment.Names(), experiment.Clairvoyant) {
			l := lines[name]
			if l == nil {
				continue
			}
			thesis := ""
			if l.ThesisVsSJF > 0 {
				thesis = fmt.Sprintf("%.3f", l.ThesisVsSJF)
			}
			t.AppendRow(table.Row{
				name, fmt.Sprintf("%.0f", average(l.MakespanS)), fmt.Sprintf("%.3f", l.MakespanVsSJF), fmt.Sprintf("%.3f", l.MakespanSD), thesis,
				fmt.Sprintf("%.0f %%", 100*l.GainShare), fmt.Sprintf("%.0f %%", 100*l.GPUUtil), fmt.Sprintf("%.0f %%", 100*l.MemUtil),
				fmt.Sprintf("%.1f", l.LE2), fmt.Sprintf("%.1f", l.LT10), fmt.Sprintf("%.1f", l.LT20), fmt.Sprintf("%.1f", l.GE20),
				l.OOM, fmt.Sprintf("%.1f", l.TrainS),
			})
		}
		t.Render()
	}
	if len(r.TradeOff) > 0 {
		t := table.NewWriter()
		t.SetOutputMirror(s.out)
		t.SetStyle(table.StyleLight)
		t.SetTitle("dqn on random: the slowdown a job allows, and what it costs")
		t.AppendHeader(table.Row{"contract", "makespan ÷ sjf", "±", "jobs <10 %", "lost runs"})
		for _, x := range r.TradeOff {
			contract := "none"
			if x.Contract > 0 {
				contract = fmt.Sprintf("%.2f", x.Contract)
			}
			t.AppendRow(table.Row{contract, fmt.Sprintf("%.3f", x.MakespanVsSJF), fmt.Sprintf("%.3f", x.MakespanSD), fmt.Sprintf("%.1f", x.LT10), x.OOM})
		}
		t.Render()
	}
	t := table.NewWriter()
	t.SetOutputMirror(s.out)
	t.SetStyle(table.StyleLight)
	t.SetTitle("geometric mean over the workloads of makespan ÷ sjf; cost of random against whole instances (thesis: 0.701, 0.500)")
	t.AppendHeader(table.Row{"policy", "geomean", "cost by GPU memory", "cost by vCPU"})
	for _, name := range append(experiment.Names(), experiment.Clairvoyant) {
		g, ok := r.Geomean[name]
		if !ok {
			continue
		}
		row := table.Row{name, fmt.Sprintf("%.3f", g), "", ""}
		if l := r.Workloads["random"][name]; l != nil && name != "sjf" && name != "fifo" {
			row[2], row[3] = fmt.Sprintf("%.3f", l.Cost1), fmt.Sprintf("%.3f", l.Cost2)
		}
		t.AppendRow(row)
	}
	t.Render()
	fmt.Fprintf(s.out, "lost runs: runs that failed for want of GPU memory, over all sets. Took %.0f s.\n", took.Seconds())
}

func average(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v / float64(len(x))
	}
	return sum
}
