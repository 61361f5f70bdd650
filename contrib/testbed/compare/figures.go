package compare

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
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
	cluster.Lateness
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
func runs(ran *cluster.Ran, scale float64) []run {
	var out []run
	for i := range ran.Jobs {
		j := &ran.Jobs[i]
		r := run{Job: i, App: j.App, SubmitS: j.SubmitS, Finished: j.Finished()}
		switch {
		case j.StartS > 0:
			r.StartS = j.StartS - ran.Before.T
			r.EndS = r.StartS + j.GPUS
		case !j.Ended.IsZero():
			r.EndS = j.Ended.Sub(ran.Began).Seconds() * scale
			r.StartS = r.EndS
		default:
			continue
		}
		out = append(out, r)
	}
	return out
}

// sum makes a run's figures.
func sum(ran *cluster.Ran, scale float64) (*figures, error) {
	f := &figures{TimeScale: scale, Runs: runs(ran, scale), OOM: ran.After.OOM - ran.Before.OOM}
	for _, r := range f.Runs {
		f.MakespanS = max(f.MakespanS, r.EndS)
		if !r.Finished {
			continue
		}
		f.JobsCompleted++
		f.MeanTurnaroundS += r.EndS - r.SubmitS
		p, ok := apps.ByName(r.App)
		if !ok {
			return nil, errors.New("no application " + r.App)
		}
		f.slowdowns = append(f.slowdowns, (r.EndS-r.StartS)/p.DurationS)
	}
	f.JobsFailed = len(ran.Jobs) - f.JobsCompleted
	if f.JobsCompleted == 0 || !(f.MakespanS > 0) {
		return nil, errors.New("no job completed")
	}
	f.MeanTurnaroundS /= float64(f.JobsCompleted)
	f.SlowdownP50, f.SlowdownP95 = cluster.Quantile(0.5, f.slowdowns), cluster.Quantile(0.95, f.slowdowns)
	f.GPUUtil = (ran.After.BusyS - ran.Before.BusyS) / f.MakespanS
	f.MemUtil = (ran.After.MemMiBS - ran.Before.MemMiBS) / ran.After.MemTotalMiB / f.MakespanS
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
		if p, known := apps.ByName(r.App); ok && known && r.Finished {
			a.Add(r.EndS, end, p.DurationS, pause*f.TimeScale)
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
