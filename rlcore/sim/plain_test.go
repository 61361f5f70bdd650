package sim

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// knowing predicts what a table of pairs says, to the last bit.
type knowing Pairs

func (k knowing) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, members []*rlcore.Profile) {
	for i, s := range Pairs(k).Slowdowns(nil, members, nil) {
		dst[i] = rlcore.Prediction{Slowdown: max(1, s)}
	}
}

// Where slowdowns and durations are known, no job ends after its due, whatever the policy
// prefers and whenever jobs come; nor does one that fits its limit alone end there.
func TestDuesAreKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := Pairs{}
		var pool []*rlcore.Profile
		for i := range rapid.IntRange(1, 5).Draw(t, "apps") {
			pool = append(pool, constant(fmt.Sprint("app", i), rapid.Float64Range(10, 500).Draw(t, "duration"), .5, 500))
			for k := range i + 1 {
				for _, pair := range [][2]int{{i, k}, {k, i}} {
					table[[2]string{fmt.Sprint("app", pair[0]), fmt.Sprint("app", pair[1])}] = rapid.Float64Range(1, 3).Draw(t,
						"slowdown")
				}
			}
		}
		cfg := Config{Truth: table, Predictor: knowing(table)}
		for range rapid.IntRange(1, 3).Draw(t, "GPUs") {
			cfg.GPUs = append(cfg.GPUs, rlcore.GPUSpec{MemMiB: 12000, MaxClients: rapid.IntRange(2, 4).Draw(t, "clients")})
		}
		at := 0.0
		for i := range rapid.IntRange(2, 40).Draw(t, "jobs") {
			j := Arrival{Job: rlcore.Job{
				ID: fmt.Sprint(i), User: "u", SubmitS: at,
				Profile: rapid.SampledFrom(pool).Draw(t, "app"),
			}}
			if rapid.Bool().Draw(t, "limited") {
				j.LimitS = j.Profile.DurationS * rapid.Float64Range(1.01, 3).Draw(t, "limit")
			}
			j.NoShare = rapid.IntRange(0, 7).Draw(t, "no share") == 7
			at += rapid.SampledFrom([]float64{0, 0, 20, 200}).Draw(t, "gap")
			cfg.Jobs = append(cfg.Jobs, j)
		}
		grace := rapid.SampledFrom([]float64{.05, .1, .5}).Draw(t, "grace")
		g := rlcore.NewGuard(rlcore.Rules{Predictor: cfg.Predictor, Grace: grace})
		r := must.Get(Run(cfg, &rlcore.Decider{Policy: anyPolicy(t), Guard: g, M: rapid.IntRange(1, 8).Draw(t, "M")}))(t)
		if r.Harmed > 0 {
			t.Fatalf("%d jobs harmed by their limits", r.Harmed)
		}
		for i := range r.Jobs {
			if o := &r.Jobs[i]; o.EndS > o.PlainEndS+grace*o.SoloS+1e-4 {
				t.Fatalf("job %s of %.0f s ends at %v; plain end %v", o.ID, o.SoloS, o.EndS, o.PlainEndS)
			}
		}
	})
}

// The plain ends are those of a simulation in which nobody shares.
func TestPlainEnds(t *testing.T) {
	cfg := catalogue(t, 2, 40, 3)
	for i := range cfg.Jobs {
		cfg.Jobs[i].SubmitS = float64(i) * 20
	}
	shared := run(t, cfg, decider(t, "greedy"))
	alone := run(t, cfg, &rlcore.Decider{
		Policy: choice(crowd),
		Guard:  rlcore.NewGuard(rlcore.Rules{MaxMembers: 1, Bare: true}), M: 1,
	})
	for i := range shared.Jobs {
		if got, want := shared.Jobs[i].PlainEndS, alone.Jobs[i].EndS; math.Abs(got-want) > 1e-6*want {
			t.Errorf("job %d: plain end %v, alone it ends at %v", i, got, want)
		}
		if by, late := alone.Jobs[i].Late(); late || by > 1e-6 {
			t.Errorf("job %d is late by %v with a whole GPU", i, by)
		}
	}
}
