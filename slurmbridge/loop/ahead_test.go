package loop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
)

// Nobody follows on a GPU that is expected to be busy for long: if its jobs end sooner, the first of the queue has
// its turn there.
func TestNobodyFollowsLongBefore(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8), node("n2", 1, 8))
	p.b.Planner.AheadS = plan.DefaultAheadS
	p.m.submit("ann", time.Hour, app("hour", 3600, 1, 2000), true)
	fails := p.m.submit("ann", 3*time.Minute, app("two hours", 7200, 1, 2000), true)
	tick(t, p.b, p.m, 3*time.Second)
	var waiting []*mjob
	for _, user := range []string{"ann", "bob"} {
		waiting = append(waiting, p.m.submit(user, 5000*time.Second, app("later", 5000, 1, 2000), true))
	}
	first, second := waiting[0], waiting[1]
	tick(t, p.b, p.m, 200*time.Second)
	if !fails.ended || first.State != job.Running || second.State != job.Pending {
		t.Errorf("the first of the queue is %s, the second %s", first.State, second.State)
	}
	tick(t, p.b, p.m, 3000*time.Second)
	if !strings.HasPrefix(second.Dependency.Raw, "afterany:") {
		t.Errorf("the second waits for %q", second.Dependency.Raw)
	}
}

// The first of the queue follows where a GPU is free first, wherever that stands in the list of nodes.
func TestFirstFollowsWhereItIsFreeFirst(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8), node("n2", 1, 8), node("n3", 1, 8))
	ends := map[string]float64{}
	for i, takes := range []float64{900, 100, 500} {
		j := p.m.submit("ann", time.Duration(takes)*time.Second, app(fmt.Sprint("app", i), takes, .9, 2000), true)
		ends[j.Ref] = takes
	}
	tick(t, p.b, p.m, 3*time.Second)
	var waiting []*mjob
	for _, user := range []string{"ann", "bob", "eve"} { // the card serves one at a time
		waiting = append(waiting, p.m.submit(user, time.Hour, app("later", 3600, .9, 2000), true))
	}
	tick(t, p.b, p.m, 3*time.Second)
	after := map[string]float64{}
	for _, g := range p.b.Status().Groups {
		if g.Kind == job.Next && len(g.After) == 1 {
			after[g.Members[0].Ref] = ends[g.After[0]]
		}
	}
	for i, want := range []float64{100, 500, 900} {
		if got := after[waiting[i].Ref]; got != want {
			t.Errorf("job %d of the queue follows one of %v s, want %v", i+1, got, want)
		}
	}
}

// Groups that follow are made some in each round, so that a round is no longer than that; in the end all
// busy GPUs have one.
func TestFollowersOfManyGPUs(t *testing.T) {
	const gpus, aRound = 230, 100
	var nodes []job.Node
	for i := range gpus {
		nodes = append(nodes, node(fmt.Sprint("n", i), 1, 8))
	}
	p := newPromise(t, nodes...)
	for range 2 * gpus {
		p.m.submit("ann", time.Hour, app("busy", 3600, .9, 2000), true)
	}
	for _, want := range []int{aRound, 2 * aRound, gpus, gpus} {
		tick(t, p.b, p.m, time.Second)
		running, follow := 0, 0
		for _, j := range p.m.jobs {
			if j.State == job.Running {
				running++
			}
		}
		for _, g := range p.b.Status().Groups {
			if g.Kind == job.Next {
				follow++
			}
		}
		if running != gpus || follow != want {
			t.Errorf("%d run and %d follow, want %d and %d", running, follow, gpus, want)
		}
	}
}

// A GPU that another group follows on isn't free when its jobs have ended: nobody takes the turn of one who
// would have to wait there.
func TestNobodyCountsOnAGPUThatIsPromised(t *testing.T) {
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

// A job that comes later, and goes before one that follows on a busy GPU already, has its turn.
func TestUrgentJobGoesBeforeThoseThatFollow(t *testing.T) {
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

// Nobody joins the jobs of a GPU on which others follow who would have to wait longer then than they may.
func TestNobodyJoinsInFrontOfThoseThatFollow(t *testing.T) {
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
		if waited := j.began.Sub(jobs[i].began); waited < 95*time.Second || waited > 105*time.Second {
			t.Errorf("job %d starts %v after the one before it", i+2, waited)
		}
	}
}

// A job that follows where those that run take longer than was expected has its turn elsewhere, before those that
// come after it.
func TestFollowsWhereItTakesLonger(t *testing.T) {
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

// Without a gate nothing is decided anew, so those that follow are left as they are.
func TestThoseThatFollowAreLeftWithoutAGate(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8), node("n2", 1, 8))
	p.m.submit("ann", 5000*time.Second, busy, true) // 100 s are expected
	p.m.submit("ann", 300*time.Second, app("long", 300, 1, 2000), true)
	tick(t, p.b, p.m, 3*time.Second)
	first := p.m.submit("bob", 300*time.Second, app("first", 300, 1, 2000), true)
	second := p.m.submit("eve", 300*time.Second, app("second", 300, 1, 2000), true)
	tick(t, p.b, p.m, 50*time.Second)
	p.m.gates, p.m.refuseGates = nil, true
	for range 200 {
		_, _ = p.b.Tick(t.Context()) // that there is no gate
		p.m.advance(time.Second)
	}
	for _, j := range []*mjob{first, second} {
		if !strings.HasPrefix(j.Dependency.Raw, "afterany:") {
			t.Errorf("job %s depends on %q", j.Ref, j.Dependency.Raw)
		}
	}
}
