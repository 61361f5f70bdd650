package experiment

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
	"github.com/slurmbridge/slurmbridge/slurmbridge/replay"
)

// flat is a profile that never changes.
func flat(name string, duration, gpu, mib float64) *rlcore.Profile {
	return &rlcore.Profile{
		App: name, DurationS: duration, PeriodS: duration,
		Series: []rlcore.Use{{GPU: gpu, Core: gpu, MemMiB: mib}},
	}
}

// past is a small trace: jobs of known and unknown length, one of two GPUs of which only one has the memory, one
// too large for the card.
func past() *Trace {
	return &Trace{
		GPUs: []rlcore.GPUSpec{{MemMiB: 4000}, {MemMiB: 8000}},
		Profiles: []*rlcore.Profile{
			flat("a", 60, 0.3, 1000), flat("b", trace.UnknownDurationS, 0.5, 2000),
			flat("c", 100, 0.9, 6000), flat("large", 10, 0.1, 9000),
		},
		Jobs: []history.Run{
			replay.Run(history.Run{Ref: "1", App: "a"}, 1000, 0, 100),
			replay.Run(history.Run{Ref: "2", App: "a", User: "u"}, 1000, 90, 0),
			replay.Run(history.Run{Ref: "3", App: "b"}, 1005, 30, 0),
			replay.Run(history.Run{Ref: "4", App: "c"}, 1010, 0, 0),
			replay.Run(history.Run{Ref: "5", App: "c", WholeGPUs: 2}, 1010, 0, 0),
			replay.Run(history.Run{Ref: "6", App: "large"}, 1020, 0, 0),
		},
	}
}

func TestReady(t *testing.T) {
	r := must.Get(past().Ready(&Options{M: 5}))(t)
	if r.Closed || r.World.M != 5 || len(r.Config.GPUs) != 2 {
		t.Errorf("closed: %v, window %d, %d GPUs", r.Closed, r.World.M, len(r.Config.GPUs))
	}
	must.Equal(t, r.Skipped, map[string]int{"more GPUs than there are": 1, "more memory than a GPU has": 1})
	type job struct {
		id                          string
		submit, told, really, limit float64
	}
	var got []job
	for _, j := range r.Config.Jobs {
		got = append(got, job{j.ID, j.SubmitS, j.Profile.DurationS, j.Truth.DurationS, j.LimitS})
		must.Equal(t, j.Truth.PeriodS, j.Truth.DurationS, "job %s: period", j.ID)
		must.Equal(t, j.Truth.Mean(), j.Profile.Mean(), "job %s: mean use", j.ID)
	}
	// Times count from the first; a decision is told the application's length, where that is known.
	must.Equal(t, got, []job{
		{"1", 0, 60, 60, 100}, {"2", 0, 60, 90, 0}, {"3", 5, 30, 30, 0}, {"4", 10, 100, 100, 0},
	}, "jobs")

	both := past()
	both.Jobs[4].App = "a"
	r = must.Get(both.Ready(&Options{M: 5}))(t)
	if j := &r.Config.Jobs[4]; r.Skipped["more GPUs than there are"] != 0 || !j.Foreign || j.PerNode != 2 {
		t.Errorf("of two GPUs: %+v, left out: %v", j.Job, r.Skipped)
	}

	once := past()
	for i := range once.Jobs {
		once.Jobs[i].Ready = once.Jobs[0].Ready
	}
	if r, err := once.Ready(&Options{M: 5}); err != nil || !r.Closed {
		t.Errorf("all at once: closed %v, %v", r.Closed, err)
	}
}

// Job 2 takes half as long again as its application. That is told to the site, or not.
func TestKnownDurations(t *testing.T) {
	r := must.Get(past().Ready(&Options{M: 5}))(t)
	for i, j := range r.knowing(0, 1).Config.Jobs {
		must.Equal(t, j.Profile.DurationS, j.Truth.DurationS, "how long job %d is expected to take, and does", i)
		must.Equal(t, j.Profile.App, j.Truth.App, "job %d", i)
	}
	lo, hi := math.Inf(1), 0.0
	for seed := range uint64(50) {
		for _, j := range r.knowing(0.2, seed).Config.Jobs {
			x := j.Profile.DurationS / j.Truth.DurationS
			lo, hi = min(lo, x), max(hi, x)
		}
	}
	if !(lo >= 0.8 && lo < 0.85 && hi <= 1.2 && hi > 1.15) {
		t.Errorf("durations are wrong by factors from %v to %v", lo, hi)
	}
	must.Equal(t, r.Config.Jobs[1].Profile.DurationS, 60, "the replay's own jobs")
}

func TestReadyRefuses(t *testing.T) {
	for _, c := range []struct {
		want  string
		spoil func(*Trace)
	}{
		{`two profiles of "a"`, func(t *Trace) { t.Profiles = append(t.Profiles, flat("a", 1, 1, 1)) }},
		{`job 3: neither its line nor the profile of "b" says how long it takes`, func(t *Trace) { t.Jobs[2].End = t.Jobs[2].Start }},
		{"no job is left of 1", func(t *Trace) { t.Jobs = t.Jobs[5:] }},
		{"no job is left of 0", func(t *Trace) { t.Jobs = nil }},
		{`pairs of "a" weren't measured`, func(t *Trace) {
			t.Pairs = []trace.Pair{{Victim: "a", Aggressor: "b", Slowdown: 2}}
			for i := range 300 {
				t.Profiles = append(t.Profiles, flat(fmt.Sprint(i), 1, .1, 1))
			}
		}},
	} {
		tr := past()
		c.spoil(tr)
		if _, err := tr.Ready(&Options{M: 5}); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	for want, o := range map[string]Options{
		"no objective": {Objective: "fame"}, "a part from 0 to below 1": {DurationError: func() *float64 { x := 1.0; return &x }()}, "window 13": {M: 13}, "window -1": {M: -1}, "seeds -1": {Seeds: -1}, `no policy "nobody"`: {Policies: []string{"nobody"}},
	} {
		must.Fail(t, must.Err(Replay(t.Context(), past(), o)), want)
	}
	none := past()
	none.GPUs = nil
	must.Is(t, must.Err(Replay(t.Context(), none, Options{})), ErrTrace, "no GPU")
}

// TestThreeMeasuredMeet: of jobs whose pairs were measured more than two may share. The measured
// excesses, means of what was measured twice, add up, unless the group was measured itself.
func TestThreeMeasuredMeet(t *testing.T) {
	tr := &Trace{GPUs: []rlcore.GPUSpec{{MemMiB: 8000}}, Profiles: []*rlcore.Profile{flat("a", 100, 0.1, 500)}}
	tr.Pairs = []trace.Pair{{Victim: "a", Aggressor: "a", Slowdown: 1}, {Victim: "a", Aggressor: "a", Slowdown: 1.2}}
	for _, id := range []string{"1", "2", "3"} {
		tr.Jobs = append(tr.Jobs, replay.Run(history.Run{Ref: id, App: "a"}, 0, 0, 0))
	}
	for _, want := range []float64{1.2, 1.5} {
		r := must.Get(tr.Ready(&Options{M: 5}))(t)
		c := must.Get(r.World.Prepare(t.Context(), "greedy", r.believedLaw(&contention.MPS), Effort{Tune: 2}, 1))(t)
		res := must.Get(c.Run(r.Config))(t)
		for i := range res.Jobs {
			must.Near(t, res.Jobs[i].Slowdown, want, 1e-9, "the slowdown of job %d of three", i)
		}
		tr.Pairs = append(tr.Pairs, trace.Pair{Victim: "a", Aggressor: "a", More: []string{"a"}, Slowdown: 1.5})
	}
}

// A site that has seen co-runs believes other slowdowns from the start.
func TestObservedBeforeTheReplay(t *testing.T) {
	tr := &Trace{
		GPUs: []rlcore.GPUSpec{{MemMiB: 8000}}, Profiles: []*rlcore.Profile{flat("a", 100, 0.6, 500)},
		Jobs: []history.Run{replay.Run(history.Run{Ref: "1", App: "a"}, 0, 0, 0)},
	}
	var predicted [2]float64
	for i := range predicted {
		r := must.Get(tr.Ready(&Options{M: 5}))(t)
		var p [2]rlcore.Prediction
		r.World.Model().Predict(p[:], &tr.GPUs[0], []*rlcore.Profile{tr.Profiles[0], tr.Profiles[0]})
		predicted[i] = p[0].Slowdown
		tr.Observed = slices.Repeat([]trace.Pair{{Victim: "a", Aggressor: "a", Slowdown: 3}}, 3)
	}
	if predicted[1] < predicted[0]+0.5 {
		t.Errorf("predicted %v before, %v after three slowdowns of 3", predicted[0], predicted[1])
	}
}

// TestUnmeasuredPairsNeverMeet: not under any policy, learners of images too.
func TestUnmeasuredPairsNeverMeet(t *testing.T) {
	tr := &Trace{
		GPUs:     []rlcore.GPUSpec{{MemMiB: 8000}},
		Profiles: []*rlcore.Profile{flat("a", 60, 0.2, 500), flat("b", 50, 0.2, 500), flat("c", 40, 0.2, 500)},
		Pairs: []trace.Pair{
			{Victim: "a", Aggressor: "b", Slowdown: 1.1},
			{Victim: "b", Aggressor: "a", Slowdown: 1.3},
			{Victim: "a", Aggressor: "c", Slowdown: 1},
		},
	}
	for i, name := range []string{"a", "b", "c", "a", "c", "b", "a"} {
		tr.Jobs = append(tr.Jobs, replay.Run(history.Run{Ref: string(rune('1' + i)), App: name}, 0, 0, 0))
	}
	r := must.Get(tr.Ready(&Options{M: 5}))(t)
	train := r.believedLaw(&contention.MPS)
	check := func(name string, res *sim.Result) {
		t.Helper()
		met := 0
		for i, x := range res.Jobs {
			beside := 0
			for k, y := range res.Jobs {
				if i == k || x.StartS >= y.EndS-1e-9 || y.StartS >= x.EndS-1e-9 {
					continue
				}
				app, other := tr.Jobs[i].App, tr.Jobs[k].App
				if beside++; app+other != "ab" && app+other != "ba" {
					t.Errorf("%s: %s beside %s, which nobody measured", name, app, other)
				}
				if most := 1.3; x.Slowdown > most+1e-9 {
					t.Errorf("%s: %s slows by %v", name, app, x.Slowdown)
				}
			}
			met += min(beside, 1)
		}
		if met == 0 && name != "fifo" {
			t.Errorf("%s lets nobody meet", name)
		}
	}
	for _, name := range []string{"fifo", "tetris", "random", "greedy", "dqn", "deeprm_max"} {
		c := must.Get(r.World.Prepare(t.Context(), name, train, hasty, 1))(t)
		res := must.Get(c.Run(r.Config))(t)
		check(name, res)
	}
}

// TestTrainingDrawsFromTheTrace: its applications, as long as a decision is told, at about its pace.
func TestTrainingDrawsFromTheTrace(t *testing.T) {
	scenario, w, err := past().Training(4)
	if err != nil || w.M != 4 {
		t.Fatal(err)
	}
	sum, n := 0.0, 0
	for seed := range uint64(40) {
		cfg := jobSet(t, scenario, seed)
		if len(cfg.Jobs) < 20 || len(cfg.GPUs) != 2 {
			t.Fatalf("%d jobs on %d GPUs", len(cfg.Jobs), len(cfg.GPUs))
		}
		for i, j := range cfg.Jobs {
			// Nor is a training rewarded for jobs that end early.
			if j.Profile.App == "large" || j.Truth != j.Profile || j.LimitS > 0 || i > 0 && j.SubmitS < cfg.Jobs[i-1].SubmitS {
				t.Fatalf("job %d: %+v", i, j)
			}
		}
		sum, n = sum+cfg.Jobs[len(cfg.Jobs)-1].SubmitS, n+len(cfg.Jobs)-1
	}
	must.Near(t, sum/float64(n), 10./3, 0.5, "seconds between jobs, here and in the trace")
	general := must.Get(Thesis("general"))(t)
	must.Equal(t, len(must.Get(general(rand.New(rand.NewPCG(1, 1))))(t).Jobs), JobsPerWorkload, "general")
}
