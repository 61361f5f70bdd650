package sim

import (
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
)

func TestBadConfig(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Config)
		says  string
	}{
		"no law":        {func(c *Config) { c.Truth = nil }, "no law"},
		"no GPU":        {func(c *Config) { c.GPUs = nil }, "no GPU"},
		"no memory":     {func(c *Config) { c.GPUs[1].MemMiB = 0 }, "GPU 1 has 0 MiB"},
		"memory NaN":    {func(c *Config) { c.GPUs[0].MemMiB = math.NaN() }, "GPU 0 has NaN MiB"},
		"no profile":    {func(c *Config) { c.Jobs[1].Profile = nil }, "job 1: it has no profile"},
		"zero duration": {func(c *Config) { c.Jobs[0].Profile.DurationS = 0 }, "job 0: bad profile \"a\": duration_s"},
		"wrong belief": {func(c *Config) {
			c.Jobs[1].Truth, c.Jobs[1].Profile = c.Jobs[1].Profile,
				&rlcore.Profile{App: "b"}
		}, "job 1: bad profile"},
		"too large": {func(c *Config) { c.Jobs[1].Profile.Series[0].MemMiB = 20000 }, "job 1: it needs 20000 MiB"},
		"too large there": {
			func(c *Config) { c.GPUs[1].MemMiB, c.Jobs[1].GPUs = 100, rlcore.NewGPUSet(1) },
			"job 1: it needs 500 MiB",
		},
		"GPU out of range": {
			func(c *Config) { c.Jobs[0].GPUs = rlcore.NewGPUSet(0, 2) },
			"job 0: it may use GPUs beyond the 2 there are",
		},
		"arrives at NaN": {func(c *Config) { c.Jobs[0].SubmitS = math.NaN() }, "job 0: it arrives at NaN s"},
		"arrives never":  {func(c *Config) { c.Jobs[0].SubmitS = math.Inf(1) }, "job 0: it arrives at +Inf s"},
		"negative limit": {func(c *Config) { c.Jobs[1].LimitS = -1 }, "job 1: its limit is -1 s"},
		"limit NaN":      {func(c *Config) { c.Jobs[1].LimitS = math.NaN() }, "job 1: its limit is NaN s"},
		"the same ID":    {func(c *Config) { c.Jobs[1].ID = c.Jobs[0].ID }, "job 0: there are two of this ID"},
		"arrives before": {func(c *Config) { c.Jobs[0].SubmitS = -1 }, "job 0: it arrives at -1 s"},
	} {
		cfg := config(2, constant("a", 10, .5, 500), constant("b", 10, .5, 500))
		c.spoil(&cfg)
		_, err := New(cfg)
		must.Is(t, err, ErrBadConfig, name)
		must.Fail(t, err, c.says, name)
	}
}

func TestNoJobs(t *testing.T) {
	r := run(t, config(1), &rlcore.Decider{Policy: baseline.Exclusive{}, Guard: rlcore.NewGuard(rlcore.Rules{})})
	must.Equal(t, r.MakespanS, 0)
	must.Equal(t, r.Jobs, nil)
}

// A simulation whose decisions only wait ends with an error.
func TestDecisionsThatOnlyWaitEnd(t *testing.T) {
	s := must.Get(New(config(2, constant("a", 10, .5, 500))))(t)
	for s.Next() {
		s.Start(nil)
	}
	must.Is(t, must.Err(s.Result()), ErrStuck, "all wait for ever")
}

// A job that one of the cards can't hold waits for the other.
func TestSmallCard(t *testing.T) {
	cfg := config(2, constant("large", 10, .5, 9000), constant("small", 5, .5, 500), constant("large", 10, .5, 9000))
	cfg.GPUs[0].MemMiB = 4000
	for _, d := range []*rlcore.Decider{decider(t, "exclusive"), {Policy: choice(crowd), Guard: Bare()}} {
		r := run(t, cfg, d)
		for _, i := range []int{0, 2} {
			must.Equal(t, r.Jobs[i].GPU, 1, "the card of job %d of 9000 MiB", i)
		}
	}
}

// A job that arrives behind others gets an idle GPU that none of those may use.
func TestArrivalForAnIdleGPU(t *testing.T) {
	cfg := config(2, constant("a", 100, .5, 500), constant("b", 100, .5, 500), constant("c", 100, .5, 500),
		constant("d", 10, .5, 500))
	for i := range 3 {
		cfg.Jobs[i].GPUs = rlcore.NewGPUSet(0)
	}
	cfg.Jobs[3].SubmitS, cfg.Jobs[3].GPUs = 7, rlcore.NewGPUSet(1)
	d := decider(t, "exclusive")
	d.M = 2
	r := run(t, cfg, d)
	near(t, "its start", r.Jobs[3].StartS, 7)
}

// A decision sees only what a site would know.
func TestWhatADecisionSees(t *testing.T) {
	believed := constant("a", 50, .9, 500)
	cfg := config(1, believed, constant("b", 200, .9, 500), constant("c", 10, .1, 500))
	cfg.Jobs[0].Truth = constant("a", 100, .9, 500)
	cfg.Jobs[2].SubmitS = 120
	m := decider(t, "greedy")
	cfg.Predictor = m.Guard.Predictor
	s := must.Get(New(cfg))(t)
	for s.Next() {
		if s.NowS() == 120 {
			on := s.State().GPUs[0].Running
			if len(on) != 2 || on[0].Profile != believed || on[0].ElapsedS != 120 {
				t.Fatalf("running: %+v", on)
			}
			p := make([]rlcore.Prediction, 2)
			cfg.Predictor.Predict(p, &cfg.GPUs[0], []*rlcore.Profile{on[0].Profile, on[1].Profile})
			near(t, "a's progress: later than predicted", on[0].DoneS, rlcore.Believed(120/p[0].Slowdown, 50))
			near(t, "b's progress as predicted", on[1].DoneS, 120/p[1].Slowdown)
			s.Start([]int{0})
			continue
		}
		all := make([]int, len(s.State().Pending))
		for i := range all {
			all[i] = i
		}
		s.Start(all)
	}
	must.OK(t, must.Err(s.Result()))
}

// Idle GPUs come before busy ones, as in the bridge.
func TestIdleFirst(t *testing.T) {
	cfg := config(3, constant("a", 100, .2, 500), constant("b", 100, .2, 500), constant("c", 100, .2, 500))
	cfg.Jobs[1].SubmitS, cfg.Jobs[2].SubmitS = 10, 20
	r := run(t, cfg, decider(t, "greedy"))
	for i := range r.Jobs {
		must.Equal(t, r.Jobs[i].GPU, i, "the GPU of job %d, idle at its arrival", i)
	}
}
