package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

func anyProfile(t *rapid.T, app string) *rlcore.Profile {
	part := rapid.Float64Range(0, 1)
	points := rapid.IntRange(1, 6).Draw(t, "points")
	p := &rlcore.Profile{
		App:     app,
		PeriodS: rapid.SampledFrom([]float64{0.5, 1, 2.7, 20}).Draw(t, "period"),
		StepS:   rapid.SampledFrom([]float64{0, 0.01, 0.3, 2}).Draw(t, "step"),
	}
	for range points {
		gpu := part.Draw(t, "gpu")
		p.Series = append(p.Series, rlcore.Use{
			GPU: gpu, Core: gpu * part.Draw(t, "core"),
			MemMiB:   rapid.SampledFrom([]float64{200, 2500, 5500, 9000, 12000}).Draw(t, "MiB"),
			PCIeMBps: rapid.SampledFrom([]float64{0, 1000, 20000, 50000}).Draw(t, "PCIe"),
		})
	}
	// The run may end before its series, or last beyond it.
	p.DurationS = float64(points) * p.PeriodS * rapid.Float64Range(0.3, 1.5).Draw(t, "run")
	return p
}

// anySite is a site with everything that may vary.
func anySite(t *rapid.T) Config {
	cfg := Config{Truth: Law{rapid.SampledFrom([]*contention.Law{&contention.MPS, &contention.TimeSlice}).Draw(t, "law")}}
	for range rapid.IntRange(1, 3).Draw(t, "GPUs") {
		cfg.GPUs = append(cfg.GPUs, rlcore.GPUSpec{
			MemMiB: rapid.SampledFrom([]float64{12000, 24000}).Draw(t, "card"), PCIeMBps: 32000,
			SameUser: rapid.Bool().Draw(t, "same user"), MaxClients: rapid.SampledFrom([]int{0, 2, 16}).Draw(t, "clients"),
		})
	}
	var pool []*rlcore.Profile
	for i := range rapid.IntRange(1, 4).Draw(t, "apps") {
		pool = append(pool, anyProfile(t, fmt.Sprint("app", i)))
	}
	for i := range rapid.IntRange(2, 14).Draw(t, "jobs") {
		j := Arrival{Job: rlcore.Job{
			ID: fmt.Sprint(i), User: rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "user"),
			Profile: rapid.SampledFrom(pool).Draw(t, "app"), NoShare: rapid.IntRange(0, 5).Draw(t, "no share") == 5,
		}}
		if rapid.IntRange(0, 5).Draw(t, "unknown") == 5 {
			j.Truth, j.Profile = j.Profile, nil
		}
		if rapid.IntRange(0, 5).Draw(t, "choosy") == 5 {
			j.GPUs = rlcore.NewGPUSet(rapid.IntRange(0, len(cfg.GPUs)-1).Draw(t, "GPU"))
		}
		if rapid.Bool().Draw(t, "limited") {
			p := j.Truth
			if p == nil {
				p = j.Profile
			}
			j.LimitS = p.DurationS * rapid.SampledFrom([]float64{.3, 1.01, 1.1, 2, 50}).Draw(t, "limit")
		}
		cfg.Jobs = append(cfg.Jobs, j)
	}
	switch rapid.IntRange(0, 2).Draw(t, "arrivals") {
	case 1:
		seed := rapid.Uint64().Draw(t, "seed")
		poisson(cfg.Jobs, rapid.SampledFrom([]float64{0.1, 3, 50, 500}).Draw(t, "gap"), rand.New(rand.NewPCG(seed, seed)))
	case 2: // a trace needn't be in order
		for i := range cfg.Jobs {
			cfg.Jobs[i].SubmitS = float64(rapid.IntRange(0, 40).Draw(t, "submit"))
		}
	}
	if rapid.Bool().Draw(t, "believes") {
		cfg.Predictor = interference.New(&contention.MPS)
	}
	return cfg
}

// anyRule scores combinations arbitrarily but reproducibly.
func anyRule(seed uint64) choice {
	return func(w *rlcore.Window, c rlcore.Combo) float64 {
		h := rand.NewPCG(seed, uint64(c)<<8|uint64(len(w.Jobs)))
		return float64(h.Uint64() >> 11)
	}
}

func anyPolicy(t *rapid.T) rlcore.Policy {
	name := rapid.SampledFrom(append(policy.Names(policy.Live()), "crowd", "rule", "never")).Draw(t, "policy")
	switch name {
	case "crowd":
		return choice(crowd)
	case "never":
		return choice(never)
	case "rule":
		return anyRule(rapid.Uint64().Draw(t, "rule"))
	}
	p := must.Get(policy.New(name, policy.Setup{Predictor: interference.New(&contention.MPS), Seed: 1}))(t)
	return p
}

func overlap(a, b *Outcome) bool {
	return a.GPU == b.GPU && a.StartS < b.EndS-1e-9 && b.StartS < a.EndS-1e-9
}

// checkEnd checks how a job ended.
func checkEnd(t *rapid.T, cfg *Config, j *Arrival, o *Outcome) {
	const tiny = 1e-6
	at := cfg.latestEnd(j, o.SoloS, o.StartS)
	if o.EndS > at+tiny || o.TimedOut && math.Abs(o.EndS-at) > tiny || o.Harmed != (o.TimedOut && o.SoloS < j.LimitS) {
		t.Errorf("%+v with a limit of %v s", *o, j.LimitS)
	}
}

// What holds for any site, jobs and policy.
func TestWhatHoldsForAnySite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := anySite(t)
		bare := rapid.Bool().Draw(t, "bare")
		guard := func() *rlcore.Guard {
			if bare {
				return Bare()
			}
			return rlcore.NewGuard(rlcore.Rules{Predictor: interference.New(&contention.MPS)})
		}
		d := &rlcore.Decider{Policy: anyPolicy(t), Guard: guard(), M: rapid.IntRange(1, 6).Draw(t, "M")}
		play := func() (*Result, *Sim) {
			d.Guard = guard()
			c := cfg
			c.M = d.M
			s := must.Get(New(c))(t)
			for s.Next() {
				s.Take(s.Decide(d))
				for g := range s.devs {
					if d := &s.devs[g]; d.memOf(len(d.members)) > d.spec.MemMiB {
						t.Fatalf("GPU %d holds more than %v MiB", g, d.spec.MemMiB)
					}
				}
			}
			r := must.Get(s.Result())(t)
			return r, s
		}
		r, s := play()
		if again, _ := play(); !reflect.DeepEqual(r, again) {
			t.Fatal("two runs of the same differ")
		}
		if len(r.Jobs) != len(cfg.Jobs) {
			t.Fatalf("%d of %d jobs ended", len(r.Jobs), len(cfg.Jobs))
		}
		failures, timedOut, harmed, solo, work := 0, false, 0, 0.0, 0.0
		first, last := math.Inf(1), 0.0
		for i := range r.Jobs {
			o, j := &r.Jobs[i], &cfg.Jobs[i]
			failures += o.Failures
			if timedOut = timedOut || o.TimedOut; !o.TimedOut {
				solo += o.SoloS
			}
			if o.Harmed {
				harmed++
			}
			checkEnd(t, &cfg, j, o)
			first, last = min(first, j.SubmitS), max(last, o.EndS)
			if o.ID != j.ID || o.StartS < j.SubmitS || !j.MayUse(o.GPU) {
				t.Errorf("job %d: %+v", i, *o)
			}
			if ran := o.EndS - o.StartS; !(o.Slowdown >= 1) && ran > 0 || !o.TimedOut && ran < o.SoloS*(1-1e-9)-rounding {
				t.Errorf("job %d ran for %v s, alone %v; slowdown %v", i, ran, o.SoloS, o.Slowdown)
			}
			if ran := o.EndS - o.StartS; !o.TimedOut && math.Abs(o.Slowdown-max(1, ran/o.SoloS)) > 1e-6*o.Slowdown {
				t.Errorf("job %d is slowed by %v, ran for %v s, alone %v s", i, o.Slowdown, ran, o.SoloS)
			}
			members := 1
			for k := range r.Jobs {
				if k == i || !overlap(o, &r.Jobs[k]) {
					continue
				}
				if j.NoShare || j.Profile == nil {
					t.Errorf("job %d shares with job %d", i, k)
				}
				if cfg.GPUs[o.GPU].SameUser && j.User != cfg.Jobs[k].User {
					t.Errorf("jobs %d and %d belong to two users", i, k)
				}
				if x := &r.Jobs[k]; x.StartS <= o.StartS && o.StartS < x.EndS-1e-9 {
					members++
				}
			}
			if most := cfg.GPUs[o.GPU].MaxClients; members > 5 || most > 0 && members > most {
				t.Errorf("job %d starts as one of %d", i, members)
			}
		}
		for g := range cfg.GPUs {
			work += s.WorkS(g)
		}
		must.Equal(t, r.OOM, failures, "runs lost, in all and by job")
		must.Equal(t, r.Harmed, harmed, "jobs harmed at limits, in all and by job")
		switch {
		case timedOut && work >= solo-1e-4: // and what was lost
		case r.OOM == 0 && math.Abs(work-solo) > 1e-6*solo:
			t.Errorf("%v s of work done, the jobs are %v s", work, solo)
		case work < solo-1e-4:
			t.Errorf("%v s of work done, less than the jobs' %v s", work, solo)
		}
		must.Near(t, r.MakespanS, last-first, 1e-9*last, "makespan")
		for _, u := range []float64{r.GPUUtil, r.MemUtil} {
			if !(u >= 0 && u <= 1+1e-9) {
				t.Errorf("utilisation %v", u)
			}
		}
		if r.OOM == 0 {
			same(t, &cfg, r, cfg.Truth.(Law).Law)
		} else if !bare && cfg.Truth.(Law).Law == &contention.MPS {
			// Under a law that its predictor doesn't know, the guard may misjudge when a job holds how much.
			t.Errorf("%d runs lost behind the guard", r.OOM)
		}
	})
}
