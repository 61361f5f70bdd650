package sim

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// observation is one call of an Observer.
type observation struct {
	apps            []string
	slow, predicted float64
}

func observed(t *testing.T, cfg Config, d *rlcore.Decider) []observation {
	t.Helper()
	var seen witness
	cfg.Predictor = decider(t, "greedy").Guard.Predictor
	cfg.Observer = &seen
	run(t, cfg, d)
	return seen.all
}

// witness is an Observer that writes down what it sees.
type witness struct {
	all              []observation
	broken, reassure int
}

func (w *witness) Observe(_ *rlcore.GPUSpec, members []*rlcore.Profile, slowdown, predicted, _ float64) {
	x := observation{slow: slowdown, predicted: predicted}
	for _, p := range members {
		x.apps = append(x.apps, p.App)
	}
	w.all = append(w.all, x)
}

func (w *witness) Doubt(rlcore.Identity, []rlcore.Identity)    { w.broken++ }
func (w *witness) Reassure(rlcore.Identity, []rlcore.Identity) { w.reassure++ }

// Two that are together for their whole runs tell their slowdowns.
func TestRunsTellTheirSlowdowns(t *testing.T) {
	a, b := constant("a", 100, .9, 100), constant("b", 100, .9, 100)
	got := observed(t, config(1, a, b), &rlcore.Decider{Policy: choice(crowd), Guard: Bare()})
	want := slowdowns(&contention.MPS, a, b)[0]
	if len(got) != 2 {
		t.Fatalf("observed %+v", got)
	}
	for _, x := range got {
		if len(x.apps) != 2 || x.apps[0] == x.apps[1] {
			t.Errorf("observed %+v", x)
		}
		near(t, x.apps[0]+"'s slowdown", x.slow, want)
		near(t, x.apps[0]+"'s slowdown as predicted", x.predicted, want)
	}
}

// Lost runs teach nothing: in the end this job was alone.
func TestObserverOfLostRuns(t *testing.T) {
	cfg := config(1, constant("a", 200, 0, 8000), stepped("b", 14, 1000, 6, 6000))
	for _, x := range observed(t, cfg, &rlcore.Decider{Policy: choice(crowd), Guard: Bare()}) {
		if x.apps[0] == "b" {
			t.Errorf("observed %+v", x)
		}
	}
}
