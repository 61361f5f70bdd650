package sim

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// only starts the jobs named and leaves the others as long as it may.
func only(ids ...string) choice {
	return func(w *rlcore.Window, c rlcore.Combo) float64 {
		v := 0.0
		for i := range w.Jobs {
			if !c.Has(i) {
				continue
			}
			v--
			for _, id := range ids {
				if w.Job(i).ID == id {
					v += 2
				}
			}
		}
		return v
	}
}

// A policy that would leave a job waiting next to an idle GPU until a long job ends must
// start it after MaxDelayS, to the second.
func TestDelayEnds(t *testing.T) {
	for _, c := range []struct{ max, want float64 }{{0, 300}, {50, 50}, {1e4, 1000}, {math.MaxFloat64, 1000}} {
		cfg := config(2, constant("long", 1000, .5, 500), constant("b", 10, .5, 500))
		r := run(t, cfg, &rlcore.Decider{
			Policy: only("0"),
			Guard:  rlcore.NewGuard(rlcore.Rules{MaxDelayS: c.max, Bare: true}),
		})
		near(t, "start", r.Jobs[1].StartS, c.want)
		if g := r.Jobs[1].GPU; c.want < 1000 && g != 1 {
			t.Errorf("MaxDelayS %v: it starts next to the other on GPU %d", c.max, g)
		}
	}
}

// The time next to an idle GPU counts once, from the arrival on, and only for jobs that
// may use that GPU; next to busy GPUs no job is delayed.
func TestWhatIsDelay(t *testing.T) {
	cfg := config(3, constant("long", 100, .5, 500), constant("b", 10, .5, 500), constant("c", 10, .5, 500),
		constant("d", 10, .5, 500))
	cfg.Jobs[1].SubmitS = 20               // may use the two idle ones
	cfg.Jobs[2].GPUs = rlcore.NewGPUSet(0) // only the busy one
	cfg.Jobs[3].GPUs = rlcore.NewGPUSet(1) // only an idle one
	cfg.Jobs[0].GPUs = rlcore.NewGPUSet(0) // the long one
	cfg.Jobs[3].DelayedS = 5               // before the simulation began
	want := map[string]float64{"1": 80, "2": 0, "3": 105}
	s := must.Get(New(cfg))(t)
	seen := false
	for s.Next() {
		if s.NowS() == 100 && !seen {
			seen = true
			for _, j := range s.State().Pending {
				must.Equal(t, j.DelayedS, want[j.ID], "the delay of job %s", j.ID)
			}
		}
		w := rlcore.NewWindow(nil, s.State(), s.GPU(), 5)
		switch {
		case s.NowS() == 0 && s.GPU() == 0 && s.State().Pending[0].ID == "0":
			s.Start([]int{0})
		case s.NowS() >= 100 && len(w.Jobs) > 0:
			s.Start(w.Jobs[:1])
		default:
			s.Start(nil)
		}
	}
	if _, err := s.Result(); err != nil || !seen {
		t.Error(err, seen)
	}
}

// Whatever the policy prefers: if every job may use every GPU and fits in the windows,
// decisions alone delay no job for longer than MaxDelayS.
func TestDelayIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := anySite(t)
		for i := range cfg.Jobs {
			cfg.Jobs[i].GPUs = nil
		}
		cfg.Jobs = cfg.Jobs[:min(len(cfg.Jobs), rlcore.MaxWindow)]
		cfg.M, cfg.MaxDelayS = rlcore.MaxWindow, rapid.SampledFrom([]float64{0.3, 7, 40}).Draw(t, "longest")
		d := &rlcore.Decider{
			Policy: anyPolicy(t), Guard: rlcore.NewGuard(rlcore.Rules{MaxDelayS: cfg.MaxDelayS, Bare: true}),
			M: cfg.M,
		}
		s := must.Get(New(cfg))(t)
		for s.Next() {
			for _, j := range s.State().Pending {
				if j.DelayedS > cfg.MaxDelayS+rounding {
					t.Fatalf("job %s was delayed for %v s", j.ID, j.DelayedS)
				}
			}
			s.Take(s.Decide(d))
		}
		must.OK(t, must.Err(s.Result()))
	})
}
