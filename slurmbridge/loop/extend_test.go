package loop_test

import (
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

// slowed are a job of 60 s alone with a limit of two minutes, predicted to take 72 s and really taking run,
// and the job that it shares its GPU with.
func slowed(t *testing.T, run time.Duration, setup func(m *model, b *loop.Bridge)) (m *model, b *loop.Bridge,
	mem *memory, victim *mjob,
) {
	t.Helper()
	m, mem = newModel(node("n1", 1, 8)), newMemory()
	m.bounds.MaxTime = map[string]time.Duration{"gpu": 0}
	b = bridge(m, mem)
	b.ExtendLimit, b.Planner.Decider.Guard.Grace = true, 1
	if setup != nil {
		setup(m, b)
	}
	tick(t, b, m, time.Second)
	victim = m.submit("ann", run, app("victim", 60, 0.6, 2000), true)
	other := m.submit("ann", 10*time.Minute, app("other", 600, 0.6, 2000), true)
	victim.TimeLimit, other.TimeLimit = 2*time.Minute, time.Hour
	tick(t, b, m, 5*time.Second)
	bothRun(t, victim, other)
	return m, b, mem, victim
}

func extensions(mem *memory) (n int) {
	for _, line := range mem.log {
		if strings.HasPrefix(line, "extend") {
			n++
		}
	}
	return n
}

// Where there is no room Slurm is not asked at every poll, and where room comes it is used.
func TestNoRoomForMoreTime(t *testing.T) {
	m, b, mem, victim := slowed(t, 170*time.Second,
		func(m *model, _ *loop.Bridge) { m.bounds.MaxTime["gpu"] = 2 * time.Minute })
	tick(t, b, m, 50*time.Second)
	must.Equal(t, m.asked, 1, "times that bounds were asked for")
	m.bounds.MaxTime["gpu"] = 0
	tick(t, b, m, 3*time.Minute)
	if victim.State != "COMPLETED" || extensions(mem) == 0 {
		t.Errorf("it is %s with a limit of %v", victim.State, victim.TimeLimit)
	}
}

// A limit that Slurm doesn't keep is set again, but not for ever.
func TestLimitIsUndone(t *testing.T) {
	m, b, mem, victim := slowed(t, time.Hour, func(m *model, _ *loop.Bridge) { m.stubborn = true })
	tick(t, b, m, 3*time.Minute)
	if n := extensions(mem); n != 5 || victim.State != "TIMEOUT" {
		t.Errorf("%d tries, %s", n, victim.State)
	}
}

// However jobs meet on a GPU and however slow they really are: none is ended at its limit for having shared
// with less solo work done than its own limit allows, as far as the bridge can know, and one that was alone all
// the time gets nothing.
func TestNobodyIsEndedForSharing(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		m, mem := newModel(node("n1", 1, 8)), newMemory()
		m.bounds.MaxTime = map[string]time.Duration{"gpu": 0}
		b := bridge(m, mem)
		b.ExtendLimit = true
		tick := func(t *rapid.T) {
			must.Get(b.Tick(t.Context()))(t)
			m.advance(time.Second)
		}
		tick(t)
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
			tick(t)
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
	m := newModel(node("n1", 1, 8))
	m.most = map[string]int{"ann": 1}
	mem := newMemory()
	b := bridge(m, mem)
	tick(t, b, m, time.Second)
	for range 3 {
		m.submit("ann", time.Hour, app("a", 3600, 0.3, 2000), true)
	}
	tick(t, b, m, 10*time.Second)
	updates := m.updates
	tick(t, b, m, 30*time.Second)
	if n := m.runs("ann"); n != 1 || m.updates != updates {
		t.Errorf("%d run; %d updates while nothing happened", n, m.updates-updates)
	}
	delete(m.most, "ann")
	tick(t, b, m, 50*time.Second)
	if n := m.runs("ann"); n != 3 {
		t.Errorf("%d run after the limit was lifted\n%s", n, strings.Join(mem.log, "\n"))
	}
}

// Slurm keeps the idle GPUs of a node for a job of four GPUs, and says Priority of the sharers
// behind it. None of them is let go, none is held up by the bridge, and all share once the job has
// run.
func TestSharersBehindALargeJob(t *testing.T) {
	m, b := started(t, node("n1", 4, 32))
	first := m.submit("bob", 10*time.Minute, nil, false)
	large := m.submit("bob", time.Minute, nil, false)
	first.Request = job.GPURequest{Kind: job.WholeGPU, Count: 1, Raw: "gres:gpu:1"}
	large.Request = job.GPURequest{Kind: job.WholeGPU, Count: 4, Raw: "gres:gpu:4"}
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
	tick(t, b, m, 12*time.Minute)
	for _, j := range sharers {
		if !j.ended || j.Request.Count == job.Units {
			t.Errorf("job %s is %s with %d shares", j.Ref, j.State, j.Request.Count)
		}
	}
	noneLeft(t, b)
}

// A job that a limit will never let start is left to Slurm, and the next one runs.
func TestJobBeyondALimitOfItsOwn(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	m.most = map[string]int{"ann": 0}
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	big := m.submit("ann", time.Minute, app("a", 60, 0.3, 2000), true)
	next := m.submit("bob", time.Minute, app("b", 60, 0.3, 2000), true)
	m.reason = "QOSMaxWallDurationPerJobLimit"
	tick(t, b, m, 10*time.Second)
	if b.Status().Unmanaged[big.Ref] == "" || big.Request.Count != job.Units || len(big.Dependency.List) != 0 {
		t.Errorf("it asks for %d, waits for %q, left alone: %q", big.Request.Count, big.Dependency.Raw,
			b.Status().Unmanaged[big.Ref])
	}
	must.Equal(t, next.State, job.Running, "the next")
	delete(m.most, "ann")
	tick(t, b, m, 2*time.Minute)
	if !big.ended && big.State != job.Running {
		t.Errorf("it is %s when its limit is gone", big.State)
	}
}
