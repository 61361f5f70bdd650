package loop_test

import (
	"math"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
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
type named struct{ baseline.Exclusive }

func (named) Name() string { return "instead" }

// trained is a model's policy.
type trained struct{ broken }

func (trained) Model() string { return "7" }

// A policy whose scores are no numbers is dropped, and its model with it. Where exclusive decides instead, no shares
// are left for a second job, which never comes.
func TestAPolicyWithoutNumbersIsDropped(t *testing.T) {
	for _, c := range []struct {
		instead rlcore.Policy
		shares  int
	}{{named{}, 50}, {baseline.Exclusive{}, 100}} {
		m := newModel(node("n1", 1, 8))
		b := bridge(m, m.mem)
		b.Planner.Decider.Policy, b.Planner.Decider.Fallback = trained{broken{}}, []rlcore.Policy{c.instead}
		tick(t, b, m, time.Second)
		must.Equal(t, b.Status().Policy+b.Status().Model, "broken7", "the policy, and its model")
		j := m.submit("ann", time.Hour, light(), true)
		tick(t, b, m, 5*time.Second)
		must.Equal(t, b.Status().Policy+b.Status().Model, c.instead.Name(), "after the fall-back")
		must.Equal(t, j.Request.Count, c.shares, "the job's shares")
	}
}
