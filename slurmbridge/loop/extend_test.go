package loop_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/property"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
)

// lending is a cluster of one GPU without limits, and a bridge that raises time limits.
func lending(t must.T) (m *model, b *loop.Bridge) {
	m = newModel(node("n1", 1, 8))
	m.bounds.MaxTime = map[string]time.Duration{"gpu": 0}
	b = bridge(m, m.mem)
	b.ExtendLimit = true
	must.Get(b.Tick(context.Background()))(t)
	m.advance(time.Second)
	return m, b
}

// slowed makes a job of 60 s alone with a limit of two minutes, predicted to take 72 s and really taking run, share
// its GPU.
func slowed(t *testing.T, m *model, b *loop.Bridge, run time.Duration) (victim *mjob) {
	t.Helper()
	b.Planner.Decider.Guard.Grace = 1
	victim = m.submit("ann", run, app("victim", 60, 0.6, 2000), true)
	other := m.submit("ann", 10*time.Minute, app("other", 600, 0.6, 2000), true)
	victim.TimeLimit, other.TimeLimit = 2*time.Minute, time.Hour
	tick(t, b, m, 5*time.Second)
	bothRun(t, victim, other)
	return victim
}

func (m *memory) extensions() (n int) {
	for _, line := range m.log {
		if strings.HasPrefix(line, "extend") {
			n++
		}
	}
	return n
}

// Where there is no room Slurm is not asked at every poll, and where room comes it is used.
func TestNoRoomForMoreTime(t *testing.T) {
	m, b := lending(t)
	m.bounds.MaxTime["gpu"] = 2 * time.Minute
	victim := slowed(t, m, b, 170*time.Second)
	tick(t, b, m, 50*time.Second)
	must.Equal(t, m.asked, 1, "times that bounds were asked for")
	m.bounds.MaxTime["gpu"] = 0
	tick(t, b, m, 3*time.Minute)
	must.Equal(t, victim.State == "COMPLETED" && m.mem.extensions() > 0, true, "it is %s, limit %v", victim.State,
		victim.TimeLimit)
}

// While the journal's disk is full, limits are raised all the same.
func TestMoreTimeOnAFullDisk(t *testing.T) {
	m, b := lending(t)
	m.started = func(*mjob) { m.mem.full = true }
	victim := slowed(t, m, b, 170*time.Second)
	untilEnded(t, b, m, victim)
	must.Equal(t, victim.State, "COMPLETED", "its limit is %v", victim.TimeLimit)
}

// A limit that Slurm doesn't keep is set again, but not for ever.
func TestLimitIsUndone(t *testing.T) {
	m, b := lending(t)
	m.stubborn = true
	victim := slowed(t, m, b, time.Hour)
	tick(t, b, m, 3*time.Minute)
	must.Equal(t, m.mem.extensions(), 5, "tries")
	must.Equal(t, victim.State, "TIMEOUT")
}

// However jobs meet on a GPU and however slow they really are: none is ended at its limit for having shared
// with less solo work done than its own limit allows, as far as the bridge can know, and one that was alone all
// the time gets nothing.
func TestNobodyIsEndedForSharing(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		m, b := lending(t)
		type worked struct {
			own                    time.Duration
			least, predicted, cost float64
		}
		work := map[*mjob]*worked{}
		for i := range rapid.IntRange(2, 5).Draw(t, "jobs") {
			minutes := rapid.IntRange(2, 6).Draw(t, "limit")
			solo := rapid.Float64Range(20, 60*float64(minutes)).Draw(t, "solo")
			gpu := rapid.Float64Range(0.2, 0.9).Draw(t, "gpu")
			run := time.Duration(solo*rapid.Float64Range(1, 6).Draw(t, "slowed")) * time.Second
			j := m.submit("ann", run, app(fmt.Sprint("app", i), solo, gpu, 1500), true)
			j.TimeLimit = time.Duration(minutes) * time.Minute
			work[j] = &worked{own: j.TimeLimit}
		}
		for i := 0; i < 3600 && !m.allEnded(); i++ {
			must.Get(b.Tick(t.Context()))(t)
			m.advance(time.Second)
			on := m.on("n1", 0)
			sum := 0.0
			for _, j := range on {
				sum += j.profil.Mean().GPU
			}
			for _, j := range on {
				w := work[j]
				w.least += 1 / max(float64(len(on)), sum)
				w.predicted += 1 / max(1, sum)
				w.cost += 1 - 1/max(float64(len(on)), sum)
				if lent := (j.TimeLimit - w.own).Seconds(); len(on) == 1 && w.cost == 0 && lent > 0 {
					t.Fatalf("job %s runs alone, and was lent %g s", j.Ref, lent)
				}
			}
		}
		const slack = 10 // s: polls, and the last minute
		for j, w := range work {
			done := w.least
			if j.profil.DurationS >= w.own.Seconds()-slack {
				done = w.predicted // running on shows nothing before the limit
			}
			if j.State == "TIMEOUT" && done < w.own.Seconds()-slack {
				t.Errorf("job %s was ended after %.0f s of solo work, its own limit is %v, it was lent %v", j.Ref, done, w.own,
					j.TimeLimit-w.own)
			}
		}
	})
}

// A lifted limit is noticed within a minute, although no job ends.
func TestLimitLifted(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	m.most = map[string]int{"ann": 1}
	m.pair(time.Hour)
	m.submit("ann", time.Hour, light(), true)
	tick(t, b, m, 10*time.Second)
	updates := m.updates
	tick(t, b, m, 30*time.Second)
	must.Equal(t, m.runs("ann"), 1, "jobs run")
	must.Equal(t, m.updates, updates, "updates while nothing happened")
	delete(m.most, "ann")
	tick(t, b, m, 50*time.Second)
	must.Equal(t, m.runs("ann"), 3, "jobs run after the limit was lifted")
}

// Slurm keeps the idle GPUs of a node for a job of four GPUs, and says Priority of the sharers behind it. None of them
// is let go, none is held up by the bridge, and all share once the job has run.
func TestSharersBehindALargeJob(t *testing.T) {
	m, b := started(t, node("n1", 4, 32))
	wholeGPUs(m, 1, 10*time.Minute).TimeLimit = 0
	large := wholeGPUs(m, 4, time.Minute)
	large.TimeLimit = 0
	tick(t, b, m, 2*time.Second)
	var sharers []*mjob
	for range 6 {
		sharers = append(sharers, m.submit("ann", 100*time.Second, app("a", 100, 0.3, 2000), true))
	}
	begin, updates := m.now, m.updates
	for !large.ended && m.now.Sub(begin) < time.Hour {
		tick(t, b, m, 10*time.Second)
		for _, j := range sharers {
			if j.State != job.Pending && !large.ended {
				t.Fatalf("job %s is %s before the large one has run", j.Ref, j.State)
			}
		}
	}
	if tries := m.updates - updates; tries > 6*3*8 {
		t.Errorf("%d updates while Slurm kept the node", tries)
	}
	if d := b.Status().MaxDelayS; d > 30 {
		t.Errorf("the bridge counts %v s of delay as its own", d)
	}
	untilEnded(t, b, m, sharers...)
	for _, j := range sharers {
		must.Equal(t, j.Request.Count < job.Units, true, "job %s shares", j.Ref)
	}
	must.Equal(t, b.Status().Unmanaged, nil, "jobs left to Slurm")
}

// A job that a limit will never let start is left to Slurm, and the next one runs.
func TestJobBeyondALimitOfItsOwn(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	m.most, m.reason = map[string]int{"ann": 0}, "QOSMaxWallDurationPerJobLimit"
	big, next := m.submit("ann", time.Minute, light(), true), m.submit("bob", time.Minute, light(), true)
	tick(t, b, m, 10*time.Second)
	if b.Status().Unmanaged[big.Ref] == "" || big.Request.Count != job.Units || len(big.Dependency.List) != 0 {
		t.Errorf("it asks for %d, waits for %q, left alone: %q", big.Request.Count, big.Dependency.Raw,
			b.Status().Unmanaged[big.Ref])
	}
	must.Equal(t, next.State, job.Running, "the next")
	delete(m.most, "ann")
	untilEnded(t, b, m, big)
}

// A bridge that takes over with an empty journal, and knows no application, gives running sharers the time back that
// sharing costs them, by what their AdminComments say; it takes no limit that was raised for a job's own.
func TestMoreTimeAfterTheJournalIsLost(t *testing.T) {
	for _, late := range []bool{false, true} {
		m, b := lending(t)
		b.Planner.Decider.Guard.Grace = 1
		victim := m.submit("ann", 200*time.Second, app("victim", 60, 0.6, 2000), true)
		other := m.submit("ann", 10*time.Minute, app("other", 600, 0.6, 2000), true)
		victim.TimeLimit, other.TimeLimit = 3*time.Minute, time.Hour
		tick(t, b, m, 30*time.Second)
		bothRun(t, victim, other)
		if late {
			tick(t, b, m, 130*time.Second)
		}
		must.Equal(t, victim.TimeLimit > 3*time.Minute, late, "its limit was raised before")
		m.mem = newMemory()
		for _, j := range m.jobs {
			j.profil = nil
		}
		b = bridge(m, m.mem)
		b.ExtendLimit = true
		tick(t, b, m, 2*time.Second)
		if late {
			must.Equal(t, m.mem.tracker.Loans[victim.Ref].Own, 3*time.Minute)
		}
		untilEnded(t, b, m, victim)
		must.Equal(t, victim.State, "COMPLETED", "its limit is %v", victim.TimeLimit)
		must.Equal(t, victim.TimeLimit <= 5*time.Minute, true, "its limit is %v", victim.TimeLimit)
	}
}

// A job that Slurm may start in a reservation that it doesn't ask for is left to Slurm, whether limits are raised or not.
func TestDrawnWhereLimitsStay(t *testing.T) {
	for _, raises := range []bool{true, false} {
		m := newModel()
		m.nodes = append(m.nodes, node("n1", 1, 16), node("n2", 1, 16))
		m.nodes[1].Reserved = true
		wholeGPUs(m, 1, 3*time.Hour)
		m.jobs[0].ReqNodes = "n1"
		m.bounds = job.Bounds{Reservations: []job.Reservation{
			{Name: "class", Start: m.now.Add(-time.Hour), End: m.now.Add(time.Hour), Magnetic: true},
		}}
		b := bridge(m, m.mem)
		b.ExtendLimit = raises
		tick(t, b, m, 2*time.Second)
		j := m.submit("ann", time.Minute, light(), true)
		tick(t, b, m, 5*time.Second)
		must.Equal(t, len(j.Dependency.List), 0, "limits are raised: %v", raises)
	}
}
