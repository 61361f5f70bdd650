package loop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// told has a node tell that jobs have done nothing for so long.
func told(node string, idle time.Duration, jobs ...*mjob) *gpuprof.IdleReport {
	r := &gpuprof.IdleReport{Node: node}
	for _, j := range jobs {
		r.Jobs = append(r.Jobs, gpuprof.Idle{JobID: j.ID, IdleS: idle.Seconds()})
	}
	return r
}

// A job that does nothing is listed after idle_after and its AdminComment says so, until it computes again; nothing else
// is done to it.
func TestIdleJobs(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	b := bridge(m, newMemory())
	b.IdleAfter, b.IdleComment = time.Hour, true
	tick(t, b, m, time.Second)
	j := m.submit("ann", 10*time.Hour, nil, false)
	tick(t, b, m, 30*time.Second)
	b.TakeIdle(told("n1", 50*time.Minute, j))
	tick(t, b, m, 30*time.Second)
	if got := b.Status().Idle; len(got) > 0 || j.said != "" {
		t.Errorf("not yet: %v %q", got, j.said)
	}
	b.TakeIdle(told("n1", time.Hour, j))
	tick(t, b, m, 30*time.Second)
	got := b.Status().Idle
	if len(got) != 1 || got[0].Ref != j.Ref || got[0].User != "ann" || got[0].GPUs != 1 || !strings.Contains(j.said, "its GPU has done nothing since ") {
		t.Fatalf("%+v %q", got, j.said)
	}
	words := m.words
	for range 3 {
		b.TakeIdle(told("n1", m.now.Sub(got[0].Since)+time.Second, j))
		tick(t, b, m, time.Minute)
	}
	if m.words != words || len(b.Status().Idle) != 1 {
		t.Errorf("%d comments more while it stays idle: %q", m.words-words, j.said)
	}
	b.TakeIdle(told("n1", 0))
	tick(t, b, m, 30*time.Second)
	if got := b.Status().Idle; len(got) > 0 || j.said == "" || strings.Contains(j.said, "nothing since") {
		t.Errorf("%v %q", got, j.said)
	}
	if j.State != job.Running {
		t.Errorf("it is %s", j.State)
	}
}

// A node that tells nothing any more, and jobs that aren't there, are no idle ones.
func TestIdleReportsGrowOld(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	b := bridge(m, newMemory())
	b.IdleAfter = time.Hour
	tick(t, b, m, time.Second)
	j := m.submit("ann", 10*time.Hour, nil, false)
	tick(t, b, m, 30*time.Second)
	gone := &mjob{}
	gone.ID = 4711
	b.TakeIdle(told("n1", 2*time.Hour, j, gone))
	tick(t, b, m, time.Second)
	if got := b.Status().Idle; len(got) != 1 {
		t.Errorf("%v", got)
	}
	tick(t, b, m, 6*time.Minute)
	tick(t, b, m, time.Second)
	if got := b.Status().Idle; len(got) != 0 || j.said != "" {
		t.Errorf("%v %q", got, j.said)
	}
}
