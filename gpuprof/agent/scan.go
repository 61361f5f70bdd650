package agent

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// scan takes up new jobs and closes jobs that have ended.
func (a *Agent) scan() {
	wasBusy := a.running() > 0
	running, rerr := prolog.List(a.Dir.Jobs())
	ended, eerr := prolog.List(a.Dir.Ended())
	if a.filesErr = errors.Join(rerr, eerr); a.filesErr != nil {
		a.Log.Warn("job files", "err", a.filesErr)
	}
	now := a.Now()
	for _, j := range running {
		t := a.track(j, now)
		t.job = j
		t.gpus = a.places(j) // the hooks may have changed it
	}
	for _, j := range ended {
		// A job that began and ended without an agent is new here: its user and times are worth a record.
		a.track(j, now).job.End = j.End
	}
	if eerr == nil && rerr == nil {
		a.lost()
	}
	a.meet(now)
	for _, j := range slices.Concat(running, ended) {
		if t := a.jobs[runOf(j)]; len(t.FaultBy) == 0 && len(t.gpus) == 1 {
			t.FaultBy = a.gpus[t.gpus[0]].jobsOf(j.MPSFaultBy)
		}
	}
	for _, j := range ended {
		a.finish(j)
	}
	a.vanished(running, ended, eerr)
	n := a.running()
	a.Metrics.jobs.Set(float64(n))
	a.showUses()
	// While jobs run only a sample proves that sampling works.
	if n == 0 || !wasBusy {
		a.passed(now)
	}
}

// track returns the data of a run. A new run starts with what the previous agent had gathered.
func (a *Agent) track(j *prolog.JobFile, now time.Time) *tracked {
	if t := a.jobs[runOf(j)]; t != nil && t.job.Start.Equal(j.Start) {
		return t
	}
	t := &tracked{job: j, gpus: a.places(j)}
	before, known := a.before[runOf(j)]
	switch {
	case known && before.Start.Equal(j.Start):
		t.saved = before
		t.resume = now
	case now.Sub(j.Start) < max(2*a.Period, time.Second):
		t.resume = j.Start
	default:
		t.resume = now
	}
	if t.Tally == nil {
		t.saved = saved{Start: j.Start, Tally: gpuprof.NewTally(a.Period.Seconds())}
	}
	if t.Neighbours == nil {
		t.Neighbours = map[run]*gpuprof.Neighbour{}
	}
	a.jobs[runOf(j)] = t
	a.hurry(t, now)
	return t
}

// places returns the agent's numbers of a job's GPUs, which the job's file names by UUID. A GPU without a UUID (the
// prolog ran before the agent listed it) or unknown to NVML is missing and gets a negative number, unless the node has
// only one card.
func (a *Agent) places(j *prolog.JobFile) []int {
	out := make([]int, len(j.GPUs))
	for k, index := range j.GPUs {
		at := -1 - index
		for i, g := range a.gpus {
			named := k < len(j.UUIDs) && j.UUIDs[k] != ""
			if !g.missing && (named && g.dev.UUID == j.UUIDs[k] || !named && index == 0 && a.cards == 1) {
				at = i
			}
		}
		if a.gpus[at] == nil {
			a.gpus[at] = &gpu{index: at, missing: true, pace: pace{period: a.Period}}
		}
		out[k] = at
	}
	return out
}

// hurry has all of a job's GPUs read at once, and often for a while.
func (a *Agent) hurry(t *tracked, now time.Time) {
	j := t.job
	for _, i := range t.gpus {
		g := a.gpus[i]
		if g == nil {
			continue // a GPU that a job named by mistake, forgotten since
		}
		g.pace.hurry(now)
		g.traffic = traffic{}
		others := func(t *tracked) bool { return t.runs() && t.job != j && t.has(i) }
		if !slices.ContainsFunc(slices.Collect(maps.Values(a.jobs)), others) {
			// Earlier use of processes belongs to earlier jobs.
			g.uses = nil
			g.usesRead = time.Time{}
			if j.Start.After(g.usesAt) {
				g.usesAt = j.Start
			}
		}
	}
}

// mostNeighbours bounds the neighbours in a record.
const mostNeighbours = 1024

// meet notes which jobs shared a GPU, and when.
func (a *Agent) meet(now time.Time) {
	until := func(t *tracked) time.Time {
		if t.runs() {
			return now
		}
		return t.job.End
	}
	for r, t := range a.jobs {
		for other, o := range a.jobs {
			if r.ID == other.ID || !slices.ContainsFunc(t.gpus, o.has) {
				continue
			}
			from := t.job.Start
			to := until(t)
			if o.job.Start.After(from) {
				from = o.job.Start
			}
			if end := until(o); end.Before(to) {
				to = end
			}
			// If one began as the other ended, they never shared the GPU.
			if !to.After(from) && !(t.runs() && o.runs()) {
				continue
			}
			n := t.Neighbours[other]
			if n == nil {
				if len(t.Neighbours) >= mostNeighbours {
					continue
				}
				n = &gpuprof.Neighbour{JobID: other.ID, User: o.job.User, From: from}
				t.Neighbours[other] = n
			}
			n.To = to
		}
	}
}

// vanished closes jobs with a file in neither folder: they ended without an epilog when the file was removed or became
// unreadable. Their end is when they were last seen. A job that was never sampled gets no record.
func (a *Agent) vanished(running, ended []*prolog.JobFile, eerr error) {
	for r, t := range a.jobs {
		switch {
		case t.noEpilog:
			a.finish(t.job) // its record wasn't kept
			continue
		case eerr != nil || !t.runs() || listed(running, r) || listed(ended, r):
			continue
		}
		_, err := os.Stat(filepath.Join(a.Dir.Jobs(), fmt.Sprintf("%d.json", r.ID)))
		if !errors.Is(err, os.ErrNotExist) && !a.requeued(r) {
			continue
		}
		if again, err := prolog.List(a.Dir.Ended()); err != nil || listed(again, r) {
			continue
		}
		if t.Samples == 0 {
			a.Log.Warn("a job's file went away without an epilog, and its GPU was never read: no record", "job", r.ID, "start",
				t.job.Start)
			delete(a.jobs, r)
			continue
		}
		t.job.End = t.resume
		t.noEpilog = true
		a.Log.Warn("a job's file went away without an epilog; it ended when it was last seen, or later", "job", r.ID, "end",
			t.job.End)
		a.finish(t.job)
	}
}

// lost logs jobs of the previous agent that are gone, and drops its state, which is older than the last records.
func (a *Agent) lost() {
	for r := range a.before {
		if a.jobs[r] == nil {
			a.Log.Info("a job's file went away while no agent ran; unless its record was closed before that, there is none",
				"job", r.ID, "restart", r.Restart)
		}
	}
	a.before = nil
}

func listed(list []*prolog.JobFile, r run) bool {
	return slices.ContainsFunc(list, func(j *prolog.JobFile) bool { return runOf(j) == r })
}

// requeued reports whether a later run of the job is known.
func (a *Agent) requeued(r run) bool {
	for other := range a.jobs {
		if other.ID == r.ID && other.Restart > r.Restart {
			return true
		}
	}
	return false
}

// finish closes the record of an ended job.
func (a *Agent) finish(j *prolog.JobFile) {
	t := a.jobs[runOf(j)]
	// The last reading counts until the job's end; a new one would be of a GPU without the job.
	if !t.resume.IsZero() && j.End.After(t.resume) {
		a.hold(t, t.resume, j.End)
		t.resume = j.End
	}
	r := a.record(t, j)
	if err := a.Keep(r); err != nil {
		if !t.told {
			a.Log.Error("a record isn't kept yet: it is tried again until it is", "job", j.JobID, "err", err)
		}
		t.told = true
		return
	}
	delete(a.jobs, runOf(j))
	if err := a.Dir.Forget(j); err != nil {
		a.Log.Warn("job file", "job", j.JobID, "err", err)
	}
	a.hurry(t, a.Now()) // the remaining jobs get more of the GPU
}

func (a *Agent) record(t *tracked, j *prolog.JobFile) *gpuprof.Record {
	r := &gpuprof.Record{
		JobID: j.JobID, ArrayJobID: j.ArrayJobID, ArrayTaskID: j.ArrayTaskID, Restart: j.Restart,
		Node: a.Node, UID: j.UID, User: j.User, Comment: j.Comment, Start: j.Start, End: j.End,
		Shared: j.Sharer(), WithoutMPS: t.WithoutMPS, Samples: t.Samples, Failed: t.Failed,
		MPSFault: j.MPSFault, MPSFaultBy: t.FaultBy, NoEpilog: t.noEpilog, Cut: t.Samples == 0, Processes: t.Processes,
		ProcessMiB: math.Ceil(t.ProcessMiB),
	}
	if j.MPS {
		r.MemLimitMiB = float64(j.MemLimitMiB) * float64(max(1, t.Processes)) // MPS limits each process
	}
	if j.Node != "" {
		r.Node = j.Node
	}
	if r.End.Before(r.Start) {
		a.Log.Warn("the clock was set back during a job", "job", j.JobID, "start", r.Start, "end", r.End)
		r.End = r.Start
	}
	var divided gpuprof.Figures
	for k, index := range j.GPUs {
		out := gpuprof.GPU{Index: index}
		if g := a.gpus[t.gpus[k]]; g != nil && g.dev.UUID != "" {
			d := &g.dev
			out = gpuprof.GPU{
				Index: index, UUID: d.UUID, Model: d.Model, MemMiB: d.MemMiB, PCIeMBps: d.PCIeMBps,
				NoMemLimits: d.MPS.NoMemLimits(), Parent: d.Parent, SMs: d.SMs,
			}
			if d.Parent != "" {
				divided = gpuprof.Of(gpuprof.FigPCIe, gpuprof.FigPower)
			}
		}
		r.GPUs = append(r.GPUs, out)
	}
	if ran := t.HostAt.Sub(j.Start).Seconds(); ran > 0 {
		r.Host = &gpuprof.Host{Cores: t.HostCPU / ran, MemMiB: t.HostMiB}
	}
	t.Tally.Fill(r)
	r.Divided = slices.DeleteFunc(divided.Names(), func(name string) bool { return slices.Contains(r.Unknown, name) })
	r.MissedS = math.Round(r.MissedS*1e3) / 1e3
	for run, n := range t.Neighbours {
		if n.From.After(r.End) {
			continue // it came after the job's end and before the file's
		}
		if o := a.jobs[run]; o != nil && o.runs() || n.To.After(r.End) {
			n.To = r.End
		}
		r.Neighbours = append(r.Neighbours, *n)
	}
	slices.SortFunc(r.Neighbours, func(x, y gpuprof.Neighbour) int { return x.From.Compare(y.From) })
	if !r.Solo() {
		r.Mixed = t.Mixed.Names()
	}
	if err := r.Validate(); err != nil && t.Samples > 0 {
		// No figures are better than wrong ones; user and times are kept.
		a.Log.Error("what was gathered of a job can't be true", "job", j.JobID, "err", err)
		empty := &tracked{job: j, gpus: t.gpus, noEpilog: t.noEpilog, saved: saved{
			Tally: gpuprof.NewTally(a.Period.Seconds()), Failed: t.Samples + t.Failed,
			Neighbours: t.Neighbours, FaultBy: t.FaultBy,
		}}
		return a.record(empty, j)
	}
	return r
}
