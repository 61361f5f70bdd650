package loop_test

import (
	"fmt"
	"slices"
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
	short, long := m.pair(time.Hour)
	short.run = 20 * time.Second
	taken, odd := m.submit("ann", time.Hour, light(), true), m.submit("bob", time.Hour, light(), true)
	taken.said, odd.Comment = "the site's own", "share:max-slowdown=fast"
	tick(t, b, m, 5*time.Second)
	for _, o := range []*mjob{short, long} {
		if want := "] on n1 gpu 0 together: " + short.Ref; !strings.HasPrefix(o.said, "slurmbridge: [mps:2") ||
			!strings.Contains(o.said, want) || !strings.Contains(o.said, long.Ref) {
			t.Errorf("job %s, %s: %q", o.Ref, o.State, o.said)
		}
	}
	must.Equal(t, taken.said, "the site's own", "somebody else's comment")
	must.Contain(t, odd.said, "ignored share:max-slowdown")
	must.Contain(t, odd.said, "1.15")
	said := m.words
	tick(t, b, m, 5*time.Second)
	must.Equal(t, m.words, said, "comments, while nothing has happened")
	// One that starts anew asks first, and says nothing again.
	b = bridge(m, m.mem)
	tick(t, b, m, 3*time.Second)
	must.Equal(t, m.words, said, "comments, while nothing has happened")
	// What others write over it stays, and what the bridge said doesn't come back.
	long.said = "cancelled for maintenance"
	untilEnded(t, b, m, short)
	tick(t, b, m, 5*time.Second)
	must.Equal(t, long.said, "cancelled for maintenance", "a comment that others wrote later")
	said = m.words
	b.Mode = job.Shadow
	tick(t, b, m, 30*time.Second)
	must.Equal(t, m.words, said, "comments, while nothing has happened")
}

// What an admin or an owner changes between a poll and the bridge's change stays as they made it: an AdminComment, and
// whatever else the bridge would set.
func TestEditsBetweenPollAndChange(t *testing.T) {
	later := time.Hour
	for name, c := range map[string]struct {
		edit func(m *model, j *mjob)
		kept func(m *model, j *mjob) bool
	}{
		"an AdminComment": {
			func(_ *model, j *mjob) { j.said = "for the demo" },
			func(_ *model, j *mjob) bool { return j.said == "for the demo" && j.State == job.Running },
		},
		"a dependency": {
			func(m *model, j *mjob) { m.depend(j, j.Dependency.Raw+",afterok:101") },
			func(_ *model, j *mjob) bool { return j.State == job.Pending && j.Dependency.Has("afterok", "101") },
		},
		"a begin time": {
			func(m *model, j *mjob) { j.Eligible = m.now.Add(later) },
			func(m *model, j *mjob) bool { return j.State == job.Pending && j.Eligible.Sub(m.now) > later/2 },
		},
		"shares": {
			func(_ *model, j *mjob) { j.Request.Count, j.Request.Raw = 70, "gres:mps:70" },
			func(_ *model, j *mjob) bool { return j.Request.Count == 70 },
		},
	} {
		m := newModel(node("n1", 1, 8), node("n2", 1, 8))
		m.submit("bob", 2*time.Hour, app("resnet", 7200, 1, 12000), false)
		b := bridge(m, m.mem)
		tick(t, b, m, time.Second)
		one, two := m.pair(time.Hour)
		m.polled = func() {
			c.edit(m, two)
			m.polled = nil
		}
		tick(t, b, m, 5*time.Second)
		must.Equal(t, one.State, job.Running, "%s: the other job", name)
		if !c.kept(m, two) {
			t.Errorf("%s: job %s, %s, depends on %q, may start at %v, requests %s, AdminComment %q", name, two.Ref, two.State,
				two.Dependency.Raw, two.Eligible, two.Request.Raw, two.said)
		}
	}
}

// An owner who changes a job between each poll and the bridge's change keeps the other job of its group waiting twice,
// and no longer.
func TestAJobThatIsEditedAllTheTime(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	one, two := m.pair(time.Hour)
	two.TimeLimit = 100 * time.Hour
	m.polled = func() { two.TimeLimit -= time.Minute }
	tick(t, b, m, 2*time.Second)
	must.Equal(t, one.State, job.Pending, "the other job at first")
	tick(t, b, m, 2*time.Second)
	must.Equal(t, one.State, job.Running, "the other job")
}

// Nor is an admin's AdminComment replaced by what the bridge says of a job that has started.
func TestCommentsOfRunningJobs(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	one, two := m.pair(time.Hour)
	m.polled = func() {
		if one.State == job.Running {
			one.said, m.polled = "seen by an admin", nil
		}
	}
	tick(t, b, m, 5*time.Second)
	bothRun(t, one, two)
	must.Equal(t, one.said, "seen by an admin")
	must.Equal(t, strings.Contains(two.said, "together"), true, "the other says %q", two.said)
}

// What was announced of a job and became untrue doesn't stay: it says where it runs instead.
func TestUntrueCommentsGo(t *testing.T) {
	m, b := started(t, node("n1", 1, 8), node("n2", 1, 8))
	j := m.submit("ann", time.Hour, nil, true)
	tick(t, b, m, 3*time.Second)
	must.Equal(t, j.State, job.Running)
	must.Equal(t, release.Announced(j.said), "", "what is announced of it")
	j.said = "slurmbridge: starts on n9 gpu 0 when 77 has ended"
	b = bridge(m, newMemory()) // one that reads it anew
	j.Comment = "share:max-slowdown=fast"
	tick(t, b, m, 3*time.Second)
	must.Equal(t, strings.HasPrefix(j.said, "slurmbridge: ignored share"), true, "it says %q", j.said)
	j.Comment = ""
	tick(t, b, m, 3*time.Second)
	must.Equal(t, j.said, "slurmbridge: on "+j.Nodes+", not shared")
}

// However many jobs a round releases, each gets its stamp: without it a job can't be restored where the
// journal is lost.
func TestEachMemberIsStamped(t *testing.T) {
	var nodes []job.Node
	for i := range 200 {
		nodes = append(nodes, node(fmt.Sprint("n", i), 1, 8))
	}
	m, b := started(t, nodes...)
	for range 300 {
		m.pair(time.Hour)
	}
	must.Get(b.Tick(t.Context()))(t)
	members := slices.DeleteFunc(m.jobs, func(j *mjob) bool { return j.Request.Count == job.Units })
	for _, j := range members {
		must.Equal(t, strings.HasPrefix(j.said, job.CommentPrefix+"[mps:"), true, "job %s says %q", j.Ref, j.said)
	}
	must.Equal(t, len(members) >= 550, true, "%d members", len(members))
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
	for _, reported := range [][]int64{{j.ID, j.ID + 1}, nil} {
		r := told("n1", 0)
		r.WithoutMPS = reported
		b.TakeIdle(r)
		tick(t, b, m, 30*time.Second)
		must.Equal(t, b.Status().WithoutMPS, []string{j.Ref}[:min(1, len(reported))], "reported %v", reported)
		must.Equal(t, j.State, job.Running)
	}
}
