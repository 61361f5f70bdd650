package loop_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
)

// slowed are a job of 60 s alone with a limit of two minutes, predicted to take 72 s and really taking run,
// and the job that it shares its GPU with.
func slowed(t *testing.T, run time.Duration, setup func(m *model, b *loop.Bridge)) (m *model, b *loop.Bridge, mem *memory, victim *mjob) {
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
	if victim.State != job.Running || other.State != job.Running {
		t.Fatalf("the victim is %s, the other %s", victim.State, other.State)
	}
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

func TestTimeIsLentBack(t *testing.T) {
	for name, c := range map[string]struct {
		run   time.Duration
		setup func(m *model, b *loop.Bridge)
		want  job.JobState
		most  time.Duration // the limit at its end
	}{
		"slowed 2.8-fold":         {170 * time.Second, nil, "COMPLETED", 4 * time.Minute},
		"as predicted":            {72 * time.Second, nil, "COMPLETED", 3 * time.Minute},
		"it hangs":                {time.Hour, nil, "TIMEOUT", 5 * time.Minute}, // two minutes of work on half a GPU, and the last rounding
		"not wanted":              {170 * time.Second, func(_ *model, b *loop.Bridge) { b.ExtendLimit = false }, "TIMEOUT", 2 * time.Minute},
		"a contract":              {170 * time.Second, func(_ *model, b *loop.Bridge) { b.Planner.Decider.Guard.MaxSlowdown = 1.25 }, "TIMEOUT", 2 * time.Minute},
		"a contract with room":    {170 * time.Second, func(_ *model, b *loop.Bridge) { b.Planner.Decider.Guard.MaxSlowdown = 1.5 }, "COMPLETED", 3 * time.Minute},
		"its partition's MaxTime": {170 * time.Second, func(m *model, _ *loop.Bridge) { m.bounds.MaxTime["gpu"] = 2 * time.Minute }, "TIMEOUT", 2 * time.Minute},
		"a maintenance": {170 * time.Second, func(m *model, _ *loop.Bridge) {
			m.bounds.Reservations = []job.Reservation{{Name: "m", Start: m.now.Add(150 * time.Second), End: m.now.Add(time.Hour)}}
		}, "TIMEOUT", 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			m, b, mem, victim := slowed(t, c.run, c.setup)
			for limit := victim.TimeLimit; !victim.ended; limit = victim.TimeLimit {
				tick(t, b, m, time.Second)
				if victim.TimeLimit < limit {
					t.Fatalf("the limit went from %v to %v", limit, victim.TimeLimit)
				}
			}
			if victim.State != c.want || victim.TimeLimit > c.most {
				t.Errorf("it ended as %s after %v with a limit of %v", victim.State, m.now.Sub(victim.began), victim.TimeLimit)
			}
			if raised := victim.TimeLimit > 2*time.Minute; raised != (extensions(mem) > 0) {
				t.Errorf("the journal has %d extensions: %q", extensions(mem), mem.log)
			}
		})
	}
}

// A job that runs alone is Slurm's to end, and so is one whose owner has lowered its limit.
func TestTimeIsNotLent(t *testing.T) {
	m, mem := newModel(node("n1", 1, 8)), newMemory()
	b := bridge(m, mem)
	b.ExtendLimit, b.Planner.Decider.Guard.Grace = true, 1
	tick(t, b, m, time.Second)
	alone := m.submit("ann", 170*time.Second, app("victim", 60, 0.6, 2000), true)
	alone.TimeLimit = 2 * time.Minute
	tick(t, b, m, 3*time.Minute)
	if alone.State != "TIMEOUT" || extensions(mem) > 0 {
		t.Errorf("alone it ended as %s, %d extensions", alone.State, extensions(mem))
	}

	m, b, mem, victim := slowed(t, 10*time.Minute, nil)
	for victim.TimeLimit == 2*time.Minute {
		tick(t, b, m, time.Second)
	}
	tick(t, b, m, 2*time.Second)
	victim.TimeLimit = 2 * time.Minute
	n := extensions(mem)
	tick(t, b, m, 2*time.Minute)
	if victim.State != "TIMEOUT" || victim.TimeLimit != 2*time.Minute || extensions(mem) != n {
		t.Errorf("against its owner's word it was extended to %v: %s", victim.TimeLimit, victim.State)
	}
}

// Where there is no room Slurm is not asked at every poll, and where room comes it is used.
func TestNoRoomForMoreTime(t *testing.T) {
	m, b, mem, victim := slowed(t, 170*time.Second, func(m *model, _ *loop.Bridge) { m.bounds.MaxTime["gpu"] = 2 * time.Minute })
	tick(t, b, m, 50*time.Second)
	if m.asked != 1 {
		t.Errorf("asked %d times", m.asked)
	}
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

// What a run was lent is not the next run's.
func TestRequeuedWithItsOwnLimit(t *testing.T) {
	m, b, _, victim := slowed(t, 10*time.Minute, nil)
	for victim.TimeLimit == 2*time.Minute {
		tick(t, b, m, time.Second)
	}
	victim.ended, victim.State, victim.Nodes, victim.GPUs, victim.Start = false, job.Pending, "", nil, time.Time{}
	victim.Priority = 0 // held
	tick(t, b, m, 5*time.Second)
	if victim.TimeLimit != 2*time.Minute {
		t.Errorf("requeued with a limit of %v", victim.TimeLimit)
	}
}

// However jobs meet on a GPU and however slow they really are: none is ended at its limit for having shared
// with less solo work done than its own limit allows, as far as the bridge can know, and one that was alone all
// the time gets nothing.
func TestNobodyIsEndedForSharing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, mem := newModel(node("n1", 1, 8)), newMemory()
		m.bounds.MaxTime = map[string]time.Duration{"gpu": 0}
		b := bridge(m, mem)
		b.ExtendLimit = true
		tick := func(t *rapid.T) {
			if _, err := b.Tick(t.Context()); err != nil {
				t.Fatal(err)
			}
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
		for range 3600 {
			tick(t)
			if !slices.ContainsFunc(m.jobs, func(j *mjob) bool { return !j.ended }) {
				break
			}
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
				t.Errorf("job %s was ended after %.0f s of solo work, its own limit is %v, it was lent %v", j.Ref, done, w.own, j.TimeLimit-w.own)
			}
		}
	})
}
