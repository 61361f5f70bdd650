package lookahead

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
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

func profile(app string, seconds, gpu float64) *rlcore.Profile {
	return &rlcore.Profile{
		App: app, DurationS: seconds, PeriodS: seconds,
		Series: []rlcore.Use{{GPU: gpu, MemMiB: 1000, Core: .85 * gpu}},
	}
}

// site draws jobs that come over time.
func site(r *rand.Rand, gpus, jobs int, gap float64) sim.Config {
	cfg := sim.Config{
		GPUs:  slices.Repeat([]rlcore.GPUSpec{{Model: "x", MemMiB: 12000}}, gpus),
		Truth: sim.Law{Law: &contention.MPS},
	}
	at := 0.0
	for i := range jobs {
		app := r.IntN(6)
		p := profile(fmt.Sprint(app), 30+600*r.ExpFloat64(), 0.2+0.15*float64(app))
		cfg.Jobs = append(cfg.Jobs, sim.Arrival{Job: rlcore.Job{ID: fmt.Sprint(i), User: "u", Profile: p, SubmitS: at}})
		at += gap * r.ExpFloat64()
	}
	return cfg
}

func run(t testing.TB, cfg sim.Config, policy func(rlcore.Predictor) rlcore.Policy) *sim.Result {
	t.Helper()
	m := interference.New(&contention.MPS)
	cfg.Predictor = m
	res, err := sim.Run(cfg,
		&rlcore.Decider{Policy: policy(m), Guard: rlcore.NewGuard(rlcore.Rules{Predictor: m, MaxSlowdown: 2.5}), M: 12})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func ahead(p rlcore.Predictor) rlcore.Policy { return New(p) }
func srpt(p rlcore.Predictor) rlcore.Policy  { return baseline.NewSRPT(p) }

// Where all is known turnarounds are shorter than srpt's on average, and the same each time.
func TestShorterThanSRPT(t *testing.T) {
	sum := 0.0
	const n = 20
	for seed := range uint64(n) {
		cfg := site(rand.New(rand.NewPCG(seed, 1)), 2, 60, 250)
		a, b := run(t, cfg, ahead), run(t, cfg, srpt)
		sum += math.Log(a.MeanTurnaroundS/b.MeanTurnaroundS) / n
		must.Equal(t, run(t, cfg, ahead).MeanTurnaroundS, a.MeanTurnaroundS, "seed %d", seed)
	}
	t.Logf("turnaround over srpt's: %.3f", math.Exp(sum))
	if sum > -0.005 {
		t.Errorf("turnaround over srpt's: %.3f", math.Exp(sum))
	}
}

// Whatever the State, scores are finite, the same for the same window, and leave the State and
// what its guard has found out as they were.
func TestScores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &rlcore.State{NowS: 1000}
		n := rapid.IntRange(1, 20).Draw(t, "GPUs")
		number := func(lo, hi float64, name string) float64 { return rapid.Float64Range(lo, hi).Draw(t, name) }
		job := func(id string) rlcore.Job {
			j := rlcore.Job{
				ID: id, User: "u", LimitS: rapid.SampledFrom([]float64{0, 600, 1e5}).Draw(t, "limit"),
				CPUs: rapid.IntRange(0, 8).Draw(t, "cores"),
			}
			if rapid.IntRange(0, 4).Draw(t, "known") > 0 {
				j.Profile = profile("a", number(1, 1e5, "work"), number(0, 1, "use"))
			}
			if rapid.IntRange(0, 3).Draw(t, "picky") == 0 {
				j.GPUs = rlcore.NewGPUSet(rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 1, n, rapid.ID[int]).Draw(t, "may use")...)
			}
			if rapid.Bool().Draw(t, "promised") {
				j.PlainEndS = number(0, 1e5, "plain end")
			}
			return j
		}
		for g := range n {
			gpu := rlcore.GPU{
				ID: fmt.Sprint(g), Spec: rlcore.GPUSpec{MemMiB: 12000},
				FreeCPUs: rapid.IntRange(-1, 16).Draw(t, "free"), FreeHostMemMiB: -1,
			}
			for i := range rapid.IntRange(0, 2).Draw(t, "running") {
				r := rlcore.Running{Job: job(fmt.Sprint("r", g, i)), ElapsedS: number(0, 1e5, "elapsed"), Shares: 20}
				r.GPUs, r.Whole = nil, r.Profile == nil
				if r.Profile != nil {
					r.DoneS = min(r.ElapsedS, r.Profile.DurationS)
				}
				gpu.Running = append(gpu.Running, r)
			}
			s.GPUs = append(s.GPUs, gpu)
		}
		for i := range rapid.IntRange(0, 60).Draw(t, "pending") {
			s.Pending = append(s.Pending, job(fmt.Sprint(i)))
		}
		m := interference.New(&contention.MPS)
		guard := rlcore.NewGuard(rlcore.Rules{Predictor: m, MaxSlowdown: 2.5})
		d := rlcore.Decider{Policy: New(m), Guard: guard, M: rapid.IntRange(1, 8).Draw(t, "M")}
		g := rapid.IntRange(0, n-1).Draw(t, "GPU")
		guard.Begin(s) // it notes when jobs have their turn
		before := fmt.Sprintf("%+v", *s)
		dec := d.Decide(s, g)
		first, scores := dec.Combo, slices.Clone(dec.Scores)
		for _, v := range scores {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("scores %v", scores)
			}
		}
		if again := d.Decide(s, g); again.Combo != first || !slices.Equal(again.Scores, scores) {
			t.Fatalf("%b, then %b", first, again.Combo)
		}
		if fmt.Sprintf("%+v", *s) != before {
			t.Fatal("the State is another one now")
		}
	})
}
