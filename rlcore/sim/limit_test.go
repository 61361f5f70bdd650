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
	if killed.Ended != AtLimit || !killed.Harmed || other.Ended != Completed || r.Harmed != 1 || r.Lost() != 1 {
		t.Errorf("got %+v and %+v, want the first ended at its limit", *killed, *other)
	}
	near(t, "a", killed.EndS, 41)
	near(t, "a's slowdown, of what was done", killed.Slowdown, slow[0])
	near(t, "b", other.EndS, 41+(100-41/slow[1]))
	same(t, &cfg, r, &contention.MPS)

	r = run(t, cfg, decider(t, "exclusive"))
	if r.Jobs[0].Ended != Completed {
		t.Errorf("alone: %+v", r.Jobs[0])
	}

	// It gets back what sharing costs it; where it can't, it doesn't.
	cfg.ExtendLimit = true
	if r = run(t, cfg, crowded()); r.Jobs[0].Ended != Completed {
		t.Errorf("with time given back: %+v", r.Jobs[0])
	}
	cfg.Jobs[0].LimitFixed = true
	if r = run(t, cfg, crowded()); r.Harmed != 1 {
		t.Errorf("with a limit that is fixed: %+v", r.Jobs[0])
	}
}

// A running job is ended at its deadline; a pending one is cancelled once its limit no
// longer fits before it, and may start until that moment.
func TestDeadlines(t *testing.T) {
	a := constant("a", 40, .9, 100)
	cfg := config(1, a, a, a, a, a)
	cfg.Jobs[0].DeadlineS = 30                            // ended while running
	cfg.Jobs[1].LimitS, cfg.Jobs[1].DeadlineS = 60, 90    // starts just in time, at 30 s
	cfg.Jobs[2].LimitS, cfg.Jobs[2].DeadlineS = 60, 129.9 // would have to start at 69.9 s
	cfg.Jobs[3].SubmitS, cfg.Jobs[3].LimitS, cfg.Jobs[3].DeadlineS = 10, 60, 60
	r := run(t, cfg, decider(t, "exclusive"))
	want := []struct {
		start, end float64
		ended      End
		gpu        int
	}{
		{0, 30, AtDeadline, 0},
		{30, 70, Completed, 0},
		{69.9, 69.9, AtDeadline, -1},
		{10, 10, AtDeadline, -1},
		{70, 110, Completed, 0},
	}
	for i, w := range want {
		o := &r.Jobs[i]
		if o.Ended != w.ended || o.GPU != w.gpu || o.Harmed {
			t.Errorf("job %d: %+v, want %+v", i, *o, w)
		}
		near(t, "start", o.StartS, w.start)
		near(t, "end", o.EndS, w.end)
	}
	if r.PastDeadline != 3 || len(r.Slowdowns()) != 3 {
		t.Errorf("%d past their deadlines, slowdowns %v", r.PastDeadline, r.Slowdowns())
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
