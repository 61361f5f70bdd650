package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
)

// knowing predicts what a table of pairs says, to the last bit.
type knowing Pairs

func (k knowing) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, members []*rlcore.Profile) {
	for i, s := range Pairs(k).Slowdowns(nil, members, nil) {
		dst[i] = rlcore.Prediction{Slowdown: max(1, s)}
	}
}

// Where slowdowns and durations are known, no job ends after its due, whatever the policy prefers, whichever GPUs jobs
// may use and whenever they come; nor does one that fits its limit alone end there.
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
		for range rapid.IntRange(1, 5).Draw(t, "GPUs") {
			cfg.GPUs = append(cfg.GPUs, rlcore.GPUSpec{MemMiB: 12000, MaxClients: rapid.IntRange(2, 4).Draw(t, "clients")})
		}
		partitions := []*rlcore.GPUSet{nil}
		for range rapid.IntRange(0, 2).Draw(t, "partitions") {
			gpus := rapid.SliceOfN(rapid.IntRange(0, len(cfg.GPUs)-1), 1, len(cfg.GPUs)).Draw(t, "partition")
			partitions = append(partitions, rlcore.NewGPUSet(gpus...))
		}
		at := 0.0
		for i := range rapid.IntRange(2, 40).Draw(t, "jobs") {
			j := Arrival{Job: rlcore.Job{
				ID: fmt.Sprint(i), User: "u", SubmitS: at,
				Profile: rapid.SampledFrom(pool).Draw(t, "app"), GPUs: rapid.SampledFrom(partitions).Draw(t, "of"),
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

// A job whose turn is on another GPU doesn't take this one from a job of several GPUs.
func TestATurnIsOnItsGPU(t *testing.T) {
	low := single("low", 2, 200)
	cfg := Config{
		GPUs: slices.Repeat([]rlcore.GPUSpec{{MemMiB: 8000}}, 3), Nodes: []string{"a", "a", "b"}, Truth: Pairs{},
		Jobs: []Arrival{single("first", 0, 100), whole("two", 1, 50, 2, 1), low},
	}
	for i := range cfg.Jobs {
		cfg.Jobs[i].NoShare = true
	}
	want := map[string]string{"first": "0 to 100", "two": "100 to 150 on [0 1]", "low": "2 to 202"}
	must.Equal(t, spans(run(t, cfg, guarded(baseline.Exclusive{}))), want)
}

// Two jobs of any GPU may not change places where a job may come that is confined to the GPU of the shorter one.
func TestPartitionsDivideGPUs(t *testing.T) {
	last := single("last", 1, 10)
	last.GPUs = rlcore.NewGPUSet(1)
	cfg := Config{
		GPUs: slices.Repeat([]rlcore.GPUSpec{{MemMiB: 8000}}, 2), Truth: Pairs{},
		Jobs: []Arrival{single("long", 0, 200), single("short", 0, 100), last},
	}
	for i := range cfg.Jobs {
		cfg.Jobs[i].NoShare = true
	}
	shortest := func(w *rlcore.Window, c rlcore.Combo) float64 {
		sum := 0.0
		for i := range w.Jobs {
			if c.Has(i) {
				sum += 1 / w.Job(i).Profile.DurationS
			}
		}
		return sum
	}
	want := map[string]string{"long": "0 to 200", "short": "0 to 100", "last": "100 to 110"}
	must.Equal(t, spans(run(t, cfg, guarded(choice(shortest)))), want)
}

// Beside jobs of several GPUs the promise is an approximation: Slurm, not the bridge, says on which nodes they start.
// Under exact predictions few jobs are late. The bounds are about twice what these worlds show.
func TestFewAreLateBesideLargeJobs(t *testing.T) {
	const worlds = 200
	jobs, late := map[bool]int{}, map[bool]int{} // by whether they take several GPUs
	for seed := range uint64(worlds) {
		r := rand.New(rand.NewPCG(seed, 0x1a4e))
		cfg := largeJobs(r)
		d := guarded(anyRule(r.Uint64()))
		d.Guard.Predictor, d.M = cfg.Predictor, 4
		res := must.Get(Run(cfg, d))(t)
		for i := range res.Jobs {
			o, several := &res.Jobs[i], cfg.Jobs[i].Foreign
			grace := rlcore.DefaultGrace * o.SoloS
			if several {
				grace = 0
			}
			if jobs[several]++; o.EndS > o.PlainEndS+grace+1e-4 {
				late[several]++
			}
		}
	}
	t.Logf("late: %d of %d sharers, %d of %d jobs of several GPUs", late[false], jobs[false], late[true], jobs[true])
	if late[false]*1000 > 3*jobs[false] || late[true]*100 > 2*jobs[true] {
		t.Errorf("late: %d of %d sharers, %d of %d jobs of several GPUs", late[false], jobs[false], late[true], jobs[true])
	}
}

// largeJobs is a site of known slowdowns on two nodes, where a quarter of the jobs take several GPUs.
func largeJobs(r *rand.Rand) Config {
	table := Pairs{}
	for _, a := range []string{"single", "whole"} {
		for _, b := range []string{"single", "whole"} {
			table[[2]string{a, b}] = 1 + 2*r.Float64()
		}
	}
	cfg := Config{Truth: table, Predictor: knowing(table)}
	for range 3 + r.IntN(4) {
		cfg.GPUs = append(cfg.GPUs, rlcore.GPUSpec{MemMiB: 12000})
		cfg.Nodes = append(cfg.Nodes, []string{"a", "a", "b"}[r.IntN(3)])
	}
	at := 0.0
	for i := range 40 {
		j := single(fmt.Sprint(i), at, 10+490*r.Float64())
		if large := whole(j.ID, at, j.Profile.DurationS, 2, 1); r.IntN(4) == 0 && cfg.Room(&large) {
			j = large
		}
		at += []float64{0, 0, 20, 200}[r.IntN(4)]
		cfg.Jobs = append(cfg.Jobs, j)
	}
	return cfg
}

// guarded decides by a policy under the full guard.
func guarded(p rlcore.Policy) *rlcore.Decider {
	return &rlcore.Decider{Policy: p, Guard: rlcore.NewGuard(rlcore.Rules{}), M: 8}
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
