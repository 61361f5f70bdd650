package compare

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// demoReport is build/demo.json.
type demoReport struct {
	Plain   *figures `json:"plain"`
	Bridged *figures `json:"bridged"`
	// Lateness compares the jobs' ends in both.
	Lateness
	// Objective is what the bridge's decisions were to keep small.
	Objective     policy.Objective `json:"objective"`
	Groups        int              `json:"groups"`
	SkewP50S      float64          `json:"costart_skew_p50_s"`
	SkewP95S      float64          `json:"costart_skew_p95_s"`
	AddedDelayS   float64          `json:"added_delay_max_s"`
	TimeScale     float64          `json:"time_scale"`
	Seed          uint64           `json:"seed"`
	Jobs          []string         `json:"jobs"`
	Slurm         string           `json:"slurm"`
	ProfilesKnown bool             `json:"profiles_known"`
}

// Demo is `testbed demo`: the random workload, whole GPUs and the bridge at the same time.
func Demo(base *cluster.Setup) *cobra.Command {
	o := options{base: base, parallel: 2, load: 1}
	var by, file string
	var cold bool
	c := &cobra.Command{
		Use: "demo", Short: "The thesis's random workload on one simulated Titan Xp, whole and shared", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := policy.ObjectiveNamed(by); err != nil {
				return fmt.Errorf("--objective: %w", err)
			}
			o.workloads = []string{"random"}
			if err := o.check(c.Context(), []string{"whole", "dqn"}); err != nil {
				return err
			}
			cells, err := o.cells()
			if err != nil {
				return err
			}
			cells[0].title, cells[1].title = "whole GPUs", "bridged"
			cells[0].hold, cells[1].hold = false, false // jobs start before the last one is there
			s := &cells[1].setup
			s.Cold, s.Policy = cold, networkFor(policy.Objective(by))
			return o.demo(c.Context(), cells, policy.Objective(by), file)
		},
	}
	f := c.Flags()
	f.IntVar(&o.jobs, "jobs", 30, "jobs of the thesis's random workload")
	f.Uint64Var(&o.seed, "seed", 2019, "of the draw of jobs")
	f.Float64Var(&o.scale, "scale", 25, "GPU seconds that pass in a second")
	f.BoolVar(&cold, "cold", false, "start without any application's profile")
	f.StringVar(&by, "objective", string(policy.Makespan),
		"what the bridge's decisions keep small: "+strings.Join(policy.Objectives(), " or "))
	f.StringVar(&file, "out", "build/demo.json",
		"write all figures to `FILE`, and the timelines to one beside it that ends in .svg")
	return c
}

func (o *options) demo(ctx context.Context, cells []*cell, by policy.Objective, file string) error {
	names := cells[0].apps
	fmt.Printf("The thesis's random workload: %d jobs, seed %d, %.0f s of GPU time one after the other.\n", o.jobs, o.seed,
		cluster.SoloS(names))
	fmt.Println("Two private real Slurms play it side by side, each with a simulated Titan Xp.")
	fmt.Printf("%g GPU seconds pass in one second.\n\n", o.scale)
	compare(ctx, o, cells, newBoard(cluster.NewLine(5*time.Second), cells))
	if err := failures(cells); err != nil {
		return err
	}
	plain, bridged, bridge := cells[0].figures, cells[1].figures, cells[1].bridge
	r := &demoReport{
		Plain: plain, Bridged: bridged, Lateness: bridged.against(plain).Lateness, Objective: by,
		Groups: bridge.Groups, SkewP50S: cluster.Quantile(0.5, bridge.Skews), SkewP95S: cluster.Quantile(0.95, bridge.Skews),
		AddedDelayS: bridge.AddedDelayS, Slurm: bridge.Slurm,
		TimeScale: o.scale, Seed: o.seed, Jobs: names, ProfilesKnown: !cells[1].setup.Cold,
	}
	r.show(os.Stdout)
	if err := cluster.WriteJSON(file, r); err != nil {
		return err
	}
	drawn := strings.TrimSuffix(file, filepath.Ext(file)) + ".svg"
	if err := renameio.WriteFile(drawn, r.picture(), 0o644); err != nil {
		return fmt.Errorf("draw the timelines: %w", err)
	}
	fmt.Printf("\nAll figures: %s. Both timelines: %s\n", file, drawn)
	return nil
}

// show prints the table.
func (r *demoReport) show(out io.Writer) {
	t := cluster.Table(out, "", "whole GPUs", "bridged", "ratio")
	row := func(name, format string, of func(f *figures) float64) {
		a, b, ratio := of(r.Plain), of(r.Bridged), ""
		if a > 0 {
			ratio = fmt.Sprintf("%.2f", b/a)
		}
		t.AppendRow(table.Row{name, fmt.Sprintf(format, a), fmt.Sprintf(format, b), ratio})
	}
	row("makespan, GPU s", "%.0f", func(f *figures) float64 { return f.MakespanS })
	row("makespan but for the idle GPU", "%.0f", func(f *figures) float64 { return f.BusyMakespanS })
	row("mean turnaround, GPU s", "%.0f", func(f *figures) float64 { return f.MeanTurnaroundS })
	row("GPU utilisation", "%.1f %%", func(f *figures) float64 { return 100 * f.GPUUtil })
	row("GPU memory utilisation", "%.1f %%", func(f *figures) float64 { return 100 * f.MemUtil })
	row("slowdown, median", "%.2f", func(f *figures) float64 { return f.SlowdownP50 })
	row("slowdown, 95th percentile", "%.2f", func(f *figures) float64 { return f.SlowdownP95 })
	for _, percent := range []float64{2, 10, 20} {
		row(fmt.Sprintf("jobs slowed by under %g %%", percent), "%.0f", func(f *figures) float64 {
			n := 0.0
			for _, s := range f.slowdowns {
				if s < 1+percent/100 {
					n++
				}
			}
			return n
		})
	}
	t.AppendRow(table.Row{"jobs completed", r.Plain.JobsCompleted, r.Bridged.JobsCompleted, ""})
	t.AppendRow(table.Row{"jobs failed", r.Plain.JobsFailed, r.Bridged.JobsFailed, ""})
	t.AppendRow(table.Row{"out of GPU memory", r.Plain.OOM, r.Bridged.OOM, ""})
	t.AppendRow(table.Row{"ended later than on plain Slurm", "", r.Later, ""})
	fmt.Fprintln(out)
	t.Render()
	fmt.Fprintf(out, "Later: by more than %g s by the clock (%g GPU s), about what Slurm's pause before a job takes",
		pause, pause*r.TimeScale)
	if r.Later > 0 {
		fmt.Fprintf(out, "; at most by %.0f GPU s", r.WorstS)
	}
	fmt.Fprintf(out, ".\nThe bridge's policy was %s.\n", networkFor(r.Objective))
	fmt.Fprintf(out, "%d times jobs were put together; those released together started %.0f ms apart (median), %.0f ms "+
		"(95th percentile).\n", r.Groups, 1000*r.SkewP50S, 1000*r.SkewP95S)
	fmt.Fprintf(out, "The bridge alone kept no job waiting longer than %.1f s.\n", r.AddedDelayS)
	fmt.Fprintf(out, "Slurm's own time between jobs counts %g-fold here, in the ends of jobs, too; with real hours it "+
		"vanishes on both sides.\n", r.TimeScale)
}
