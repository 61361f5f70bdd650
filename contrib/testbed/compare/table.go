package compare

import (
	"fmt"
	"io"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

// show prints a table for each workload, and what to know of it.
func (r report) show(out io.Writer, o *options) {
	for _, wl := range o.workloads {
		if len(r[wl]) > 0 {
			r.table(out, o, wl)
		}
	}
	r.overSeeds(out, o)
	fmt.Fprintf(out, legend, o.scale, pause, pause*o.scale)
}

const legend = `objective: what a workload is judged by, and what the bridge's decisions are to keep small there; of the
policies, dqn alone has a network for each. ÷ whole: makespan, or mean turnaround, over that of plain Slurm with whole
GPUs. idle: no application was on the GPU though jobs were there, which is Slurm's own pauses; they count %g-fold here.
turnaround and slowdown are those of the jobs that completed; a job that failed counts in the makespan for as long as it
ran. later: jobs that ended later than under whole, by more than %g s by the clock (%g GPU s), about what a pause takes;
late: those later by more than a tenth of their time alone, too; worst: by how much the latest ended later. All times
are GPU seconds, from the moment that the first job could start; turnarounds of open workloads are from each job's
submission.
`

func (r report) table(out io.Writer, o *options, wl string) {
	t := cluster.Table(out, "", "makespan", "÷ whole", "idle", "turnaround", "÷ whole", "later", "late", "worst",
		"failed", "oom", "slow p50", "p95", "GPU")
	t.SetTitle(fmt.Sprintf("%s, objective %s", wl, objective(wl)))
	for i := range o.variants {
		name := o.variants[i].name
		f := r[wl][name]
		if f == nil {
			t.AppendRow(table.Row{name, "not measured"})
			continue
		}
		base, late := r[wl]["whole"], []any{"", "", "", ""}
		ofWhole := ""
		if base != nil {
			ofWhole = ratio(f.MakespanS / base.MakespanS)
		}
		if a := f.againstWhole; a != nil {
			late = []any{ratio(a.TurnaroundRatio), a.Later, a.Late, whole(a.WorstS)}
		}
		row := append(table.Row{name, whole(f.MakespanS), ofWhole, whole(f.IdleS), whole(f.MeanTurnaroundS)}, late...)
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
	for i := range o.variants {
		var ratios []float64
		var all Lateness
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
		if len(ratios) > 1 {
			mean, sd := stat.MeanStdDev(ratios, nil)
			t.AppendRow(table.Row{
				o.variants[i].name, len(ratios), ratio(mean), ratio(sd), ratio(slices.Min(ratios)), ratio(slices.Max(ratios)),
				all.Later, all.Late, whole(all.WorstS), failed,
			})
		}
	}
	if t.Length() > 0 {
		t.Render()
	}
}

func whole(s float64) string { return fmt.Sprintf("%.0f", s) }

func ratio(x float64) string { return fmt.Sprintf("%.3f", x) }
