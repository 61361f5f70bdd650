package loop_test

import (
	"math"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
)

// broken values everything with NaN.
type broken struct{ baseline.Exclusive }

func (broken) Name() string { return "broken" }

func (broken) Score(dst []float64, _ *rlcore.Window, _ []rlcore.Combo) {
	for i := range dst {
		dst[i] = math.NaN()
	}
}

// named is exclusive under another name.
type named struct {
	baseline.Exclusive
	name string
}

func (n named) Name() string { return n.name }

// trained is a model's policy.
type trained struct{ broken }

func (trained) Model() string { return "7" }

// A policy whose scores are no numbers is dropped, and its model with it.
func TestFallBackNamesThePolicyThatDecides(t *testing.T) {
	m := newModel(node("n1", 2, 8))
	b := bridge(m, newMemory())
	decide := b.Planner.Decider
	decide.Policy, decide.Fallback = trained{broken{}}, []rlcore.Policy{named{name: "instead"}}
	tick(t, b, m, time.Second)
	if got := b.Status(); got.Policy != "broken" || got.Model != "7" {
		t.Errorf("%q decides by model %q", got.Policy, got.Model)
	}
	m.submit("ann", time.Hour, app("a", 3600, 0.9, 9000), true)
	tick(t, b, m, time.Second)
	if got := b.Status(); got.Policy != "instead" || got.Model != "" {
		t.Errorf("after the fall-back %q decides by model %q", got.Policy, got.Model)
	}
}

// After a fall-back to exclusive, no shares are left for a second job, which never comes.
func TestFallBackThatNeverSharesGivesTheWholeGPU(t *testing.T) {
	for _, c := range []struct {
		policy rlcore.Policy
		shares int
	}{{named{name: "instead"}, 50}, {baseline.Exclusive{}, 100}} {
		m, b := started(t, node("n1", 1, 8))
		b.Planner.Room, b.Planner.RoomAnyway, b.Planner.Join = true, true, true
		b.Planner.Decider.Policy, b.Planner.Decider.Fallback = broken{}, []rlcore.Policy{c.policy}
		j := m.submit("ann", time.Hour, app("a", 3600, 0.2, 1000), true)
		for range 5 {
			tick(t, b, m, time.Second)
		}
		if got := j.Request.Count; got != c.shares {
			t.Errorf("%s: the job has %d shares", c.policy.Name(), got)
		}
	}
}
