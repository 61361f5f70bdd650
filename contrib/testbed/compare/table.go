package compare

import (
	"fmt"
	"io"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// show prints a table for each workload, and what to know of it.
func (r report) show(out io.Writer, o *options) {
	for _, wl := range o.workloads {
		if len(r[wl]) > 0 {
			r.table(out, o, wl)
		}
	}
	r.overSeeds(out, o)
	fmt.Fprintf(out, legend, pause, pause*o.scale)
	fmt.Fprintln(out)
	r.pauses(out, o)
	r.verdict(out, o)
}

const legend = `objective: what a workload is judged by, and what the bridge's decisions are to keep small there; of the
policies, dqn alone has a network for each. ÷ whole: makespan, or mean turnaround, over that of plain Slurm with whole GPUs. idle: no
application was on the GPU though jobs were there, which is Slurm's own pauses. rerun: the makespan
if every failed job ran once more afterwards, alone (computed). turnaround and slowdown are those of
the jobs that completed; a job that failed counts in the makespan for as long as it ran. later: jobs
that ended later than under whole, by more than %g s by the clock (%g GPU s), about what a pause
takes; late: those later by more than a tenth of their time alone, too; worst: by how much the latest
ended later. All times are GPU seconds, from the moment that the first job could start; turnarounds of open
workloads are from each job's submission.
`

func (r report) table(out io.Writer, o *options, wl string) {
	t := cluster.Table(out, "", "makespan", "÷ whole", "idle", "rerun", "turnaround", "÷ whole", "later", "late", "worst", "failed", "oom", "slow p50", "p95", "GPU")
	t.SetTitle(fmt.Sprintf("%s, objective %s", wl, objective(wl)))
	for i := range o.variants {
		name := o.variants[i].name
		f := r[wl][name]
		if f == nil {
			t.AppendRow(table.Row{name, "not measured"})
			continue
		}
		base, late := r[wl]["whole"], []any{"", "", "", ""}
		ofWhole, rerun := "", ""
		if f.JobsFailed > 0 {
			rerun = whole(f.RerunMakespanS)
		}
		if base != nil {
			ofWhole = ratio(f.MakespanS / base.MakespanS)
		}
		if a := f.againstWhole; a != nil {
			late = []any{ratio(a.TurnaroundRatio), a.Later, a.Late, whole(a.WorstS)}
		}
		row := append(table.Row{name, whole(f.MakespanS), ofWhole, whole(f.IdleS), rerun, whole(f.MeanTurnaroundS)}, late...)
		t.AppendRow(append(row, f.JobsFailed, f.OOM,
			fmt.Sprintf("%.2f", f.SlowdownP50), fmt.Sprintf("%.2f", f.SlowdownP95), fmt.Sprintf("%.0f %%", 100*f.GPUUtil),
		))
	}
	t.Render()
}

// overSeeds sums up the open workloads, which differ by their seeds only.
func (r report) overSeeds(out io.Writer, o *options) {
	t := cluster.Table(out, "", "seeds", "turnaround ÷ whole", "SD", "least", "most", "later", "late", "worst", "failed")
	t.SetTitle("open: mean over the seeds, jobs of all")
	rows := 0
	for i := range o.variants {
		var ratios []float64
		var all cluster.Lateness
		failed := 0
		for _, wl := range o.workloads {
			f := r[wl][o.variants[i].name]
			if !isOpen(wl) || f == nil || f.againstWhole == nil {
				continue
			}
			ratios = append(ratios, f.TurnaroundRatio)
			all.Later, all.Late, all.WorstS = all.Later+f.Later, all.Late+f.Late, max(all.WorstS, f.WorstS)
			failed += f.JobsFailed
		}
		if len(ratios) < 2 {
			continue
		}
		rows++
		mean, sd := stat.MeanStdDev(ratios, nil)
		t.AppendRow(table.Row{
			o.variants[i].name, len(ratios), ratio(mean), ratio(sd), ratio(slices.Min(ratios)), ratio(slices.Max(ratios)),
			all.Later, all.Late, whole(all.WorstS), failed,
		})
	}
	if rows > 0 {
		t.Render()
	}
}

func whole(s float64) string { return fmt.Sprintf("%.0f", s) }

func ratio(x float64) string { return fmt.Sprintf("%.3f", x) }

// pauses says how much of the makespans is Slurm's own time.
func (r report) pauses(out io.Writer, o *options) {
	lo, hi := span(r, o, func(f *figures) float64 { return f.IdleS / f.MakespanS })
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

// count is e.g. "1 job" or "7 jobs".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// each is called with every figure of a workload, in the order of tables.
func (r report) each(o *options, wl string, do func(v *variant, f *figures)) {
	for i := range o.variants {
		if f := r[wl][o.variants[i].name]; f != nil {
			do(&o.variants[i], f)
		}
	}
}

// span returns the least and the greatest of a figure over all runs.
func span(r report, o *options, of func(*figures) float64) (lo, hi float64) {
	var all []float64
	for _, wl := range o.workloads {
		r.each(o, wl, func(_ *variant, f *figures) {
			all = append(all, of(f))
		})
	}
	return cluster.Quantile(0, all), cluster.Quantile(1, all)
}

// nearBy is by how much a makespan, or mean turnaround, may be longer to be named with the
// shortest.
const nearBy = 0.05

// verdict says which variant was shortest, workload by workload, by what the workload is judged
// by.
func (r report) verdict(out io.Writer, o *options) {
	words := map[policy.Objective][2]string{
		policy.Makespan: {"is the shortest", "was over earlier"}, policy.Turnaround: {"has the shortest mean turnaround", "had a shorter one"},
	}
	for _, wl := range o.workloads {
		by := objective(wl)
		best, least := "", 0.0 // of equal ones the first
		r.each(o, wl, func(v *variant, f *figures) {
			if f.JobsFailed == 0 && (best == "" || f.of(by) < least) {
				best, least = v.name, f.of(by)
			}
		})
		if best == "" || len(r[wl]) < 2 {
			continue
		}
		fmt.Fprintf(out, "%s: %s %s of those under which no job failed", wl, best, words[by][0])
		failed := ""
		r.each(o, wl, func(v *variant, f *figures) {
			more := f.of(by)/least - 1
			switch {
			case v.name == best:
			case f.JobsFailed > 0 && more < 0:
				failed += fmt.Sprintf(" %s %s: %s failed.", v.name, words[by][1], count(f.JobsFailed, "job"))
			case f.JobsFailed == 0 && more < nearBy:
				fmt.Fprintf(out, ", %s %.1f %% longer", v.name, 100*more)
			}
		})
		fmt.Fprintf(out, ".%s\n", failed)
	}
}
