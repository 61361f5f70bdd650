package agent

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// finish closes an ended job's record.
func (a *Agent) finish(j *prolog.Job) {
	t := a.jobs[runOf(j)]
	// The last reading holds until the job's end: one taken now would be of a GPU that
	// the job has left.
	if !t.resume.IsZero() && j.End.After(t.resume) {
		a.hold(t, t.resume, j.End)
		t.resume = j.End
	}
	r := a.record(t, j)
	if err := a.Keep(r); err != nil {
		a.Log.Error("record not kept; tried again later", "job", j.JobID, "err", err)
		return
	}
	delete(a.jobs, runOf(j))
	if err := a.Dir.Forget(j); err != nil {
		a.Log.Warn("job file", "job", j.JobID, "err", err)
	}
	a.hurry(j, a.Now()) // the jobs that stay get more of the GPU
	a.Metrics.records.Inc()
}

func (a *Agent) record(t *tracked, j *prolog.Job) *gpuprof.Record {
	r := &gpuprof.Record{
		JobID: j.JobID, ArrayJobID: j.ArrayJobID, ArrayTaskID: j.ArrayTaskID, Restart: j.Restart,
		Node: a.Node, UID: j.UID, User: j.User, Comment: j.Comment, Start: j.Start, End: j.End,
		Shared: j.Percent > 0 && j.Percent < 100, Samples: t.Samples, Failed: t.Failed,
		MPSFault: j.MPSFault, NoEpilog: t.noEpilog, Cut: t.Samples == 0, CoreFrom: t.CoreFrom,
		Processes: t.Processes, ProcessMiB: math.Ceil(t.ProcessMiB),
	}
	if j.Node != "" {
		r.Node = j.Node
	}
	if r.End.Before(r.Start) {
		a.Log.Warn("the clock was set back during a job", "job", j.JobID, "start", r.Start, "end", r.End)
		r.End = r.Start
	}
	for _, i := range j.GPUs {
		out := gpuprof.GPU{Index: i}
		if g := a.gpus[i]; g != nil && !g.missing {
			d := &g.dev
			out = gpuprof.GPU{
				Index: i, UUID: d.UUID, Model: d.Model, Arch: d.Arch, MemMiB: d.MemMiB, Cores: d.Cores, PCIeMBps: d.PCIeMBps, MIG: g.mig,
			}
		}
		r.GPUs = append(r.GPUs, out)
	}
	t.Tally.Fill(r)
	r.MissedS = math.Round(r.MissedS*1e3) / 1e3
	if len(t.Dropped) > 0 {
		r.Dropped = t.Dropped
	}
	for run, n := range t.Neighbours {
		if n.From.After(r.End) {
			continue // it came between the job's end and its file's
		}
		if o := a.jobs[run]; o != nil && o.runs() || n.To.After(r.End) {
			n.To = r.End
		}
		r.Neighbours = append(r.Neighbours, *n)
	}
	slices.SortFunc(r.Neighbours, func(x, y gpuprof.Neighbour) int { return x.From.Compare(y.From) })
	if r.Solo() {
		r.StepS = t.Rhythm.PeriodS
	} else {
		r.Mixed = t.Mixed.Names()
	}
	if err := r.Validate(); err != nil && t.Samples > 0 {
		// No figures are better than wrong ones; user and times stay.
		a.Log.Error("what was gathered of a job can't be true", "job", j.JobID, "err", err)
		empty := &tracked{job: j, noEpilog: t.noEpilog, saved: saved{Tally: gpuprof.NewTally(a.Period.Seconds(), nil), Failed: t.Samples + t.Failed, Neighbours: t.Neighbours}}
		return a.record(empty, j)
	}
	return r
}
