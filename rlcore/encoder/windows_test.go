package encoder

import (
	"fmt"
	"math"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

func predictor() rlcore.Predictor { return interference.New(&contention.MPS) }

// profile draws one that validates; long says that it lasts 100 s at least.
func profile(t *rapid.T, long bool) *rlcore.Profile {
	least := 1e-3
	if long {
		least = 100
	}
	part := rapid.Float64Range(0, 1)
	p := &rlcore.Profile{
		App:       rapid.StringMatching(`[a-e]`).Draw(t, "app"),
		DurationS: rapid.Float64Range(least, 1e5).Draw(t, "duration"),
	}
	n := rapid.IntRange(1, 6).Draw(t, "points")
	p.PeriodS = p.DurationS / float64(n) * rapid.Float64Range(0.7, 1.3).Draw(t, "period")
	if rapid.Bool().Draw(t, "knows its steps") {
		p.StepS = rapid.Float64Range(1e-3, 30).Draw(t, "step")
	}
	for range n {
		p.Series = append(p.Series, rlcore.Use{
			GPU: part.Draw(t, "gpu"), Core: part.Draw(t, "core"),
			MemMiB:   rapid.Float64Range(0, 12196).Draw(t, "mem"),
			PCIeMBps: rapid.Float64Range(0, 50000).Draw(t, "pcie"),
		})
	}
	return p
}

// state draws up to three cards, what runs on them and up to 12 pending jobs. known says that all profiles are known.
func state(t *rapid.T, known, long bool) *rlcore.State {
	pool := make([]*rlcore.Profile, rapid.IntRange(1, 4).Draw(t, "profiles"))
	for i := range pool {
		pool[i] = profile(t, long)
	}
	pick := func() *rlcore.Profile {
		if !known && rapid.IntRange(0, 3).Draw(t, "unknown") == 0 {
			return nil
		}
		return rapid.SampledFrom(pool).Draw(t, "profile")
	}
	s := &rlcore.State{}
	for g := range rapid.IntRange(1, 3).Draw(t, "cards") {
		card := rlcore.GPU{ID: fmt.Sprint(g), Spec: rlcore.TitanXp, FreeCPUs: -1, FreeHostMemMiB: -1}
		if rapid.IntRange(0, 4).Draw(t, "link") == 0 {
			card.Spec.PCIeMBps = 0
		}
		if rapid.IntRange(0, 4).Draw(t, "memory") == 0 {
			card.Spec.MemMiB = 0
		}
		for i := range rapid.IntRange(0, 4).Draw(t, "running") {
			r := rlcore.Running{Job: rlcore.Job{ID: fmt.Sprint("r", i), Profile: pick()}, Shares: 20}
			if r.Profile != nil {
				r.DoneS = r.Profile.DurationS * rapid.Float64Range(0, 1).Draw(t, "done")
				r.ElapsedS = r.DoneS * rapid.Float64Range(1, 4).Draw(t, "slowdown")
			} else {
				r.ElapsedS = rapid.Float64Range(0, 1e5).Draw(t, "elapsed")
				r.LimitS = rapid.SampledFrom([]float64{0, 60, 86400}).Draw(t, "limit")
			}
			card.Running = append(card.Running, r)
		}
		s.GPUs = append(s.GPUs, card)
	}
	for i := range rapid.IntRange(0, 12).Draw(t, "pending") {
		j := rlcore.Job{ID: fmt.Sprint(i), Profile: pick()}
		if j.Profile == nil {
			j.LimitS = rapid.SampledFrom([]float64{0, 60, 86400}).Draw(t, "limit")
		}
		if rapid.IntRange(0, 5).Draw(t, "picky") == 0 {
			j.GPUs = rlcore.NewGPUSet(0)
		}
		s.Pending = append(s.Pending, j)
	}
	return s
}

// every returns all combinations of the window, waiting first.
func every(w *rlcore.Window) []rlcore.Combo {
	var out []rlcore.Combo
	for c := rlcore.Combo(0); c < 1<<len(w.Jobs); c++ {
		out = append(out, c)
	}
	return out
}

func window(t *rapid.T, s *rlcore.State) *rlcore.Window {
	g := rapid.IntRange(0, len(s.GPUs)-1).Draw(t, "card")
	w := rlcore.NewWindow(nil, s, g, rapid.IntRange(1, 6).Draw(t, "m"))
	return &w
}

// slower is the state in which everything takes by times as long.
func slower(s *rlcore.State, by float64) *rlcore.State {
	known := map[*rlcore.Profile]*rlcore.Profile{}
	stretch := func(p *rlcore.Profile) *rlcore.Profile {
		if p == nil || known[p] != nil {
			return known[p]
		}
		q := *p
		q.DurationS, q.PeriodS, q.StepS = by*p.DurationS, by*p.PeriodS, by*p.StepS
		known[p] = &q
		return &q
	}
	out := &rlcore.State{NowS: by * s.NowS}
	for _, card := range s.GPUs {
		card.Running = append([]rlcore.Running(nil), card.Running...)
		for i := range card.Running {
			r := &card.Running[i]
			r.Profile, r.DoneS, r.ElapsedS, r.LimitS = stretch(r.Profile), by*r.DoneS, by*r.ElapsedS, by*r.LimitS
		}
		out.GPUs = append(out.GPUs, card)
	}
	for _, j := range s.Pending {
		j.Profile, j.LimitS, j.SubmitS, j.DelayedS = stretch(j.Profile), by*j.LimitS, by*j.SubmitS, by*j.DelayedS
		out.Pending = append(out.Pending, j)
	}
	return out
}

func near(a, b []float64, by float64) bool {
	for i := range a {
		if !(math.Abs(a[i]-b[i]) <= by*max(1, math.Abs(a[i]))) {
			return false
		}
	}
	return len(a) == len(b)
}
