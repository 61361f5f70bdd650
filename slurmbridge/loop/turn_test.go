package loop_test

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// A group that would have a GPU to itself for longer doesn't take the turn of a job in front of it.
func TestAGroupTakesNoTurn(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8), node("n2", 1, 8))
	p.m.submit("ann", 500*time.Second, app("a", 500, .9, 2000), true)
	p.m.submit("ann", 100*time.Second, app("b", 100, .9, 2000), true)
	tick(t, p.b, p.m, 3*time.Second)
	half := app("half", 3600, .5, 2000)
	p.m.submit("ann", time.Hour, app("first", 3600, .9, 2000), true)
	second := p.m.submit("bob", time.Hour, app("second", 3600, .9, 2000), true)
	for range 2 { // most GPUs' worth in one place, and the policy wants that
		p.m.submit("eve", time.Hour, half, true)
	}
	tick(t, p.b, p.m, 20*time.Minute)
	if second.State != job.Running || second.began.Sub(p.m.now.Add(-20*time.Minute)) > 510*time.Second {
		t.Errorf("the second of the queue is %s since %v; plain Slurm starts it after 500 s: %+v", second.State, second.began, p.b.Status().Groups)
	}
}

// A job that comes later with a higher priority has the next GPU that is free.
func TestUrgentJobHasTheNextTurn(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8))
	first, second := p.submit(), p.submit()
	tick(t, p.b, p.m, 20*time.Second)
	urgent := p.m.submit("bob", 100*time.Second, busy, true)
	urgent.Priority += 1000
	tick(t, p.b, p.m, 280*time.Second)
	if !urgent.began.After(first.began) || !second.began.After(urgent.began) || urgent.began.Sub(first.began) > 110*time.Second {
		t.Errorf("started at %v, %v and, the urgent one, %v", first.began, second.began, urgent.began)
	}
}

// No job joins the jobs of a GPU for which another waits that would have to wait longer then.
func TestNoJobJoinsInFrontOfAnother(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	b := bridge(m, newMemory())
	b.Planner.Room, b.Planner.RoomAnyway = true, true
	tick(t, b, m, time.Second)
	var jobs []*mjob
	for range 4 {
		jobs = append(jobs, m.submit("ann", 100*time.Second, busy, true))
	}
	tick(t, b, m, 410*time.Second)
	for i, j := range jobs[1:] {
		if waited := j.began.Sub(jobs[i].began); waited < 85*time.Second || waited > 105*time.Second {
			t.Errorf("job %d starts %v after the one before it", i+2, waited)
		}
	}
}

// Where running jobs take longer than was expected, the first of the queue has its turn elsewhere.
func TestTurnElsewhere(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8), node("n2", 1, 8))
	p.m.submit("ann", 5000*time.Second, busy, true) // 100 s are expected
	p.m.submit("ann", 300*time.Second, app("long", 300, 1, 2000), true)
	tick(t, p.b, p.m, 3*time.Second)
	first := p.m.submit("bob", 300*time.Second, app("first", 300, 1, 2000), true)
	second := p.m.submit("eve", 300*time.Second, app("second", 300, 1, 2000), true)
	tick(t, p.b, p.m, 310*time.Second)
	if first.State != job.Running || second.State != job.Pending {
		t.Errorf("the first of the queue is %s on %s, the second %s on %s", first.State, first.Nodes, second.State, second.Nodes)
	}
	tick(t, p.b, p.m, 310*time.Second)
	if second.State != job.Running {
		t.Errorf("then the second is %s", second.State)
	}
}
