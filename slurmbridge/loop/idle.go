package loop

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// idleFresh is how long a node's report of idle jobs is valid: nodes report once a minute.
const idleFresh = 5 * time.Minute

// mostIdleNodes bounds the nodes with stored reports.
const mostIdleNodes = 20_000

// idleReports holds the nodes' last reports of jobs that don't use their GPUs.
type idleReports struct {
	mu    sync.Mutex
	nodes map[string]idleReport
}

type idleReport struct {
	at         time.Time
	jobs       []gpuprof.Idle
	withoutMPS []int64
}

// take stores a node's report in place of its last one.
func (all *idleReports) take(r *gpuprof.IdleReport, now time.Time) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.nodes == nil {
		all.nodes = map[string]idleReport{}
	}
	delete(all.nodes, r.Node)
	if !r.Empty() && len(all.nodes) < mostIdleNodes {
		all.nodes[r.Node] = idleReport{now, r.Jobs, r.WithoutMPS}
	}
}

// read returns two lists from the nodes' reports: the running jobs that have been idle for at least after on all of
// their nodes (0 = none counts as idle), the longest idle first, and the jobs that share a GPU without MPS. A job on a
// node without an agent is never idle.
func (all *idleReports) read(snap *job.Snapshot, now time.Time, after time.Duration) (idle []job.Idle, noMPS []string) {
	byJob := all.byJob(now)
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		t := byJob[j.ID]
		if j.State != job.Running {
			continue
		}
		if t.withoutMPS {
			noMPS = append(noMPS, j.Ref)
		}
		if after == 0 || t.nodes < max(1, j.NumNodes) || now.Sub(t.since) < after {
			continue
		}
		idle = append(idle, job.Idle{
			Ref: j.Ref, Name: j.Name, NoMail: job.ParseTerms(j.Comment).NoMail, User: j.User, Account: j.Account,
			Partition: j.Partition, Node: j.Nodes, GPUs: gpusHeld(j), Since: t.since.Truncate(time.Second),
			Whole: j.Request.Kind != job.Shares,
		})
	}
	slices.SortFunc(idle, func(a, b job.Idle) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Ref, b.Ref)) })
	return idle, noMPS
}

// gpusHeld is how many GPUs a running job holds, shares as parts of one.
func gpusHeld(j *job.Job) float64 {
	switch {
	case j.Request.Kind == job.Shares:
		return float64(j.Request.Count) / job.Units
	case len(j.GPUs) == 0:
		return float64(max(1, j.Request.Count))
	}
	return float64(len(j.GPUs))
}

// idleJob is what the nodes report of a job: how many of them it leaves idle, and since when all of these do.
type idleJob struct {
	nodes      int
	since      time.Time
	withoutMPS bool
}

// byJob returns what the fresh reports say of each job, by its number.
func (all *idleReports) byJob(now time.Time) map[int64]idleJob {
	all.mu.Lock()
	defer all.mu.Unlock()
	out := map[int64]idleJob{}
	for node, report := range all.nodes {
		if now.Sub(report.at) > idleFresh {
			delete(all.nodes, node)
			continue
		}
		for _, j := range report.jobs {
			t := out[j.JobID]
			t.nodes++
			since := report.at.Add(-time.Duration(j.IdleS * float64(time.Second)))
			if since.After(t.since) {
				t.since = since
			}
			out[j.JobID] = t
		}
		for _, id := range report.withoutMPS {
			t := out[id]
			t.withoutMPS = true
			out[id] = t
		}
	}
	return out
}
