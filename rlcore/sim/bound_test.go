package sim

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// No schedule is below the bound: what policies do that follow no rule but the card's own, on sites
// under the law and with measured pairs and groups, never is.
func TestNothingIsBelowTheLowerBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		r := rand.New(rand.NewPCG(seed, 3))
		var ps []*rlcore.Profile
		for i := range 4 {
			ps = append(ps, constant(string(rune('a'+i)), 20+200*r.Float64(), r.Float64(), 7000*r.Float64()))
		}
		var jobs []*rlcore.Profile
		for range 2 + r.IntN(12) {
			jobs = append(jobs, ps[r.IntN(len(ps))])
		}
		cfg := config(1+r.IntN(3), jobs...)
		if r.IntN(2) == 0 {
			poisson(cfg.Jobs, 30*r.Float64(), r)
		}
		if r.IntN(2) == 0 {
			table := NewMeasured()
			for _, a := range ps {
				for _, b := range ps {
					table.Add(1+r.Float64(), a.App, b.App)
					table.Add(1+r.Float64(), a.App, b.App, ps[r.IntN(len(ps))].App)
				}
			}
			cfg.Truth = table
		} else if r.IntN(2) == 0 {
			cfg.Truth = Law{&contention.TimeSlice}
		}
		for name, pick := range map[string]choice{
			"crowd": crowd,
			"alone": func(_ *rlcore.Window, c rlcore.Combo) float64 { return -float64(c.Len()*c.Len() - c.Len()) },
		} {
			res := must.Get(Run(cfg, &rlcore.Decider{Policy: pick, Guard: Bare()}))(t)
			if least := LowerBound(&cfg, policy.Makespan); res.MakespanS < least*(1-1e-9) {
				t.Errorf("%s: a makespan of %v, below %v", name, res.MakespanS, least)
			}
			if least := LowerBound(&cfg, policy.Turnaround); res.MeanTurnaroundS < least*(1-1e-9) {
				t.Errorf("%s: a mean turnaround of %v, below %v", name, res.MeanTurnaroundS, least)
			}
		}
	})
}

// Where all is known by hand the bound is tight: jobs that fill a card, one after the other,
// shortest first, take the mean busy times and half of each run.
func TestLowerBoundByHand(t *testing.T) {
	cfg := config(1, constant("a", 100, 1, 9000), constant("b", 300, 1, 9000))
	near(t, "makespan", LowerBound(&cfg, policy.Makespan), 400)
	near(t, "turnaround", LowerBound(&cfg, policy.Turnaround), (100+400)/2)
	cfg.Jobs[1].SubmitS = 1000
	near(t, "makespan of two that don't meet", LowerBound(&cfg, policy.Makespan), 1300)
	near(t, "turnaround of two that don't meet", LowerBound(&cfg, policy.Turnaround), (100+300)/2)
}
