package soak

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

// harms are how many jobs were worse off than on plain Slurm, by kind.
type harms struct {
	Timeout  int     `json:"timeout"`
	OOM      int     `json:"oom"`
	Deadline int     `json:"deadline"`
	Late     int     `json:"late"`
	Contract int     `json:"contract"`
	HeldSMax float64 `json:"held_s_max"`
	Lost     int     `json:"lost"`
}

// report is build/soak.json.
type report struct {
	Jobs   int   `json:"jobs"` // that came, an array's tasks each
	Harm   harms `json:"harm"`
	Groups int   `json:"groups"` // times that jobs shared a GPU
	Kills  int   `json:"kills"`  // things that were done to the machine

	Seed    uint64  `json:"seed"`
	Slurm   string  `json:"slurm"`
	Seconds float64 `json:"seconds"`
	Nodes   int     `json:"nodes"`
	GPUs    int     `json:"gpus"`
	// Failed are jobs that ended with an error that is not their program's.
	Failed int `json:"failed"`
	// Rerun are jobs that ran more than once, and not for their owner.
	Rerun int `json:"rerun"`
	// Judged are the jobs that late and contract are counted among.
	Judged      int     `json:"judged"`
	LateShare   float64 `json:"late_share"`
	LateSMax    float64 `json:"late_s_max"`
	LateBySolo  int     `json:"late_by_more_than_solo"`
	Shared      int     `json:"shared"` // jobs that had company
	SlowdownP50 float64 `json:"slowdown_p50"`
	SlowdownMax float64 `json:"slowdown_max"`
	PauseS      float64 `json:"pause_s"`
	// TurnaroundRatio is the mean turnaround ÷ plain Slurm's, of the judged.
	TurnaroundRatio float64        `json:"turnaround_ratio"`
	BusyP50         float64        `json:"cpu_busy_p50"`
	BusyP95         float64        `json:"cpu_busy_p95"`
	SlowLooks       int            `json:"looks_failed"`
	States          map[string]int `json:"states"`
	KillsByKind     map[string]int `json:"kills_by_kind"`
	Owners          map[string]int `json:"owners"`
	Harmed          []harm         `json:"harmed"`
}

// sum judges every fate.
func sum(fates []fate, r rules) *report {
	rep := &report{Jobs: len(fates), States: map[string]int{}, Harmed: []harm{}, PauseS: r.PauseS}
	var slowdowns []float64
	var turnaround, plainTurnaround float64
	for i := range fates {
		f := &fates[i]
		state := f.State
		if state == "" {
			state = "gone"
		}
		rep.States[state]++
		if len(f.Company) > 0 {
			rep.Shared++
		}
		if f.Restarts > 0 && f.Kept {
			rep.Rerun++
		}
		if f.judged() {
			rep.Judged++
			turnaround += f.End - f.Arrival
			plainTurnaround += f.PlainEnd - f.Arrival
			if len(f.Company) > 0 {
				slowdowns = append(slowdowns, (f.End-f.Start-r.PauseS)/f.SoloS)
			}
		}
		for _, h := range judge(f, r) {
			rep.Harmed = append(rep.Harmed, h)
			switch h.Kind {
			case harmTimeout:
				rep.Harm.Timeout++
			case harmOOM:
				rep.Harm.OOM++
			case harmDeadline:
				rep.Harm.Deadline++
			case harmLate:
				rep.Harm.Late++
				rep.LateSMax = max(rep.LateSMax, h.ByS)
				if h.ByS > f.SoloS {
					rep.LateBySolo++
				}
			case harmContract:
				rep.Harm.Contract++
			case harmLost:
				rep.Harm.Lost++
			case harmFailed:
				rep.Failed++
			}
		}
	}
	rep.SlowdownP50, rep.SlowdownMax = round(cluster.Quantile(0.5, slowdowns)), round(cluster.Quantile(1, slowdowns))
	if rep.Judged > 0 {
		rep.LateShare = round(float64(rep.Harm.Late) / float64(rep.Judged))
		rep.TurnaroundRatio = round(turnaround / plainTurnaround)
	}
	worst := []string{harmTimeout, harmOOM, harmDeadline, harmLost, harmFailed, harmContract, harmLate}
	slices.SortStableFunc(rep.Harmed, func(a, b harm) int { return slices.Index(worst, a.Kind) - slices.Index(worst, b.Kind) })
	return rep
}

func round(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	return math.Round(1000*x) / 1000
}

// broken says in one line what a campaign may not end with, "" = nothing.
func (h *harms) broken() string {
	var out []string
	for _, k := range []struct {
		name string
		n    int
	}{{harmTimeout, h.Timeout}, {harmOOM, h.OOM}, {harmDeadline, h.Deadline}, {harmLost, h.Lost}} {
		if k.n > 0 {
			out = append(out, fmt.Sprintf("%d × %s", k.n, k.name))
		}
	}
	return strings.Join(out, ", ")
}

// show prints it for people.
func (r *report) show(out io.Writer) {
	t := cluster.Table(out, "harm", "jobs")
	for _, row := range []struct {
		name  string
		value any
	}{
		{"ended by their time limit", r.Harm.Timeout},
		{"out of GPU memory", r.Harm.OOM},
		{"missed their deadline", r.Harm.Deadline},
		{"lost", r.Harm.Lost},
		{"failed otherwise", r.Failed},
		{fmt.Sprintf("late (of %d)", r.Judged), r.Harm.Late},
		{"slowed more than their contract", r.Harm.Contract},
		{"held too long, s at most", fmt.Sprintf("%.0f", r.Harm.HeldSMax)},
	} {
		t.AppendRow(table.Row{row.name, row.value})
	}
	fmt.Fprintln(out)
	t.Render()
	fmt.Fprintf(out, "%d jobs in %.0f s on Slurm %s, %d of them in company, %d times put together; %d faults (seed %d).\n",
		r.Jobs, r.Seconds, r.Slurm, r.Shared, r.Groups, r.Kills, r.Seed)
	fmt.Fprintf(out, "Mean turnaround %.2f of plain Slurm's; slowdown in company %.2f (median), %.2f at most; the latest ended %.0f s after its plain end.\n",
		r.TurnaroundRatio, r.SlowdownP50, r.SlowdownMax, r.LateSMax)
	fmt.Fprintf(out, "This machine's CPUs were busy for %.0f %% of the time (median), %.0f %% (95th percentile).\n", 100*r.BusyP50, 100*r.BusyP95)
	for i, h := range r.Harmed {
		if i == 12 {
			fmt.Fprintf(out, "and %d more\n", len(r.Harmed)-i)
			break
		}
		fmt.Fprintf(out, "  %-8s %-6s %s (%s)\n", h.Kind, h.Job, h.Why, h.What)
	}
}
