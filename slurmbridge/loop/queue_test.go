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

// A job that Slurm leaves pending next to idle GPUs waits for something else: the GPUs aren't kept for it, and the
// bridge held nothing, so it isn't late for that.
func TestAJobThatWaitsForSomethingElse(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	stuck := wholeGPUs(m, 1, 10*time.Second)
	stuck.CPUs = 1000 // more than the node has, until it is edited
	tick(t, b, m, 25*time.Second)
	stuck.CPUs = 1
	untilEnded(t, b, m, stuck)
	tick(t, b, m, 2*time.Second)
	end := m.mem.ending(stuck.Ref, stuck.began).PlainEnd
	if late := stuck.began.Add(10 * time.Second).Sub(end); end.IsZero() || late > time.Second {
		t.Errorf("it began %v after its submission and counts as %v late", stuck.began.Sub(stuck.Submit), late)
	}
	wholeGPUs(m, 1, time.Hour).CPUs = 1000
	one, two := m.pair(time.Minute)
	tick(t, b, m, 2*time.Minute)
	must.Equal(t, one.State == job.Pending || two.State == job.Pending, false, "GPUs are kept for it")
}

// A job whose owner asks for a part of the shares by hand starts wherever there is room. Where
// such jobs are seen, none is left.
func TestNoRoomForHandwrittenShares(t *testing.T) {
	for _, seen := range []bool{false, true} {
		m, b := started(t, node("n1", 1, 8))
		tick(t, b, m, time.Second)
		a := m.submit("ann", 100*time.Second, light(), true)
		if seen {
			by := m.submit("bob", 40*time.Second, nil, false)
			by.Request.Count, by.Priority, by.Eligible = 30, 1, m.now.Add(10*time.Second)
		}
		tick(t, b, m, 3*time.Second)
		must.Equal(t, a.State, job.Running)
		must.Equal(t, a.Request.Count == 100, seen, "seen %v: it has %d shares", seen, a.Request.Count)
	}
}

// A group that would have a GPU to itself for longer doesn't take the turn of a job in front of it.
func TestAGroupTakesNoTurn(t *testing.T) {
	m, b := started(t, node("n1", 1, 8), node("n2", 1, 8))
	m.submit("ann", 500*time.Second, app("a", 500, .9, 2000), true)
	m.submit("ann", 100*time.Second, app("b", 100, .9, 2000), true)
	tick(t, b, m, 3*time.Second)
	m.submit("ann", time.Hour, app("first", 3600, .9, 2000), true)
	second := m.submit("bob", time.Hour, app("second", 3600, .9, 2000), true)
	for range 2 { // most GPUs' worth in one place, and the policy wants that
		m.submit("eve", time.Hour, app("half", 3600, .5, 2000), true)
	}
	since := m.now
	tick(t, b, m, 20*time.Minute)
	if second.State != job.Running || second.began.Sub(since) > 510*time.Second {
		t.Errorf("the second of the queue is %s since %v; plain Slurm starts it after 500 s: %+v", second.State, second.began,
			b.Status().Groups)
	}
}

// A job that comes later with a higher priority has the next GPU that is free.
func TestUrgentJobHasTheNextTurn(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	first, second := m.busy(), m.busy()
	tick(t, b, m, 20*time.Second)
	urgent := m.busy()
	urgent.Priority += 1000
	untilEnded(t, b, m, first, second, urgent)
	if wait := urgent.began.Sub(first.began); wait <= 0 || wait > 110*time.Second || !second.began.After(urgent.began) {
		t.Errorf("started at %v, %v and, the urgent one, %v", first.began, second.began, urgent.began)
	}
}

// Where running jobs take longer than was expected, the first of the queue has its turn elsewhere.
func TestTurnElsewhere(t *testing.T) {
	m, b := started(t, node("n1", 1, 8), node("n2", 1, 8))
	m.busy().run = 5000 * time.Second // 100 s are expected
	m.submit("ann", 300*time.Second, app("long", 300, 1, 2000), true)
	tick(t, b, m, 3*time.Second)
	first := m.submit("bob", 300*time.Second, app("first", 300, 1, 2000), true)
	second := m.submit("eve", 300*time.Second, app("second", 300, 1, 2000), true)
	tick(t, b, m, 310*time.Second)
	must.Equal(t, first.State == job.Running && second.State == job.Pending, true, "the first of the queue is the first")
	tick(t, b, m, 310*time.Second)
	must.Equal(t, second.State, job.Running, "then the second")
}
