package history

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// used is a record of a run that used its GPU so much in each minute.
func used(gpu ...float64) *Record {
	r := &Record{Record: gpuprof.Record{
		JobID: 1, Node: "n1", User: "ann", Start: at(0), End: at(float64(len(gpu))), PeriodS: 60, Samples: 60 * len(gpu),
		GPUs: []gpuprof.GPU{{MemMiB: 10000}},
		Mean: rlcore.Use{MemMiB: 2500}, Peak: rlcore.Use{MemMiB: 4000}, Power: &gpuprof.Power{EnergyJ: 7200},
	}}
	for _, v := range gpu {
		r.Series = append(r.Series, rlcore.Use{GPU: v, Core: v / 2})
		r.Mean.GPU += v / float64(len(gpu))
	}
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6*max(1, math.Abs(a), math.Abs(b)) }

func flat(gpu float64) *rlcore.Profile {
	return &rlcore.Profile{DurationS: 60, PeriodS: 60, Series: []rlcore.Use{{GPU: gpu}}}
}

func TestUseOfARunAlone(t *testing.T) {
	idle := make([]float64, 12)
	r := used(append([]float64{1, 0.5, 0, 0.5}, idle...)...)
	u := useOf(r, nil, nil)
	want := Use{
		KnownS: 960, ComputedS: 120, IdleKnownS: 960, IdleS: 720, MeanMiB: 2500, PeakMiB: 4000, CardMiB: 10000,
		EnergyJ: 7200,
	}
	must.Equal(t, *u, want)
}

// A break of ten minutes is no idleness, one of eleven is.
func TestAShortBreakIsNotIdle(t *testing.T) {
	for minutes, want := range map[int]float64{10: 0, 11: 660} {
		if u := useOf(used(slices.Concat([]float64{1}, make([]float64, minutes), []float64{1})...), nil,
			nil); u.IdleS != want {
			t.Errorf("%d minutes: idle for %v s", minutes, u.IdleS)
		}
	}
}

func TestWhatARecordDoesNotTellIsNotKnown(t *testing.T) {
	r := used(0, 0, 0)
	r.Unknown = []string{"gpu", "mem", "power"}
	u := useOf(r, nil, nil)
	must.Equal(t, [4]float64{u.KnownS, u.IdleKnownS, u.CardMiB, u.EnergyJ}, [4]float64{})
	r = used(0.5, 0.5)
	r.Samples = 0
	must.Equal(t, useOf(r, nil, nil), nil, "nothing was sampled")
	r = used(1, 1)
	r.MissedS = 60
	if u := useOf(r, nil, nil); !near(u.KnownS, 60) || !near(u.ComputedS, 60) {
		t.Errorf("the agent was away for half of it: %+v", *u)
	}
}

func beside(r *Record, from, to float64) *Record {
	r.Neighbours = append(r.Neighbours, gpuprof.Neighbour{JobID: 2, From: at(from), To: at(to)})
	return r
}

func TestSharersAreToldApartByTheirProcesses(t *testing.T) {
	u := useOf(beside(used(0.8, 0.8), 1, 2), nil, nil)
	if !near(u.ComputedS, 0.8*60+0.4*60) || u.SplitS != 0 || u.SharedS != 60 || u.EnergyJ != 0 {
		t.Errorf("%+v", *u)
	}
}

func TestSharersAreSplitByTheirProfiles(t *testing.T) {
	r := beside(used(0.8, 0.8), 1, 2)
	r.Mixed = []string{"gpu", "core", "mem", "power"}
	u := useOf(r, flat(0.6), []CoRunner{{Profile: flat(0.2)}})
	if !near(u.ComputedS, 0.8*60+0.6*60) || !near(u.SplitS, 36) || u.CardMiB != 0 || u.IdleKnownS != 60 {
		t.Errorf("%+v", *u)
	}
	must.Equal(t, useOf(r, flat(0.6), make([]CoRunner, 1)).KnownS, 60, "nothing is known of the other")
}

// Whoever was there when: the sharers' parts add up to what the GPU did, and nobody computes, idles or shares for
// longer than it was there.
func TestPartsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "minutes")
		gpu := rapid.SliceOfN(rapid.Float64Range(0, 1), n, n).Draw(t, "gpu")
		k := rapid.IntRange(2, 4).Draw(t, "jobs")
		var profiles []*rlcore.Profile
		for range k {
			profiles = append(profiles, flat(rapid.Float64Range(0.01, 1).Draw(t, "asks")))
		}
		sum, card := 0.0, 0.0
		for _, v := range gpu {
			card += 60 * v
		}
		for i := range k {
			r := used(gpu...)
			r.Mixed = []string{"gpu", "core"}
			var others []CoRunner
			for m := range k {
				if m != i {
					beside(r, 0, float64(n))
					others = append(others, CoRunner{Profile: profiles[m]})
				}
			}
			u := useOf(r, profiles[i], others)
			sum += u.ComputedS
			if all := r.DurationS() + 1e-6; u.ComputedS > all || u.IdleS > all || u.SharedS > all || u.KnownS > all ||
				u.IdleS > u.IdleKnownS+1e-6 || u.SplitS > u.ComputedS+1e-6 {
				t.Fatalf("%+v of %v s", *u, all)
			}
		}
		if !near(sum, card) {
			t.Fatalf("the parts are %v s of %v", sum, card)
		}
	})
}

// What a run on several nodes did is the mean over its GPUs; memory and energy are sums.
func TestUseOnSeveralNodes(t *testing.T) {
	one := &Use{KnownS: 100, ComputedS: 40, CardMiB: 1000, EnergyJ: 5}
	u := one.and(&Use{KnownS: 100, ComputedS: 80, CardMiB: 3000, EnergyJ: 7}, 1, 3)
	must.Equal(t, *u, Use{KnownS: 100, ComputedS: 70, CardMiB: 4000, EnergyJ: 12})
}

func TestFootprintOfARun(t *testing.T) {
	r := Run{
		ID: 3, Ref: "1", User: "ann", Mode: "active", Start: at(10), End: at(40), GPUs: []int{0}, Shares: 50, Node: "n1",
		CoRunners: []CoRunner{{Ref: "2"}}, Outcome: &Outcome{SoloS: 1200, Slowdown: 1.5},
		Ending: Ending{How: job.Description{State: "COMPLETED"}, PlainEnd: at(60)},
	}
	f := r.Footprint()
	// Plain Slurm would have started it at 40: it waited 30 minutes less, and ran 10 longer.
	if f.GPUs != 0.5 || f.Whole || !f.Timed || f.SavedS != 1800 || f.LostS != 600 || len(f.Harm) != 0 || !f.Judged {
		t.Errorf("%+v", f)
	}
	r.WholeGPUs, r.GPUs, r.Mode = 1, []int{0, 1}, "shadow"
	if f := r.Footprint(); f.GPUs != 2 || f.Timed {
		t.Errorf("%+v", f)
	}
	r.WholeGPUs, r.Shares, r.Outcome = 0, 0, nil
	if f := r.Footprint(); f.GPUs != 0 || f.Judged {
		t.Errorf("what it held isn't known: %+v", f)
	}
	// Accounting counts whole seconds; a run within one of them was there all the same.
	r.Allotted, r.Start, r.End = at(10), at(10).Add(200*time.Millisecond), at(10).Add(700*time.Millisecond)
	if f, ok := r.counted(); !ok || f.End.Sub(f.Start) != 500*time.Millisecond {
		t.Errorf("of a run within a second: %+v", f)
	}
	r.End = r.End.Add(time.Second)
	if f, ok := r.counted(); !ok || f.End.Sub(f.Start) != time.Second {
		t.Errorf("of a run of more than a second: %+v", f)
	}
}
