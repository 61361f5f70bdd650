package loop_test

import (
	"math"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// promise is a bridge whose plain schedule is looked at.
type promise struct {
	*testing.T
	m   *model
	mem *memory
	b   *loop.Bridge
}

func newPromise(t *testing.T, nodes ...job.Node) *promise {
	p := &promise{t, newModel(nodes...), newMemory(), nil}
	p.b = bridge(p.m, p.mem)
	tick(t, p.b, p.m, time.Second)
	return p
}

// busy is an application that nobody can share with: both would take twice as long.
var busy = app("busy", 100, 1, 2000)

func (p *promise) submit() *mjob { return p.m.submit("ann", 100*time.Second, busy, true) }

// ends ticks once and compares when plain Slurm would have ended a job, in seconds from
// now; 0 = nothing is promised.
func (p *promise) ends(what string, want map[*mjob]float64) {
	p.Helper()
	tick(p.T, p.b, p.m, time.Second)
	st := p.b.Status()
	for j, in := range want {
		end := st.Plan.Plain.EndS(j.Ref)
		if in != 0 {
			in += tracker.Seconds(st.At)
		}
		if math.Abs(end-in) > 1e-3 && end != in {
			p.Errorf("%s: job %s would end in %.0f s, want %.0f", what, j.Ref, end-tracker.Seconds(st.At), in-tracker.Seconds(st.At))
		}
	}
}

// Starting a job takes Slurm a second, so three of 100 s end after 101, 202 and 303 s.
func TestPlainEndsInTheBridge(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8))
	a, b, c := p.submit(), p.submit(), p.submit()
	p.ends("in order of priority", map[*mjob]float64{a: 101, b: 202, c: 303})
	c.Priority = b.Priority + 1
	p.ends("an operator raises a priority", map[*mjob]float64{a: 100, c: 201, b: 302})
	low := c.Priority
	c.Priority = 0
	p.ends("it is held", map[*mjob]float64{c: 0, b: 200})
	c.Priority = low
	p.ends("and released", map[*mjob]float64{c: 199, b: 300})
	b.ended = true // cancelled
	p.ends("its owner cancels another one", map[*mjob]float64{b: 0, c: 198})

	// A bridge that starts anew promises the same.
	p.b = bridge(p.m, p.mem)
	p.ends("after a restart", map[*mjob]float64{a: 96, c: 197})

	a.State, a.Start, a.Nodes, a.GPUs = job.Pending, time.Time{}, "", nil
	a.Priority = 1 // the last one
	p.m.depend(a, "after:"+p.b.Gate.ID())
	p.ends("requeued, it is restored first", map[*mjob]float64{c: 101, a: 0})
	p.ends("and comes anew", map[*mjob]float64{c: 100, a: 201})

	p.m.nodes[0].Up = false
	tick(t, p.b, p.m, time.Second)
	p.m.nodes[0].Up = true
	p.ends("its node was away", map[*mjob]float64{c: 98, a: 199})
}

// Jobs of one partition have the GPUs of that partition only.
func TestPlainEndsByPartition(t *testing.T) {
	other := node("n2", 1, 8)
	other.Partitions = []string{"other"}
	p := newPromise(t, node("n1", 1, 8), other)
	a, b, c := p.submit(), p.submit(), p.submit()
	c.Partition = "other"
	p.ends("two partitions", map[*mjob]float64{a: 101, b: 202, c: 101})
}

// What others run without the bridge, they run on plain Slurm too.
func TestPlainEndsBesideOthers(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8))
	other := p.m.submit("bob", 500*time.Second, nil, false)
	other.TimeLimit = 400 * time.Second
	p.m.advance(time.Second)
	a := p.submit()
	p.ends("a job of an unknown application runs", map[*mjob]float64{a: 401 + 101})
}

// A job that shares reports when it is expected to end, and what was promised.
func TestMembersKnowTheirEnds(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8))
	light := app("light", 100, .3, 2000)
	a, b := p.m.submit("ann", 100*time.Second, light, true), p.m.submit("ann", 100*time.Second, light, true)
	tick(t, p.b, p.m, 2*time.Second)
	st := p.b.Status()
	for i, j := range []*mjob{a, b} {
		e := st.Plan.Explanations[j.Ref]
		for _, g := range st.Groups {
			for _, m := range g.Members {
				if m.Ref == j.Ref {
					e = &job.Explanation{PlainEnd: m.PlainEnd, ExpectedEnd: m.ExpectedEnd}
				}
			}
		}
		if e == nil || e.ExpectedEnd.IsZero() || e.PlainEnd.Sub(e.ExpectedEnd) != time.Duration(1+101*i)*time.Second {
			t.Errorf("job %s: %+v", j.Ref, e)
		}
	}
}

// A due that would be missed is the reason that `why` gives.
func TestDueIsAReason(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8))
	half := app("half", 100, .6, 2000) // 1.2 together
	p.m.submit("ann", 100*time.Second, half, true)
	b := p.m.submit("ann", 100*time.Second, half, true)
	must.Get(p.b.Tick(t.Context()))(t)
	for _, r := range p.b.Status().Plan.Explanations[b.Ref].Refused {
		if r.Reason == rlcore.RefusedDue {
			return
		}
	}
	t.Errorf("%+v", p.b.Status().Plan.Explanations[b.Ref])
}

// A job whose owner asks for a part of the shares by hand starts wherever there is room. Where
// such jobs are seen, none is left.
func TestNoRoomForHandwrittenShares(t *testing.T) {
	for _, seen := range []bool{false, true} {
		p := newPromise(t, node("n1", 1, 8))
		p.b.Planner.Room = true
		p.m.now = p.m.now.Add(8 * 24 * time.Hour) // none was seen in the first week
		tick(t, p.b, p.m, time.Second)
		a := p.m.submit("ann", 100*time.Second, app("light", 100, .3, 2000), true)
		if seen {
			by := p.m.submit("bob", 40*time.Second, nil, false)
			by.Request.Count, by.Request.Raw, by.Priority = 30, "gres:mps:30", 1
			by.Eligible = p.m.now.Add(10 * time.Second)
		}
		tick(t, p.b, p.m, 3*time.Second)
		if a.State != job.Running || (a.Request.Count == 100) != seen {
			t.Errorf("hand-written shares seen: %v; the job is %s with %d shares", seen, a.State, a.Request.Count)
		}
	}
}

// A job that waits for a GPU whose job goes on and on has the next one that is idle, before
// jobs of lower priority.
func TestWaitsForTheWrongGPU(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8), node("n2", 1, 8))
	p.m.submit("ann", 5000*time.Second, busy, true) // 100 s are expected
	b := p.submit()
	tick(t, p.b, p.m, 5*time.Second)
	c := p.submit()
	tick(t, p.b, p.m, 90*time.Second)
	if b.ended || c.ReqNodes != "" && c.ReqNodes != "n1" {
		t.Fatalf("c is to follow on %q", c.ReqNodes)
	}
	p.m.down = true // the bridge misses the end of b
	p.m.advance(20 * time.Second)
	p.m.down = false
	low := p.submit()
	tick(t, p.b, p.m, 10*time.Second)
	if c.State != job.Running || low.State == job.Running {
		t.Errorf("c is %s, the job of lower priority %s", c.State, low.State)
	}
}

// While the journal's disk is full no group is made, and no job waits for that.
func TestFullDisk(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8), node("n2", 1, 8))
	p.mem.full = true
	jobs := []*mjob{p.submit(), p.submit(), p.submit(), p.m.submit("bob", 10*time.Second, nil, true)}
	tick(t, p.b, p.m, 3*time.Second)
	if jobs[0].State != job.Running || jobs[1].State != job.Running {
		t.Errorf("on two idle GPUs the first are %s and %s", jobs[0].State, jobs[1].State)
	}
	tick(t, p.b, p.m, 250*time.Second)
	for _, j := range jobs {
		if !j.ended {
			t.Errorf("job %s is %s", j.Ref, j.State)
		}
	}
	p.mem.full = false
	a := p.submit()
	tick(t, p.b, p.m, 2*time.Second)
	if len(p.mem.groups) == 0 || a.State != job.Running {
		t.Errorf("with room on the disk there are groups again: %v, job %s", p.mem.groups, a.State)
	}
}

// A job that is released and loses its GPU to another one keeps its place.
func TestPlaceIsKeptWhileRestored(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8))
	a := p.submit()
	must.Get(p.b.Tick(t.Context()))(t)
	before := p.b.Status().Plan.Plain.EndS(a.Ref)
	p.m.paused = true // by now it would have begun on plain Slurm
	tick(t, p.b, p.m, 3*time.Second)
	p.m.paused = false
	other := p.m.submit("root", 300*time.Second, nil, false)
	other.Priority = 1 << 40
	other.TimeLimit = 300 * time.Second
	tick(t, p.b, p.m, 5*time.Second)
	if other.State != job.Running || a.State != job.Pending {
		t.Fatalf("the other is %s, the job %s", other.State, a.State)
	}
	if after := p.b.Status().Plan.Plain.EndS(a.Ref); before == 0 || after > before+1 {
		t.Errorf("plain end %v, after it was restored %v", before, after)
	}
}

// Where such jobs are seen, the member that ends last has nearly all shares: what the others
// free is no room for another user.
func TestBulkForTheLast(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8))
	by := p.m.submit("bob", 40*time.Second, nil, false)
	by.Request.Count, by.Request.Raw, by.Priority = 30, "gres:mps:30", 1
	by.Eligible = p.m.now.Add(time.Hour)
	short := p.m.submit("ann", 50*time.Second, app("short", 50, .3, 2000), true)
	long := p.m.submit("ann", 100*time.Second, app("long", 100, .3, 2000), true)
	tick(t, p.b, p.m, 3*time.Second)
	if short.State != job.Running || long.State != job.Running || short.Request.Count != 1 || long.Request.Count != 99 {
		t.Errorf("short is %s with %d shares, long %s with %d", short.State, short.Request.Count, long.State, long.Request.Count)
	}
	by.Eligible = p.m.now
	tick(t, p.b, p.m, 60*time.Second)
	if !short.ended || by.State == job.Running {
		t.Errorf("short has ended: %v; bob's job is %s beside ann's", short.ended, by.State)
	}
	tick(t, p.b, p.m, 60*time.Second)
	must.Equal(t, by.State, job.Running, "with the GPU free bob's job")
}

// A job that the gate could hold until its limit doesn't fit before its deadline any more
// is let go: Slurm would cancel it.
func TestDeadlineBehindTheGate(t *testing.T) {
	p := newPromise(t, node("n1", 1, 8))
	p.submit()
	p.ends("the GPU is busy", nil)
	hold := p.b.Gate.Lease + time.Minute
	near, far, none := p.submit(), p.submit(), p.submit()
	for _, j := range []*mjob{near, far, none} {
		j.TimeLimit = 10 * time.Minute
	}
	near.Deadline = p.m.now.Add(near.TimeLimit + hold - 5*time.Second)
	far.Deadline = near.Deadline.Add(time.Hour)
	p.ends("two have a deadline", nil)
	gate := p.b.Gate.ID()
	for j, gated := range map[*mjob]bool{near: false, far: true, none: true} {
		if j.Dependency.Has("after", gate) != gated || j.Request.Count != job.Units {
			t.Errorf("job %s with its deadline at %v: %d shares, waits for %q, want gated %v", j.Ref, j.Deadline, j.Request.Count, j.Dependency.Raw, gated)
		}
	}
}
