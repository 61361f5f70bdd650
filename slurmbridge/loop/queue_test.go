package loop_test

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// wholeGPUs submits a job of so many whole GPUs that never asks to share. It ends at its limit.
func wholeGPUs(m *model, gpus int, run time.Duration) *mjob {
	j := m.submit("eve", run, nil, false)
	j.TimeLimit = run + time.Second
	j.Request = job.GPURequest{Kind: job.WholeGPU, Count: gpus, Raw: "gres:gpu"}
	return j
}

// A waiting job of a whole GPU isn't overtaken: no job joins the GPU that it waits for if that makes it wait longer, and
// a job that may share and comes before it starts before it.
func TestAJobOfAWholeGPUIsNotOvertaken(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	b := bridge(m, newMemory())
	b.Planner.Room, b.Planner.RoomAnyway = true, true
	tick(t, b, m, time.Second)
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
		t.Fatalf("the first is %s, a long job %s, a short one that ends before the first %s", a.State, long.State, short.State)
	}
	for whole.State == job.Pending && m.now.Sub(a.began) < 2*time.Hour {
		tick(t, b, m, 30*time.Second)
	}
	if whole.State != job.Running || whole.began.Sub(a.began) > time.Hour+time.Minute {
		t.Errorf("the job of a whole GPU is %s since %v, the first since %v", whole.State, whole.began, a.began)
	}
}

// When a GPU becomes free Slurm starts the first job of its own queue at once. A job whose turn it is and that has a job
// of a whole GPU behind it is in that queue by then.
func TestAJobKeepsItsTurnBeforeAJobOfAWholeGPU(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	busy := wholeGPUs(m, 1, 10*time.Minute)
	tick(t, b, m, 3*time.Second)
	heavy := app("heavy", 600, 1, 9000)
	first, second := m.submit("ann", 10*time.Minute, heavy, true), m.submit("bob", 10*time.Minute, heavy, true)
	whole := wholeGPUs(m, 1, 10*time.Minute)
	var order []*mjob
	m.started = func(j *mjob) { order = append(order, j) }
	tick(t, b, m, 45*time.Minute)
	if len(order) != 3 || order[0] != first || order[1] != second || order[2] != whole {
		t.Errorf("%s; they started in the order %v", busy.State, order)
	}
	if why := b.Status().Unmanaged; len(why) > 0 {
		t.Errorf("left to Slurm: %v", why)
	}
}

// A job that Slurm leaves pending next to idle GPUs waits for something else: the GPUs aren't kept for it.
func TestAJobThatWaitsForSomethingElseKeepsNoGPU(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
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
