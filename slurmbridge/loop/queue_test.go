package loop_test

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// wholeGPUs submits a job of so many whole GPUs that never asks to share. It ends at its limit.
func wholeGPUs(m *model, gpus int, run time.Duration) *mjob {
	j := m.submit("eve", run, nil, false)
	j.TimeLimit = run + time.Second
	j.Request = job.GPURequest{Kind: job.WholeGPU, Count: gpus, Raw: "gres:gpu"}
	return j
}

// A waiting job of a whole GPU isn't overtaken: no job joins the GPU that it waits for if that makes it wait longer,
// and a job that may share and comes before it starts before it.
func TestAJobOfAWholeGPUIsNotOvertaken(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	b.Planner.Room, b.Planner.RoomAnyway = true, true
	light := app("light", 3600, 0.1, 500)
	a := m.submit("ann", time.Hour, light, true)
	a.TimeLimit = 10 * time.Hour
	tick(t, b, m, 3*time.Second)
	whole := wholeGPUs(m, 1, time.Hour)
	tick(t, b, m, 3*time.Second)
	long := m.submit("ann", 9*time.Hour, app("long", 9*3600, 0.1, 500), true)
	short := m.submit("ann", 10*time.Minute, app("short", 600, 0.1, 500), true)
	tick(t, b, m, 10*time.Second)
	if a.State != job.Running || long.State == job.Running || short.State != job.Running {
		t.Fatalf("the first is %s, a long job %s, a short one that ends before the first %s", a.State, long.State,
			short.State)
	}
	for whole.State == job.Pending && m.now.Sub(a.began) < 2*time.Hour {
		tick(t, b, m, 30*time.Second)
	}
	if whole.State != job.Running || whole.began.Sub(a.began) > time.Hour+time.Minute {
		t.Errorf("the job of a whole GPU is %s since %v, the first since %v", whole.State, whole.began, a.began)
	}
}

// A job that Slurm leaves pending next to idle GPUs waits for something else: the GPUs aren't kept for it.
func TestAJobThatWaitsForSomethingElseKeepsNoGPU(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	stuck := wholeGPUs(m, 1, time.Hour)
	stuck.CPUs = 1000 // more than any node has
	tick(t, b, m, 3*time.Second)
	p := app("alexnet", 60, 0.3, 2000)
	one, two := m.submit("ann", time.Minute, p, true), m.submit("ann", time.Minute, p, true)
	tick(t, b, m, 2*time.Minute)
	if one.State == job.Pending || two.State == job.Pending {
		t.Errorf("they are %s and %s", one.State, two.State)
	}
}

// A job that Slurm leaves pending next to idle GPUs for a reason of its own is not late for it: the bridge held
// nothing.
func TestWaitingForSlurmIsNotLate(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	j := wholeGPUs(m, 1, 10*time.Second)
	cpus := j.CPUs
	j.CPUs = 1000 // more than the node has, until it is edited
	tick(t, b, m, 25*time.Second)
	j.CPUs = cpus
	for !j.ended && m.now.Sub(j.Submit) < 5*time.Minute {
		tick(t, b, m, time.Second)
	}
	tick(t, b, m, 2*time.Second)
	e := m.mem.tracker.Endings[j.Ref]
	if e == nil || e.PlainEnd.IsZero() {
		t.Fatalf("it has ended: %v; %+v", j.ended, e)
	}
	ended := j.began.Add(10 * time.Second)
	if late := ended.Sub(e.PlainEnd); late > time.Second {
		t.Errorf("it began %v after its submission and counts as %v late", j.began.Sub(j.Submit), late)
	}
}

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
		t.Errorf("the second of the queue is %s since %v; plain Slurm starts it after 500 s: %+v", second.State, second.began,
			p.b.Status().Groups)
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
	if !urgent.began.After(first.began) || !second.began.After(urgent.began) ||
		urgent.began.Sub(first.began) > 110*time.Second {
		t.Errorf("started at %v, %v and, the urgent one, %v", first.began, second.began, urgent.began)
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
		t.Errorf("the first of the queue is %s on %s, the second %s on %s", first.State, first.Nodes, second.State,
			second.Nodes)
	}
	tick(t, p.b, p.m, 310*time.Second)
	must.Equal(t, second.State, job.Running, "then the second")
}
