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

// TakeIdle stores a node's report of jobs that don't use their GPUs or share one without MPS. It may be called at any
// time.
func (b *Bridge) TakeIdle(r *gpuprof.IdleReport) {
	b.init()
	b.idle.mu.Lock()
	defer b.idle.mu.Unlock()
	if b.idle.nodes == nil {
		b.idle.nodes = map[string]idleReport{}
	}
	delete(b.idle.nodes, r.Node)
	if !r.Empty() && len(b.idle.nodes) < mostIdleNodes {
		b.idle.nodes[r.Node] = idleReport{b.Now(), r.Jobs, r.WithoutMPS}
	}
}

// read returns two lists from the nodes' reports: the running jobs that have been idle for at least after on all of
// their nodes (0 = none counts as idle), the longest idle first, and the jobs that share a GPU without MPS. A job on a
// node without an agent is never idle.
func (r *idleReports) read(snap *job.Snapshot, now time.Time, after time.Duration) (idle []job.Idle, noMPS []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	type told struct {
		nodes      int
		since      time.Time // the latest of its nodes'
		withoutMPS bool
	}
	byJob := map[int64]told{}
	for node, report := range r.nodes {
		if now.Sub(report.at) > idleFresh {
			delete(r.nodes, node)
			continue
		}
		for _, j := range report.jobs {
			t := byJob[j.JobID]
			t.nodes++
			if since := report.at.Add(-time.Duration(j.IdleS * float64(time.Second))); since.After(t.since) {
				t.since = since
			}
			byJob[j.JobID] = t
		}
		for _, id := range report.withoutMPS {
			t := byJob[id]
			t.withoutMPS = true
			byJob[id] = t
		}
	}
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
		gpus := float64(max(1, len(j.GPUs)))
		switch {
		case j.Request.Kind == job.Shares:
			gpus = float64(j.Request.Count) / job.Units
		case len(j.GPUs) == 0:
			gpus = float64(max(1, j.Request.Count))
		}
		idle = append(idle, job.Idle{
			Ref: j.Ref, Name: j.Name, NoMail: job.ParseTerms(j.Comment).NoMail, User: j.User, Account: j.Account,
			Partition: j.Partition, Node: j.Nodes, GPUs: gpus, Since: t.since.Truncate(time.Second),
			Whole: j.Request.Kind != job.Shares,
		})
	}
	slices.SortFunc(idle, func(a, b job.Idle) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Ref, b.Ref)) })
	return idle, noMPS
}
