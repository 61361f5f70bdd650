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
			p.Errorf("%s: job %s would end in %.0f s, want %.0f", what, j.Ref, end-tracker.Seconds(st.At),
				in-tracker.Seconds(st.At))
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
	allRan(t, jobs)
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
