package main

import (
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

// show prints a table for each workload, and what to know of it.
func (r report) show(out io.Writer, o *options) {
	for _, wl := range o.workloads {
		if len(r[wl]) > 0 {
			r.table(out, o, wl)
		}
	}
	fmt.Fprint(out, legend)
	fmt.Fprintln(out)
	r.pauses(out, o)
	r.repeated(out, o)
	r.verdict(out, o)
}

const legend = `÷ whole: makespan over that of plain Slurm with whole GPUs. idle: no application was on the
GPU, which is Slurm's own pauses. rerun: the makespan if every failed job ran once more
afterwards, alone (computed). turnaround and slowdown are those of the jobs that completed; a
job that failed counts in the makespan for as long as it ran. sim: the simulator's makespan of
the same decisions without pauses; ÷ starts: the makespan over the simulator's with the same
start times. All times are GPU seconds from the moment that the first job could start.
`

func (r report) table(out io.Writer, o *options, wl string) {
	t := cluster.Table(out, "", "makespan", "÷ whole", "idle", "− idle", "rerun", "turnaround", "failed", "oom", "slow p50", "p95", "GPU", "sim", "÷ sim", "÷ starts")
	t.SetTitle(wl)
	for i := range o.variants {
		name := o.variants[i].name
		f := r[wl][name]
		if f == nil {
			t.AppendRow(table.Row{name, "not measured"})
			continue
		}
		var ofWhole, rerun, sim, ofSim, ofStarts string
		if base := r[wl]["whole"]; base != nil {
			ofWhole = ratio(f.MakespanS / base.MakespanS)
		}
		if f.JobsFailed > 0 {
			rerun = whole(f.RerunMakespanS)
		}
		if f.SimMakespanS > 0 {
			sim, ofSim = whole(f.SimMakespanS), ratio(f.SimRatio)
		}
		if f.SimStartsS > 0 {
			ofStarts = ratio(f.StartsRatio)
		}
		t.AppendRow(table.Row{
			name, whole(f.MakespanS), ofWhole, whole(f.IdleS), whole(f.BusyMakespanS), rerun, whole(f.MeanTurnaroundS), f.JobsFailed, f.OOM,
			fmt.Sprintf("%.2f", f.SlowdownP50), fmt.Sprintf("%.2f", f.SlowdownP95), fmt.Sprintf("%.0f %%", 100*f.GPUUtil), sim, ofSim, ofStarts,
		})
	}
	t.Render()
}

func whole(s float64) string { return fmt.Sprintf("%.0f", s) }

func ratio(x float64) string { return fmt.Sprintf("%.3f", x) }

// pauses says how much of the makespans is Slurm's own time.
func (r report) pauses(out io.Writer, o *options) {
	lo, hi := span(r, o, func(f *figures) (float64, bool) { return f.IdleS / f.MakespanS, true })
	fmt.Fprintf(out, "%g GPU seconds pass in one second, so Slurm's own pauses count %g-fold: the GPU was idle for %.0f to %.0f %% of\nthe makespans.",
		o.scale, o.scale, 100*lo, 100*hi)
	idle, starts := 0.0, 0
	for _, wl := range o.workloads {
		if f := r[wl]["whole"]; f != nil {
			idle += f.IdleS
			starts += len(f.runs)
		}
	}
	if starts > 0 {
		fmt.Fprintf(out, " With whole GPUs a pause took %.2f s by the clock on the wall.", idle/float64(starts)/o.scale)
	}
	fmt.Fprintln(out)
}

// repeated says how near the simulator comes to the real runs.
func (r report) repeated(out io.Writer, o *options) {
	far, n := 0, 0
	for _, wl := range o.workloads {
		for i := range o.variants {
			if f := r[wl][o.variants[i].name]; f != nil && f.SimRatio > 0 {
				n++
				if !near(f.SimRatio) {
					far++
				}
			}
		}
	}
	if n == 0 {
		return
	}
	lo, hi := span(r, o, func(f *figures) (float64, bool) { return f.SimRatio, f.SimRatio > 0 })
	fmt.Fprintf(out, "Same decisions, real ÷ simulated makespan: %.3f to %.3f; %d of %d runs are within 5 %%.\n", lo, hi, n-far, n)
	lo, hi = span(r, o, func(f *figures) (float64, bool) { return f.StartsRatio, f.StartsRatio > 0 })
	fmt.Fprintf(out, "With the start times of the real run too: %.3f to %.3f.", lo, hi)
	if far > 0 && lo > 0.99 && hi < 1.01 {
		fmt.Fprintf(out, " So what lies beyond 5 %% is Slurm's pauses times %g;\na smaller --scale makes it less.", o.scale)
	}
	fmt.Fprintln(out)
}

// count is e.g. "1 job" or "7 jobs".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// near reports whether a ratio is within 5 % of 1.
func near(x float64) bool { return x >= 0.95 && x <= 1.05 }

// span returns the least and the greatest of a figure over all runs that have it.
func span(r report, o *options, of func(*figures) (float64, bool)) (lo, hi float64) {
	first := true
	for _, wl := range o.workloads {
		for i := range o.variants {
			f := r[wl][o.variants[i].name]
			if f == nil {
				continue
			}
			x, ok := of(f)
			if !ok {
				continue
			}
			if first {
				lo, hi, first = x, x, false
			}
			lo, hi = min(lo, x), max(hi, x)
		}
	}
	return lo, hi
}

// nearBy is by how much a makespan may be longer to be named with the shortest.
const nearBy = 0.05

// verdict says which variant was shortest, workload by workload.
func (r report) verdict(out io.Writer, o *options) {
	for _, wl := range o.workloads {
		best := shortest(o.variants, r[wl])
		if best == "" || len(r[wl]) < 2 {
			continue
		}
		fmt.Fprintf(out, "%s: %s is the shortest of those under which no job failed", wl, best)
		failed := ""
		for i := range o.variants {
			n := o.variants[i].name
			f := r[wl][n]
			if f == nil || n == best {
				continue
			}
			more := f.MakespanS/r[wl][best].MakespanS - 1
			switch {
			case f.JobsFailed > 0 && more < 0:
				failed += fmt.Sprintf(" %s was over earlier: %s failed.", n, count(f.JobsFailed, "job"))
			case f.JobsFailed == 0 && more < nearBy:
				fmt.Fprintf(out, ", %s %.1f %% longer", n, 100*more)
			}
		}
		fmt.Fprintf(out, ".%s\n", failed)
	}
}
