package loop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
)

// slowed are a job of 60 s alone with a limit of two minutes, foreseen to take 72 s and really taking run,
// and the job that it shares its GPU with.
func slowed(t *testing.T, run time.Duration, setup func(m *model, b *loop.Bridge)) (m *model, b *loop.Bridge, mem *memory, victim *mjob) {
	t.Helper()
	m, mem = newModel(node("n1", 1, 8)), newMemory()
	m.bounds.MaxTime = map[string]time.Duration{"gpu": 0}
	b = bridge(m, mem)
	b.ExtendLimit = true
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
		"as foreseen":             {72 * time.Second, nil, "COMPLETED", 3 * time.Minute},
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
	b.ExtendLimit = true
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
