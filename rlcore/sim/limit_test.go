package sim

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// crowded lets as many jobs share as the card allows.
func crowded() *rlcore.Decider { return &rlcore.Decider{Policy: choice(crowd), Guard: Bare()} }

// A job that sharing slows beyond its limit is ended there, which is harm; the other has
// the GPU for itself from then on.
func TestLimitByHand(t *testing.T) {
	a, b := constant("a", 40, .9, 100), constant("b", 100, .9, 100)
	cfg := config(1, a, b)
	cfg.Jobs[0].LimitS = 41
	slow := slowdowns(&contention.MPS, a, b)
	if slow[0] < 1.1 {
		t.Fatalf("these don't slow each other: %v", slow)
	}
	r := run(t, cfg, crowded())
	killed, other := &r.Jobs[0], &r.Jobs[1]
	if !killed.TimedOut || !killed.Harmed || other.TimedOut || r.Harmed != 1 {
		t.Errorf("got %+v and %+v, want the first ended at its limit", *killed, *other)
	}
	near(t, "a", killed.EndS, 41)
	near(t, "a's slowdown, of what was done", killed.Slowdown, slow[0])
	near(t, "b", other.EndS, 41+(100-41/slow[1]))
	same(t, &cfg, r, &contention.MPS)

	r = run(t, cfg, decider(t, "exclusive"))
	if r.Jobs[0].TimedOut {
		t.Errorf("alone: %+v", r.Jobs[0])
	}

	// It gets back what sharing costs it; where it can't, it doesn't.
	cfg.ExtendLimit = true
	if r = run(t, cfg, crowded()); r.Jobs[0].TimedOut {
		t.Errorf("with time given back: %+v", r.Jobs[0])
	}
	cfg.Jobs[0].LimitFixed = true
	if r = run(t, cfg, crowded()); r.Harmed != 1 {
		t.Errorf("with a limit that is fixed: %+v", r.Jobs[0])
	}
}

// How far a job had come that was ended at its limit is unknown.
func TestObserverOfLimits(t *testing.T) {
	a, b := constant("a", 100, .9, 100), constant("b", 100, .9, 100)
	cfg := config(1, a, b)
	cfg.Jobs[0].LimitS = 110
	for _, x := range observed(t, cfg, crowded()) {
		if x.apps[0] == "a" {
			t.Errorf("observed %+v of a job that was ended at its limit", x)
		}
	}
}
