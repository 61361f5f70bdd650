package agent

import (
	"errors"
	"fmt"
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
		a.track(j, now).job = j // the hooks may have added to it
	}
	for _, j := range ended {
		// One that the agent wasn't there for is new: user and times are still worth keeping.
		a.track(j, now).job.End = j.End
	}
	if eerr == nil && rerr == nil {
		a.lost()
	}
	a.meet(now)
	for _, j := range ended {
		a.finish(j)
	}
	a.vanished(running, ended, eerr)
	n := a.running()
	a.Metrics.jobs.Set(float64(n))
	a.showUses()
	// While jobs run only a sample shows that sampling works.
	if n == 0 || !wasBusy {
		a.passed(now)
	}
}

// track returns what is known of a run, and takes up a new one with what the previous agent had gathered of it.
func (a *Agent) track(j *prolog.Job, now time.Time) *tracked {
	if t := a.jobs[runOf(j)]; t != nil && t.job.Start.Equal(j.Start) {
		return t
	}
	t := &tracked{job: j}
	before, known := a.before[runOf(j)]
	switch {
	case known && before.Start.Equal(j.Start):
		t.saved, t.resume = before, now
	case now.Sub(j.Start) < max(2*a.Period, time.Second):
		t.resume = j.Start
	default:
		t.resume = now
	}
	if t.Tally == nil {
		span := map[gpuprof.Fig]float64{}
		for _, g := range j.GPUs {
			if g := a.gpus[g]; g != nil {
				for f := range gpuprof.Recorded {
					span[gpuprof.Fig(f)] += g.span(gpuprof.Fig(f))
				}
			}
		}
		t.saved = saved{Start: j.Start, Tally: gpuprof.NewTally(a.Period.Seconds(), span)}
	}
	if t.Neighbours == nil {
		t.Neighbours = map[run]*gpuprof.Neighbour{}
	}
	if t.Dropped == nil {
		t.Dropped = map[string]int{}
	}
	a.jobs[runOf(j)] = t
	a.hurry(j, now)
	return t
}

// hurry has a job's GPUs read at once, all of it, and fast for a while.
func (a *Agent) hurry(j *prolog.Job, now time.Time) {
	for _, i := range j.GPUs {
		if a.gpus[i] == nil {
			a.gpus[i] = &gpu{index: i, missing: true, pace: pace{period: a.Period}}
		}
		a.gpus[i].pace.hurry(now)
		a.gpus[i].traffic = traffic{}
	}
}

// mostNeighbours is how many a record names.
const mostNeighbours = 1024

// meet notes which jobs were on the same GPU, and when.
func (a *Agent) meet(now time.Time) {
	until := func(t *tracked) time.Time {
		if t.runs() {
			return now
		}
		return t.job.End
	}
	for r, t := range a.jobs {
		for other, o := range a.jobs {
			if r.ID == other.ID || !slices.ContainsFunc(t.job.GPUs, o.has) {
				continue
			}
			from, to := t.job.Start, until(t)
			if o.job.Start.After(from) {
				from = o.job.Start
			}
			if end := until(o); end.Before(to) {
				to = end
			}
			// A job that began when the other ended never shared the GPU with it.
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

// vanished closes the jobs that are in neither folder: they ended without an epilog,
// as their file was removed or couldn't be read any more. They ended when they were
// last seen; of one that never was nothing is known but that it began.
func (a *Agent) vanished(running, ended []*prolog.Job, eerr error) {
	for r, t := range a.jobs {
		switch {
		case t.noEpilog:
			a.finish(t.job) // its record wasn't kept
			continue
		case eerr != nil || !t.runs() || listed(running, r) || listed(ended, r):
			continue
		}
		if _, err := os.Stat(filepath.Join(a.Dir.Jobs(), fmt.Sprintf("%d.json", r.ID))); err == nil && !a.requeued(r) {
			continue
		}
		if again, err := prolog.List(a.Dir.Ended()); err != nil || listed(again, r) {
			continue
		}
		if t.Samples == 0 {
			a.Log.Warn("a job's file went away without an epilog, and its GPU was never read: no record", "job", r.ID, "start", t.job.Start)
			delete(a.jobs, r)
			continue
		}
		t.job.End, t.noEpilog = t.resume, true
		a.Log.Warn("a job's file went away without an epilog; it ended when it was last seen, or later", "job", r.ID, "end", t.job.End)
		a.finish(t.job)
	}
}

// lost logs the jobs that the previous agent knew and that are gone, and forgets its
// state, which is older than the last records.
func (a *Agent) lost() {
	for r := range a.before {
		if a.jobs[r] == nil {
			a.Log.Info("a job's file went away while no agent ran; unless its record was closed before that, there is none", "job", r.ID, "restart", r.Restart)
		}
	}
	a.before = nil
}

func listed(list []*prolog.Job, r run) bool {
	return slices.ContainsFunc(list, func(j *prolog.Job) bool { return runOf(j) == r })
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
