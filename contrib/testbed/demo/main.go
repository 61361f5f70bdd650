// Command demo runs the thesis's random workload twice on a private real Slurm
// with one simulated Titan Xp: whole GPUs, and bridged. `make demo` calls it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/term"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// result is one run, in GPU seconds.
type result struct {
	MakespanS       float64 `json:"makespan_s"`
	MeanTurnaroundS float64 `json:"mean_turnaround_s"`
	GPUUtil         float64 `json:"gpu_util"` // mean over the makespan, 0..1
	MemUtil         float64 `json:"mem_util"`
	JobsCompleted   int     `json:"jobs_completed"`
	JobsFailed      int     `json:"jobs_failed"`
	OOM             int     `json:"oom"`

	slowdowns []float64
	ends      map[int]float64 // GPU seconds after the beginning, of the jobs that completed
	bridge    *cluster.Bridged
}

// report is build/demo.json.
type report struct {
	Plain   *result `json:"plain"`
	Bridged *result `json:"bridged"`
	// Lateness compares the jobs' ends in both.
	cluster.Lateness
	// Objective is what the bridge's decisions were to keep small.
	Objective     string   `json:"objective"`
	Groups        int      `json:"groups"`
	SkewP50S      float64  `json:"costart_skew_p50_s"`
	SkewP95S      float64  `json:"costart_skew_p95_s"`
	AddedDelayS   float64  `json:"added_delay_max_s"`
	TimeScale     float64  `json:"time_scale"`
	Seed          uint64   `json:"seed"`
	Jobs          []string `json:"jobs"`
	Slurm         string   `json:"slurm"`
	ProfilesKnown bool     `json:"profiles_known"`
}

type options struct {
	jobs  int
	seed  uint64
	scale float64
	cold  bool
	keep  bool
	// objective is slurmbridge.yaml's; "" = its default.
	objective string
	build     string
	lua       string
	out       string
	// after is called before the bridged cluster ends; nil = nothing to do.
	after func(ctx context.Context, s *cluster.Stack) error
}

func main() {
	o := options{lua: "contrib/job_submit.lua"}
	flag.IntVar(&o.jobs, "jobs", 30, "jobs of the thesis's random workload")
	flag.Uint64Var(&o.seed, "seed", 2019, "seed of the draw")
	flag.Float64Var(&o.scale, "scale", 50, "GPU seconds that pass in a second")
	flag.BoolVar(&o.cold, "cold", false, "start without any application's profile")
	flag.StringVar(&o.objective, "objective", string(policy.Makespan), "what the bridge's decisions keep small: "+strings.Join(policy.Objectives(), " or "))
	flag.BoolVar(&o.keep, "keep", false, "keep the bridged cluster's folder")
	flag.StringVar(&o.build, "build", "build", "where make build put the programs")
	flag.StringVar(&o.out, "out", "build/demo.json", "where the figures go")
	flag.Parse()
	cluster.Main("demo", func(ctx context.Context) error {
		if _, err := policy.ObjectiveNamed(o.objective); err != nil {
			return fmt.Errorf("--objective: %w", err)
		}
		if err := cluster.Missing(); err != nil {
			return err
		}
		return run(ctx, o)
	})
}

func run(ctx context.Context, o options) error {
	names, err := apps.Workload("random", o.jobs, rand.NewPCG(o.seed, 0))
	if err != nil {
		return err
	}
	fmt.Printf("The thesis's random workload: %d jobs, seed %d, %.0f s of GPU time one after the other.\n", o.jobs, o.seed, cluster.SoloS(names))
	fmt.Printf("One simulated Titan Xp on a private real Slurm; %g GPU seconds pass in one second.\n\n", o.scale)
	rep := &report{TimeScale: o.scale, Seed: o.seed, Jobs: names, ProfilesKnown: !o.cold, Objective: o.objective}
	plain, err := measure(ctx, o, names, false)
	if err != nil {
		return fmt.Errorf("plain Slurm: %w", err)
	}
	shared, err := measure(ctx, o, names, true)
	if err != nil {
		return fmt.Errorf("bridged: %w", err)
	}
	rep.Plain, rep.Bridged, rep.Lateness = plain, shared, lateness(plain, shared, names, o.scale)
	rep.Groups, rep.SkewP50S, rep.SkewP95S = shared.bridge.Groups, cluster.Quantile(0.5, shared.bridge.Skews), cluster.Quantile(0.95, shared.bridge.Skews)
	rep.AddedDelayS, rep.Slurm = shared.bridge.AddedDelayS, shared.bridge.Slurm
	show(os.Stdout, rep)
	body, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(o.out, append(body, '\n'), 0o644); err != nil {
		return err
	}
	fmt.Printf("\nAll figures: %s\n", o.out)
	if shared.JobsCompleted != o.jobs || plain.JobsCompleted != o.jobs {
		return fmt.Errorf("not every job completed: %d of %d plain, %d bridged", plain.JobsCompleted, o.jobs, shared.JobsCompleted)
	}
	return nil
}

// show prints the table.
func show(out io.Writer, r *report) {
	t := cluster.Table(out, "", "whole GPUs", "bridged", "ratio")
	row := func(name, format string, a, b float64) {
		ratio := ""
		if a > 0 {
			ratio = fmt.Sprintf("%.2f", b/a)
		}
		t.AppendRow(table.Row{name, fmt.Sprintf(format, a), fmt.Sprintf(format, b), ratio})
	}
	p, b := r.Plain, r.Bridged
	row("makespan, GPU s", "%.0f", p.MakespanS, b.MakespanS)
	row("mean turnaround, GPU s", "%.0f", p.MeanTurnaroundS, b.MeanTurnaroundS)
	row("GPU utilisation", "%.1f %%", 100*p.GPUUtil, 100*b.GPUUtil)
	row("GPU memory utilisation", "%.1f %%", 100*p.MemUtil, 100*b.MemUtil)
	for _, q := range []struct {
		name string
		at   float64
	}{{"slowdown, median", 0.5}, {"slowdown, 95th percentile", 0.95}} {
		row(q.name, "%.2f", cluster.Quantile(q.at, p.slowdowns), cluster.Quantile(q.at, b.slowdowns))
	}
	for _, c := range []struct {
		name string
		most float64
	}{{"jobs slowed by under 2 %", 1.02}, {"jobs slowed by under 10 %", 1.1}, {"jobs slowed by under 20 %", 1.2}} {
		row(c.name, "%.0f", count(p.slowdowns, c.most), count(b.slowdowns, c.most))
	}
	t.AppendRow(table.Row{"jobs completed", p.JobsCompleted, b.JobsCompleted, ""})
	t.AppendRow(table.Row{"jobs failed", p.JobsFailed, b.JobsFailed, ""})
	t.AppendRow(table.Row{"out of GPU memory", p.OOM, b.OOM, ""})
	t.AppendRow(table.Row{"ended later than on plain Slurm", "", r.Later, ""})
	fmt.Fprintln(out)
	t.Render()
	fmt.Fprintf(out, "Later: by more than %g s by the clock (%g GPU s), about what Slurm's pause before a job takes", cluster.Pause, cluster.Pause*r.TimeScale)
	if r.Later > 0 {
		fmt.Fprintf(out, "; at most by %.0f GPU s", r.WorstS)
	}
	fmt.Fprintf(out, ".\nThe bridge's policy was dqn, its objective %s.\n", r.Objective)
	fmt.Fprintf(out, "%d times jobs were put together; those released together started %.0f ms apart (median), %.0f ms (95th percentile).\n", r.Groups, 1000*r.SkewP50S, 1000*r.SkewP95S)
	fmt.Fprintf(out, "The bridge alone kept no job waiting longer than %.1f s.\n", r.AddedDelayS)
	fmt.Fprintf(out, "Slurm's own time between jobs counts %g-fold here, in the ends of jobs, too; with real hours it vanishes on both sides.\n", r.TimeScale)
}

func count(v []float64, below float64) float64 {
	n := 0.0
	for _, x := range v {
		if x < below {
			n++
		}
	}
	return n
}

// progress shows how far a run is: one line that is rewritten on a terminal,
// lines now and then elsewhere.
type progress struct {
	name  string
	total int
	start time.Time
	last  int
	tty   bool
}

func newProgress(name string, total int) *progress {
	return &progress{name: name, total: total, start: time.Now(), last: -1, tty: term.IsTerminal(int(os.Stdout.Fd()))}
}

func (p *progress) at(done, running int, note string) {
	line := fmt.Sprintf("%-11s %s %2d/%d ended, %d running, %3.0f s %s", p.name, cluster.Bar(30, done, p.total), done, p.total, running, time.Since(p.start).Seconds(), note)
	switch {
	case p.tty:
		fmt.Printf("\r\x1b[K%s", line)
	case done/5 != p.last/5 || done == p.total && p.last != done || p.last < 0:
		fmt.Println(line)
	}
	if p.tty && done == p.total {
		fmt.Println()
	}
	p.last = done
}
