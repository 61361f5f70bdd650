package loop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

// AdminComments name a job's co-runners, and the terms of its comment that were ignored.
// Comments that others wrote are never replaced, and none is written twice.
func TestAdminComments(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	p := app("a", 600, 0.3, 2000)
	short, long := m.submit("ann", 20*time.Second, p, true), m.submit("ann", time.Hour, p, true)
	taken := m.submit("ann", time.Hour, p, true)
	taken.said = "the site's own"
	odd := m.submit("bob", time.Hour, p, true)
	odd.Comment = "share:max-slowdown=fast"
	for _, o := range []*mjob{short, long, taken, odd} {
		o.CPUs = 1
	}
	tick(t, b, m, 5*time.Second)
	for _, o := range []*mjob{short, long} {
		if want := "] on n1 gpu 0 together: " + short.Ref; !strings.HasPrefix(o.said, "slurmbridge: [mps:3") ||
			!strings.Contains(o.said, want) || !strings.Contains(o.said, long.Ref) {
			t.Errorf("job %s, %s: %q", o.Ref, o.State, o.said)
		}
	}
	must.Equal(t, taken.said, "the site's own", "somebody else's comment")
	if !strings.Contains(odd.said, "ignored share:max-slowdown") || !strings.Contains(odd.said, "1.15") {
		t.Errorf("a contract without sense: %q", odd.said)
	}
	said := m.words
	tick(t, b, m, 5*time.Second)
	must.Equal(t, m.words, said, "comments, while nothing has happened")
	// One that starts anew asks first, and says nothing again.
	b = bridge(m, m.mem)
	tick(t, b, m, 3*time.Second)
	must.Equal(t, m.words, said, "comments, while nothing has happened")
	// What others write over it stays, and what the bridge said doesn't come back.
	long.said = "cancelled for maintenance"
	for !short.ended {
		tick(t, b, m, 5*time.Second)
	}
	tick(t, b, m, 5*time.Second)
	must.Equal(t, long.said, "cancelled for maintenance", "a comment that others wrote later")
	said = m.words
	b.Mode = job.Shadow
	tick(t, b, m, 30*time.Second)
	must.Equal(t, m.words, said, "comments, while nothing has happened")
}

// What was announced of a job and became untrue doesn't stay: it says where it runs instead.
func TestUntrueCommentsGo(t *testing.T) {
	m, b := started(t, node("n1", 1, 8), node("n2", 1, 8))
	j := m.submit("ann", time.Hour, nil, true)
	tick(t, b, m, 3*time.Second)
	if j.State != job.Running || release.Announced(j.said) != "" {
		t.Fatalf("job %s is %s and says %q: nothing is to be announced of it", j.Ref, j.State, j.said)
	}
	j.said = "slurmbridge: starts on n9 gpu 0 when 77 has ended"
	b = bridge(m, newMemory()) // one that reads it anew
	j.Comment = "share:max-slowdown=fast"
	tick(t, b, m, 3*time.Second)
	if !strings.Contains(j.said, "ignored share") || strings.Contains(j.said, "not shared") {
		t.Errorf("of a term without sense it says %q", j.said)
	}
	j.Comment = ""
	tick(t, b, m, 3*time.Second)
	if want := "slurmbridge: on " + j.Nodes + ", not shared"; j.said != want {
		t.Errorf("it says %q, want %q", j.said, want)
	}
	said := m.words
	tick(t, b, m, 10*time.Second)
	must.Equal(t, m.words, said, "comments, while nothing has happened")
}

// However many jobs a round releases, each gets its stamp: without it a job can't be restored where the
// journal is lost.
func TestEachMemberIsStamped(t *testing.T) {
	var nodes []job.Node
	for i := range 200 {
		nodes = append(nodes, node(fmt.Sprint("n", i), 1, 8))
	}
	m, b := started(t, nodes...)
	for range 600 {
		m.submit("ann", time.Hour, app("a", 3600, 0.3, 2000), true)
	}
	must.Get(b.Tick(t.Context()))(t)
	members := 0
	for _, j := range m.jobs {
		if j.Request.Count == job.Units {
			continue
		}
		if members++; !strings.HasPrefix(j.said, job.CommentPrefix+"[mps:") {
			t.Errorf("job %s has %s and says %q", j.Ref, j.Request.Raw, j.said)
		}
	}
	if members < 550 {
		t.Errorf("%d members", members)
	}
}

// told has a node tell that jobs have done nothing for so long.
func told(node string, idle time.Duration, jobs ...*mjob) *gpuprof.IdleReport {
	r := &gpuprof.IdleReport{Node: node}
	for _, j := range jobs {
		r.Jobs = append(r.Jobs, gpuprof.Idle{JobID: j.ID, IdleS: idle.Seconds()})
	}
	return r
}

// A job that does nothing is listed after idle_after, while its node tells it; nothing is done to the job. Jobs that
// aren't there are no idle ones.
func TestIdleJobs(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	b.IdleAfter = time.Hour
	j, gone := m.submit("ann", 10*time.Hour, nil, false), &mjob{}
	j.Name, j.Comment, gone.ID = "train", "share:no-mail", 4711
	tick(t, b, m, 30*time.Second)
	said := j.said
	for _, c := range []struct {
		told, later time.Duration
		listed      int
	}{
		{50 * time.Minute, time.Second, 0},
		{time.Hour, time.Second, 1},
		{2 * time.Hour, 4 * time.Minute, 1},
		{2 * time.Hour, 6 * time.Minute, 0}, // the node is silent since
		{0, time.Second, 0},
	} {
		b.TakeIdle(told("n1", c.told, j, gone))
		tick(t, b, m, c.later)
		tick(t, b, m, time.Second)
		got := b.Status().Idle
		for i := range got {
			must.Equal(t, got[i], job.Idle{
				Ref: j.Ref, Name: "train", User: "ann", Partition: "gpu", NoMail: true, Node: "n1", GPUs: 1, Since: got[i].Since,
			})
		}
		must.Equal(t, len(got), c.listed, "idle jobs, %v after the node told of %v", c.later, c.told)
	}
	must.Equal(t, j.said, said, "its AdminComment")
	must.Equal(t, j.State, job.Running, "its state")
}

// A job that shares its GPU without MPS is named and counted while its node reports it; nothing is done to it.
func TestSharersWithoutMPS(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	j := m.submit("ann", 10*time.Hour, nil, false)
	tick(t, b, m, 30*time.Second)
	for _, reported := range []bool{true, false} {
		r := told("n1", 0)
		if reported {
			r.WithoutMPS = []int64{j.ID, j.ID + 1}
		}
		b.TakeIdle(r)
		tick(t, b, m, 30*time.Second)
		if got := b.Status().WithoutMPS; len(got) > 0 != reported || reported && (len(got) != 1 || got[0] != j.Ref) ||
			j.State != job.Running {
			t.Errorf("reported %v: %v, and the job is %s", reported, got, j.State)
		}
	}
}
