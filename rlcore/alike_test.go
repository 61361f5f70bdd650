package rlcore

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// Jobs of equal Alike are interchangeable for Together: whatever else differs, the answer is the same.
func TestJobsAlikeAreInterchangeable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		profiles := []*Profile{flat("a", 100, 1000), flat("b", 100, 7000), nil}
		some := rapid.Custom(func(t *rapid.T) Running {
			b := rapid.Bool()
			x := Running{Shares: 30, MemLimitMiB: rapid.SampledFrom([]float64{0, 5000}).Draw(t, "limit")}
			x.Profile, x.User = rapid.SampledFrom(profiles).Draw(t, "profile"),
				rapid.SampledFrom([]string{"u", "v"}).Draw(t, "user")
			x.Array, x.ArrayOnly = rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "array"),
				rapid.IntRange(0, 5).Draw(t, "only") == 0
			x.LimitS, x.LimitFixed = rapid.SampledFrom([]float64{0, 110, 1000}).Draw(t, "limit"), b.Draw(t, "fixed")
			x.DeadlineS = rapid.SampledFrom([]float64{0, 0, 150, 1e6}).Draw(t, "deadline")
			x.MaxSlowdown = rapid.SampledFrom([]float64{0, 1.1, 2}).Draw(t, "contract")
			x.NoShare, x.Whole = rapid.IntRange(0, 9).Draw(t, "alone") == 0, rapid.IntRange(0, 9).Draw(t, "whole") == 0
			x.DoneS, x.ElapsedS = rapid.SampledFrom([]float64{0, 50}).Draw(t, "done"),
				rapid.SampledFrom([]float64{0, 60}).Draw(t, "elapsed")
			x.Rank = rapid.SampledFrom([]string{"", "high"}).Draw(t, "rank")
			// What Together doesn't look at:
			x.ID, x.Priority = rapid.String().Draw(t, "ID"), rapid.Float64().Draw(t, "priority")
			x.SubmitS, x.PlainEndS, x.Grace, x.DelayedS = 1, rapid.Float64().Draw(t, "end"),
				rapid.Float64Range(0, 1).Draw(t, "grace"), 3
			x.CPUs, x.HostMemMiB, x.CPUGrain = rapid.IntRange(0, 4).Draw(t, "CPUs"), 100, 2
			x.GPUs, x.PerNode, x.Foreign = NewGPUSet(rapid.IntRange(0, 3).Draw(t, "GPU")), 1, b.Draw(t, "foreign")
			x.startS = rapid.Float64().Draw(t, "start")
			return x
		})
		g := NewGuard(Rules{Predictor: pairwise(1.2), ExtendLimit: rapid.Bool().Draw(t, "extend")})
		spec := TitanXp
		spec.MemLimits, spec.SameUser = rapid.Bool().Draw(t, "limits"), rapid.Bool().Draw(t, "one user")
		a, b, other := some.Draw(t, "a"), some.Draw(t, "b"), some.Draw(t, "other")
		if a.Alike() != b.Alike() {
			b = a
			b.ID, b.Priority, b.PlainEndS, b.Grace, b.CPUs, b.GPUs, b.startS = "b", 1, 2, 3, 4, nil, 5
		}
		if b.Alike() != a.Alike() {
			t.Fatal("jobs that differ in nothing that counts aren't alike")
		}
		with := func(x Running) Veto { return g.Together(&spec, []Running{other, x}, 10) }
		if with(a) != with(b) {
			t.Fatalf("%v with the one, %v with the other: %+v, %+v", with(a), with(b), a, b)
		}
	})
	x, y := Running{Job: Job{LimitFixed: true}}, Running{}
	if x.Alike() == y.Alike() {
		t.Error("a job whose limit is fixed is like one whose limit can be raised")
	}
}

// Where a queue's jobs save time only behind as many jobs as GPUs become free, each decision follows it as far, and no
// farther than its part of a plan's budget.
func TestTheQueueIsFollowedAsFarAsItTakes(t *testing.T) {
	const gpus = 400
	s := &State{}
	for range gpus {
		s.GPUs = append(s.GPUs, card())
	}
	p := flat("a", 100, 100)
	for range 4 * gpus {
		s.Pending = append(s.Pending, Job{User: "u", Profile: p, PlainEndS: 100 * math.Ceil(float64(len(s.Pending)+1)/gpus)})
	}
	g := NewGuard(Rules{Predictor: pairwise(1.04)})
	g.Begin(s)
	w := NewWindow(nil, s, 0, 5)
	g.promise.open(&w)
	budget := g.promise.steps
	if !g.Keeps(&w, 7) {
		t.Error("three jobs together would make others late")
	}
	if used := budget - g.promise.steps; used < gpus-10 || used > gpus+gpus/comparisons+5 {
		t.Errorf("%d jobs are followed until %d GPUs are free in time", used, gpus)
	}
	g.promise.steps = gpus / 2
	if g.Keeps(&w, 7) || g.promise.steps != 0 {
		t.Errorf("more is followed than the budget allows: %d", g.promise.steps)
	}
}
