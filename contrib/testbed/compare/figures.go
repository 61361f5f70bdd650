package compare

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// figures are what came of one workload under one variant. Times are GPU seconds since the first job could start.
type figures struct {
	MakespanS float64 `json:"makespan_s"` // to the last job's end, failed or not
	// MeanTurnaroundS is from submission to end, of the jobs that completed; from when the
	// first job could start where all were submitted before.
	MeanTurnaroundS float64 `json:"mean_turnaround_s"`
	OOM             int     `json:"oom"` // as the GPU counted
	JobsFailed      int     `json:"jobs_failed"`
	SlowdownP50     float64 `json:"slowdown_p50"` // of the jobs that completed
	SlowdownP95     float64 `json:"slowdown_p95"`

	JobsCompleted int     `json:"jobs_completed"`
	GPUUtil       float64 `json:"gpu_util"` // mean over the makespan, 0..1
	MemUtil       float64 `json:"mem_util"`
	// *againstWhole is nil for plain Slurm with whole GPUs, and where that wasn't measured.
	*againstWhole
	// Objective is what the bridge's decisions were to keep small; "" = no bridge.
	Objective policy.Objective `json:"objective,omitempty"`

	// IdleS is how long jobs were there and no application was on the GPU: Slurm's own pauses.
	IdleS float64 `json:"idle_s"`
	// BusyMakespanS is the makespan without them.
	BusyMakespanS float64 `json:"busy_makespan_s"`

	TimeScale float64 `json:"time_scale"`
	Seed      uint64  `json:"seed"`
	Load      float64 `json:"load,omitempty"` // of an open workload

	// Runs are the jobs' times on the GPU.
	Runs []run `json:"runs"`

	slowdowns []float64
}

// againstWhole compares a run with the same workload's under plain Slurm with whole GPUs.
type againstWhole struct {
	TurnaroundRatio float64 `json:"turnaround_ratio"` // of the means
	Lateness
}

// Lateness is how a run compares with plain Slurm's of the same jobs, each with a whole GPU to itself, by the jobs that
// did all their work in both.
type Lateness struct {
	// Later counts the jobs that ended later than on plain Slurm by more than a pause that says nothing.
	Later int `json:"jobs_later"`
	// Late counts the jobs among them that ended later by more than the default grace, too, a tenth of their solo time.
	Late int `json:"jobs_late"`
	// WorstS is by how much the latest ended later, s; 0 where none did.
	WorstS float64 `json:"late_worst_s"`
}

// pause is the difference between two runs that says nothing: about what Slurm's own pause
// before a job takes, s by the clock on the wall.
const pause = 1.0

// run is a job's time on the GPU, GPU seconds since the first job could start, or where jobs
// come over time since the beginning.
type run struct {
	Job      int     `json:"job"` // index in the workload
	App      string  `json:"app"`
	SubmitS  float64 `json:"submit_s"`
	StartS   float64 `json:"start_s"`
	EndS     float64 `json:"end_s"`
	Finished bool    `json:"finished"`
}

// runs reads the jobs' times off the GPU's clock. A job that never came to compute
// ends where its script did; one that did not even get that far is left out.
func runs(r *ran, scale float64) []run {
	var out []run
	for i := range r.jobs {
		j := &r.jobs[i]
		x := run{Job: i, App: j.app, SubmitS: j.submitS, Finished: j.finished()}
		switch {
		case j.StartS > 0:
			x.StartS = j.StartS - r.before.T
			x.EndS = x.StartS + j.GPUS
		case !j.ended.IsZero():
			x.EndS = j.ended.Sub(r.began).Seconds() * scale
			x.StartS = x.EndS
		default:
			continue
		}
		out = append(out, x)
	}
	return out
}

// sum makes a run's figures.
func sum(r *ran, scale float64) (*figures, error) {
	f := &figures{TimeScale: scale, Runs: runs(r, scale), OOM: r.after.OOM - r.before.OOM}
	for _, x := range f.Runs {
		f.MakespanS = max(f.MakespanS, x.EndS)
		if !x.Finished {
			continue
		}
		f.JobsCompleted++
		f.MeanTurnaroundS += x.EndS - x.SubmitS
		p, ok := apps.ByName(x.App)
		if !ok {
			return nil, errors.New("no application " + x.App)
		}
		f.slowdowns = append(f.slowdowns, (x.EndS-x.StartS)/p.DurationS)
	}
	f.JobsFailed = len(r.jobs) - f.JobsCompleted
	if f.JobsCompleted == 0 || !(f.MakespanS > 0) {
		return nil, errors.New("no job completed")
	}
	f.MeanTurnaroundS /= float64(f.JobsCompleted)
	f.SlowdownP50, f.SlowdownP95 = cluster.Quantile(0.5, f.slowdowns), cluster.Quantile(0.95, f.slowdowns)
	f.GPUUtil = (r.after.BusyS - r.before.BusyS) / f.MakespanS
	f.MemUtil = (r.after.MemMiBS - r.before.MemMiBS) / r.after.MemTotalMiB / f.MakespanS
	there := slices.Clone(f.Runs)
	for i := range there {
		there[i].StartS = there[i].SubmitS
	}
	f.IdleS = occupied(there) - occupied(f.Runs)
	f.BusyMakespanS = f.MakespanS - f.IdleS
	return f, nil
}

// against compares the run with plain's, job by job.
func (f *figures) against(plain *figures) *againstWhole {
	a := &againstWhole{TurnaroundRatio: f.MeanTurnaroundS / plain.MeanTurnaroundS}
	ends := map[int]float64{}
	for _, r := range plain.Runs {
		if r.Finished {
			ends[r.Job] = r.EndS
		}
	}
	for _, r := range f.Runs {
		end, ok := ends[r.Job]
		p, known := apps.ByName(r.App)
		if !ok || !known || !r.Finished {
			continue
		}
		by := r.EndS - end
		a.WorstS = max(a.WorstS, by)
		if by > pause*f.TimeScale {
			a.Later++
			if by > rlcore.DefaultGrace*p.DurationS {
				a.Late++
			}
		}
	}
	return a
}

// occupied is how long at least one of the runs went on, s.
func occupied(runs []run) float64 {
	byStart := slices.Clone(runs)
	slices.SortFunc(byStart, func(a, b run) int { return cmp.Compare(a.StartS, b.StartS) })
	total, until := 0.0, math.Inf(-1)
	for _, r := range byStart {
		if r.EndS > until {
			total += r.EndS - max(r.StartS, until)
			until = r.EndS
		}
	}
	return total
}
