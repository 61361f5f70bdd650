package sim

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// busySite has more jobs than GPUs, so that decisions pass over jobs.
func busySite(t *rapid.T) Config {
	cfg := Config{Truth: Law{rapid.SampledFrom([]*contention.Law{&contention.MPS, &contention.TimeSlice}).Draw(t, "law")}}
	for range rapid.IntRange(1, 3).Draw(t, "GPUs") {
		cfg.GPUs = append(cfg.GPUs, rlcore.GPUSpec{MemMiB: 12000, PCIeMBps: 32000, SameUser: rapid.Bool().Draw(t, "same user")})
	}
	var pool []*rlcore.Profile
	for i := range rapid.IntRange(1, 4).Draw(t, "apps") {
		pool = append(pool, constant(fmt.Sprint("app", i), rapid.Float64Range(5, 200).Draw(t, "duration"),
			rapid.Float64Range(0.1, 1).Draw(t, "gpu"), rapid.SampledFrom([]float64{500, 3000, 6000, 11000}).Draw(t, "MiB")))
	}
	at := 0.0
	for i := range rapid.IntRange(10, 40).Draw(t, "jobs") {
		j := Arrival{Job: rlcore.Job{
			ID: fmt.Sprint(i), User: rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "user"), SubmitS: at,
			Profile: rapid.SampledFrom(pool).Draw(t, "app"), NoShare: rapid.IntRange(0, 7).Draw(t, "no share") == 7,
		}}
		if rapid.IntRange(0, 9).Draw(t, "unknown") == 9 {
			j.Truth, j.Profile = j.Profile, nil
		}
		if rapid.IntRange(0, 5).Draw(t, "choosy") == 5 {
			j.GPUs = []int{rapid.IntRange(0, len(cfg.GPUs)-1).Draw(t, "GPU")}
		}
		at += rapid.SampledFrom([]float64{0, 0, 3, 40}).Draw(t, "gap")
		cfg.Jobs = append(cfg.Jobs, j)
	}
	return cfg
}

// The bound on passing over is exact: whatever the policy prefers, no job that could have
// started is passed over by more than MaxPassOver decisions, including the one that
// reaches the bound; nor do more of them keep the GPU busy for which a job waits.
func TestPassedOverAtMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := busySite(t)
		g := &rlcore.Guard{Predictor: interference.New(&contention.MPS), MaxPassOver: rapid.IntRange(1, 4).Draw(t, "at most")}
		d := &rlcore.Decider{Policy: anyPolicy(t), Guard: g, M: rapid.IntRange(2, 8).Draw(t, "M")}
		cfg.M = d.M
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		passed := map[string]int{}
		for s.Next() {
			for _, j := range s.State().Pending {
				if j.PassedOver > g.MaxPassOver {
					t.Fatalf("job %s counts as passed over %d times", j.ID, j.PassedOver)
				}
			}
			dec := s.Decide(d)
			for i := range bits.Len32(uint32(dec.Combo)) {
				if dec.Combo.Has(i) || g.Check(&dec.Window, 1<<i) != rlcore.Allowed {
					continue
				}
				id := dec.Window.Job(i).ID
				if passed[id]++; passed[id] > g.MaxPassOver {
					t.Fatalf("at %.1f s %b passes over job %s for the %d. time", s.NowS(), dec.Combo, id, passed[id])
				}
			}
			s.Take(g, dec)
		}
		if _, err := s.Result(); err != nil {
			t.Error(err)
		}
	})
}

// worst is the truth that slows every member by the number of members.
type worst struct{}

func (worst) Slowdowns(dst []float64, p []*rlcore.Profile, _ []contention.Demand) []float64 {
	dst = dst[:0]
	for range p {
		dst = append(dst, float64(len(p)))
	}
	return dst
}

// eager scores combinations arbitrarily, but all of them above waiting.
func eager(seed uint64) policy {
	rule := anyRule(seed)
	return func(w *rlcore.Window, c rlcore.Combo) float64 {
		if c == 0 {
			return -1
		}
		return rule(w, c)
	}
}

// A job that must not share heads an endless stream of jobs that can join. Let E be the
// solo time after which the first GPU would be empty, D the longest job's, S the largest
// slowdown, P = MaxPassOver:
//
//   - once the job has been passed over P times and is first in the queue, it starts within
//     S·E; with one GPU, at the moment when the last of the running jobs ends;
//   - keeping a GPU busy for longer counts as passing over, so whatever the others do the
//     job starts within S·(P+1)·D of being first in the queue.
func TestWholeJobIsNotStarved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpus := rapid.IntRange(1, 3).Draw(t, "GPUs")
		var apps []*rlcore.Profile
		longest := 0.0
		for i := range rapid.IntRange(1, 3).Draw(t, "apps") {
			p := constant(fmt.Sprint("joins", i), rapid.Float64Range(10, 100).Draw(t, "duration"), 0.2, 500)
			longest = max(longest, p.DurationS)
			apps = append(apps, p)
		}
		cfg := config(gpus)
		cfg.Truth = worst{}
		mean := longest / 3 / float64(gpus)
		for i := range 60 * gpus {
			cfg.Jobs = append(cfg.Jobs, Arrival{Job: rlcore.Job{
				ID: fmt.Sprint(i), User: "ann", Profile: rapid.SampledFrom(apps).Draw(t, "app"),
				SubmitS: float64(i) * mean * rapid.Float64Range(0.3, 1).Draw(t, "gap"),
			}})
		}
		slices.SortFunc(cfg.Jobs, func(a, b Arrival) int { return int(a.SubmitS*1e3) - int(b.SubmitS*1e3) })
		k := rapid.IntRange(3*gpus, 20).Draw(t, "place")
		whole := Arrival{Job: rlcore.Job{ID: "whole", User: "ann", Profile: constant("whole", 30, 0.5, 500), SubmitS: cfg.Jobs[k].SubmitS}}
		switch rapid.SampledFrom([]string{"no share", "unknown", "memory", "user"}).Draw(t, "why") {
		case "no share":
			whole.NoShare = true
		case "unknown":
			whole.Truth, whole.Profile = whole.Profile, nil
		case "memory":
			whole.Profile = constant("whole", 30, 0.5, rlcore.TitanXp.MemMiB-300)
		case "user":
			whole.User = "bob"
		}
		cfg.Jobs = slices.Insert(cfg.Jobs, k, whole)
		const members = 4
		g := &rlcore.Guard{MaxPassOver: rapid.IntRange(1, 5).Draw(t, "P"), MaxMembers: members}
		rule := policy(crowd)
		if rapid.Bool().Draw(t, "rule") {
			rule = eager(rapid.Uint64().Draw(t, "seed"))
		}
		d := &rlcore.Decider{Policy: rule, Guard: g, M: 5}
		cfg.M = d.M
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var overdue bool
		var since, empty float64
		var then []string // the jobs that ran on the only GPU
		for s.Next() {
			st := s.State()
			if j := &st.Pending[0]; j.ID == "whole" && j.PassedOver >= g.MaxPassOver && !overdue {
				overdue, since, empty = true, s.NowS(), st.GPUs[0].EmptyInS()
				for k := range st.GPUs {
					empty = min(empty, st.GPUs[k].EmptyInS())
				}
				for k := range st.GPUs[0].Running {
					then = append(then, st.GPUs[0].Running[k].ID)
				}
			}
			s.Take(g, s.Decide(d))
		}
		r, err := s.Result()
		if err != nil {
			t.Fatal(err)
		}
		start := r.Jobs[k].StartS
		first := whole.SubmitS
		for i := range r.Jobs[:k] {
			first = max(first, r.Jobs[i].StartS)
		}
		if limit := first + members*float64(g.MaxPassOver+1)*longest; start > limit+rounding {
			t.Errorf("the first since %.1f s, it starts at %.1f s, later than %.1f s", first, start, limit)
		}
		if !overdue {
			return
		}
		if start > since+members*empty+rounding {
			t.Errorf("passed over often enough at %.1f s, when a GPU was to be empty in %.1f s, it starts at %.1f s", since, empty, start)
		}
		last := since
		for i := range r.Jobs {
			if slices.Contains(then, r.Jobs[i].ID) {
				last = max(last, r.Jobs[i].EndS)
			}
		}
		if gpus == 1 && start != last {
			t.Errorf("the running jobs have ended by %.3f s, it starts at %.3f s", last, start)
		}
	})
}
