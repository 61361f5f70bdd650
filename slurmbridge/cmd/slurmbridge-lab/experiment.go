package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/lab/experiment"
	"github.com/slurmbridge/slurmbridge/rlcore/lab/figure"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
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
			if !slices.Contains(figure.Formats, format) {
				return cli.Usage(fmt.Errorf("--format is %q; there are png and svg", format))
			}
			if err := checkExperiment(&o); err != nil {
				return err
			}
			if err := writable(jsonFile); err != nil {
				return err
			}
			o.Effort, o.Tries = experiment.Full, 4000
			if quick {
				o.Effort, o.Tries = experiment.Quick, 300
			}
			o.Contracts = []float64{1.05, 1.1, 1.2, 1.3, 1.5, 2, 0}
			b := cli.NewBar(s.ErrOut)
			o.Progress = b.At
			began := time.Now()
			r, err := experiment.Run(c.Context(), o)
			b.Done()
			if err != nil {
				return badOptions(err)
			}
			// What can't be written costs nothing of the rest.
			if jsonFile != "-" {
				s.printExperiment(r, time.Since(began))
			}
			err = s.writeJSON(jsonFile, r)
			if figures == "" {
				return err
			}
			files, bad := r.Figures(figures, format)
			fmt.Fprintf(s.ErrOut, "%d figures in %s\n", len(files), figures)
			return errors.Join(err, bad)
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
		return cli.Usage(err)
	}
	return err
}

// checkExperiment refuses settings before anything is computed.
func checkExperiment(o *experiment.Options) error {
	for _, wl := range o.Workloads {
		if !slices.Contains(experiment.Workloads(), wl) {
			return cli.Usage(fmt.Errorf("--workloads: there is no workload %q; there are %s", wl, strings.Join(experiment.Workloads(), ", ")))
		}
	}
	if o.History < 0 || o.History > mostSets {
		return cli.Usage(fmt.Errorf("--history is %d, not 0 to %d", o.History, mostSets))
	}
	var err error
	if o.Policies, err = policies(o.Policies, "sjf"); err != nil {
		return err
	}
	return checkRuns(o.Seeds, o.M)
}

// mostSets is more job sets than anybody waits for.
const mostSets = 10_000

func checkRuns(seeds, window int) error {
	if seeds < 1 || seeds > mostSets || window < 1 || window > rlcore.MaxWindow {
		return cli.Usage(fmt.Errorf("--seeds %d, --window %d: 1 to %d seeds, a window of 1 to %d", seeds, window, mostSets, rlcore.MaxWindow))
	}
	return nil
}

// policies checks names of policies and drops those named twice. The clairvoyant,
// which is always there, may be named too; if nothing else is, base stands for it.
func policies(names []string, base string) ([]string, error) {
	var out []string
	for _, p := range names {
		p = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(p)), "-", "_")
		switch {
		case p == experiment.Clairvoyant || slices.Contains(out, p):
		case p == experiment.Exclusive:
			out = append(out, p)
		case !slices.Contains(experiment.Names(), p):
			return nil, cli.Usage(fmt.Errorf("--policies: there is no policy %q; there are %s", p, strings.Join(experiment.Names(), ", ")))
		default:
			out = append(out, p)
		}
	}
	if len(names) > 0 && len(out) == 0 {
		out = []string{base}
	}
	return out, nil
}

// target follows links to the file to write. Special: what is there must not be
// replaced by a file, being a device, a pipe or a folder.
func target(path string) (file string, special bool) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	st, err := os.Stat(path)
	return path, err == nil && !st.Mode().IsRegular()
}

// writable tells before long work, not after it, that its result can't be written.
// "" and "-" are no files.
func writable(file string) error {
	if file == "" || file == "-" {
		return nil
	}
	path, special := target(file)
	if special {
		f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // the user names it
		if err != nil && !errors.Is(err, syscall.ENXIO) {              // a pipe that nobody reads yet
			return fmt.Errorf("can't write %s: %w", file, cause(err))
		}
		if err == nil {
			_ = f.Close() // nothing was written
		}
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".slurmbridge-*")
	if err != nil {
		return fmt.Errorf("can't write %s: %w", file, cause(err))
	}
	_ = f.Close() // nothing was written
	return os.Remove(f.Name())
}

// cause is err without a file's name, which the message has.
func cause(err error) error {
	var where *os.PathError
	if errors.As(err, &where) {
		return where.Err
	}
	return err
}

// writeJSON writes v to a file, to standard output for "-", nowhere for "".
// Devices and pipes are written to, not replaced.
func (s *shared) writeJSON(file string, v any) error {
	switch file {
	case "":
		return nil
	case "-":
		return s.PrintJSON(v)
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	text = append(text, '\n')
	if path, special := target(file); special {
		err = os.WriteFile(path, text, 0o644) //nolint:gosec // the user names it; it is there already
	} else {
		err = renameio.WriteFile(path, text, 0o644, renameio.IgnoreUmask())
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, cause(err))
	}
	return nil
}

func (s *shared) printExperiment(r *experiment.Report, took time.Duration) {
	fmt.Fprintf(s.Out, "%d jobs a set, %d sets, window %d, seed %d, %d sets of history; simulated Titan Xp under MPS\n",
		r.Jobs, r.Seeds, r.M, r.Seed, r.History)
	for _, wl := range experiment.Workloads() {
		lines := r.Workloads[wl]
		if lines == nil {
			continue
		}
		t := table.NewWriter()
		t.SetOutputMirror(s.Out)
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
				percent(l.GainShare), percent(l.GPUUtil), percent(l.MemUtil),
				fmt.Sprintf("%.1f", l.LE2), fmt.Sprintf("%.1f", l.LT10), fmt.Sprintf("%.1f", l.LT20), fmt.Sprintf("%.1f", l.GE20),
				l.OOM, fmt.Sprintf("%.1f", l.TrainS),
			})
		}
		t.Render()
	}
	if len(r.TradeOff) > 0 {
		t := table.NewWriter()
		t.SetOutputMirror(s.Out)
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
	t.SetOutputMirror(s.Out)
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
	fmt.Fprintf(s.Out, "lost runs: runs that failed for want of GPU memory, over all sets. Took %.0f s.\n", took.Seconds())
}

// percent is e.g. "85 %", and never "-0 %".
func percent(part float64) string { return fmt.Sprintf("%.0f %%", math.Round(100*part)+0) }

func average(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v / float64(len(x))
	}
	return sum
}
