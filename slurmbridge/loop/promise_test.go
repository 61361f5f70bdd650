package loop_test

import (
	"math"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// busy submits a job of 100 s that nobody can share with: both would take twice as long.
func (m *model) busy() *mjob {
	return m.submit("ann", 100*time.Second, app("busy", 100, 1, 2000), true)
}

// plainEnds ticks once and compares when plain Slurm would have ended a job, in seconds from now; 0 = nothing is
// promised.
func plainEnds(t *testing.T, m *model, b *loop.Bridge, what string, want map[*mjob]float64) {
	t.Helper()
	tick(t, b, m, time.Second)
	st := b.Status()
	for j, in := range want {
		end := st.Plan.Plain.EndS(j.Ref)
		if in != 0 {
			in += tracker.Seconds(st.At)
		}
		if math.Abs(end-in) > 1e-3 && end != in {
			t.Errorf("%s: job %s would end in %.0f s, want %.0f", what, j.Ref, end-tracker.Seconds(st.At),
				in-tracker.Seconds(st.At))
		}
	}
}

// Starting a job takes Slurm a second, so three of 100 s end after 101, 202 and 303 s.
func TestPlainEndsInTheBridge(t *testing.T) {
	m, bridged := started(t, node("n1", 1, 8))
	ends := func(what string, want map[*mjob]float64) { t.Helper(); plainEnds(t, m, bridged, what, want) }
	a, b, c := m.busy(), m.busy(), m.busy()
	ends("in order of priority", map[*mjob]float64{a: 101, b: 202, c: 303})
	c.Priority = b.Priority + 1
	ends("an operator raises a priority", map[*mjob]float64{a: 100, c: 201, b: 302})
	low := c.Priority
	c.Priority = 0
	ends("it is held", map[*mjob]float64{c: 0, b: 200})
	c.Priority = low
	ends("and released", map[*mjob]float64{c: 199, b: 300})
	b.ended = true // cancelled
	ends("its owner cancels another one", map[*mjob]float64{b: 0, c: 198})

	// A bridge that starts anew promises the same.
	bridged = bridge(m, m.mem)
	ends("after a restart", map[*mjob]float64{a: 96, c: 197})

	a.requeued()
	a.Priority = 1 // the last one
	m.depend(a, "after:"+bridged.Gate.ID())
	ends("requeued, it is restored first", map[*mjob]float64{c: 101, a: 0})
	ends("and comes anew", map[*mjob]float64{c: 100, a: 201})

	m.nodes[0].Up = false
	tick(t, bridged, m, time.Second)
	m.nodes[0].Up = true
	ends("its node was away", map[*mjob]float64{c: 98, a: 199})
}

// A job that shares reports when it is expected to end, and what was promised.
func TestMembersKnowTheirEnds(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	p := app("light", 100, .3, 2000)
	m.submit("ann", 100*time.Second, p, true)
	m.submit("ann", 100*time.Second, p, true)
	tick(t, b, m, 2*time.Second)
	var lead []time.Duration
	for _, x := range b.Status().Groups[0].Members {
		lead = append(lead, x.PlainEnd.Sub(x.ExpectedEnd))
	}
	must.Equal(t, lead, []time.Duration{time.Second, 102 * time.Second}, "members end earlier than promised")
}

// While the journal's disk is full no group is made, and no job waits for that.
func TestNoGroupIsMadeOnAFullDisk(t *testing.T) {
	m, b := started(t, node("n1", 1, 8), node("n2", 1, 8))
	m.mem.full = true
	jobs := []*mjob{m.busy(), m.busy(), m.busy(), m.submit("bob", 10*time.Second, nil, true)}
	tick(t, b, m, 3*time.Second)
	bothRun(t, jobs[0], jobs[1]) // on two idle GPUs
	tick(t, b, m, 250*time.Second)
	allRan(t, jobs)
	m.mem.full = false
	a := m.busy()
	tick(t, b, m, 2*time.Second)
	must.Equal(t, a.State, job.Running)
	must.Equal(t, len(m.mem.groups), 1, "groups, with room on the disk")
}

// A job that is released and loses its GPU to another one keeps its place.
func TestPlaceIsKeptWhileRestored(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	a := m.busy()
	must.Get(b.Tick(t.Context()))(t)
	before := b.Status().Plan.Plain.EndS(a.Ref)
	m.paused = true // by now it would have begun on plain Slurm
	tick(t, b, m, 3*time.Second)
	m.paused = false
	other := m.submit("root", 300*time.Second, nil, false)
	other.Priority = 1 << 40
	other.TimeLimit = 300 * time.Second
	tick(t, b, m, 5*time.Second)
	must.Equal(t, other.State == job.Running && a.State == job.Pending, true, "the other has its GPU")
	if after := b.Status().Plan.Plain.EndS(a.Ref); before == 0 || after > before+1 {
		t.Errorf("plain end %v, after it was restored %v", before, after)
	}
}
