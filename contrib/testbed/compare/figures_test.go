package compare

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// ran is a run whose first job could start at 100 s of the GPU's clock, ten GPU
// seconds a second: one job completes, one fails for memory on the way, one before
// it computes, one leaves nothing.
func ran() *cluster.Ran {
	began := time.Unix(1000, 0)
	return &cluster.Ran{
		Began:  began,
		Before: &gpusim.Snapshot{Figures: gpusim.Figures{T: 100, BusyS: 5, OOM: 1, MemMiBS: 100}},
		After:  &gpusim.Snapshot{Figures: gpusim.Figures{T: 400, BusyS: 60, OOM: 3, MemMiBS: 500}, MemTotalMiB: 10},
		Jobs: []cluster.Job{
			{ID: "1", App: "gromacs", Ended: began.Add(9 * time.Second), Report: app.Report{Status: "finished", StartS: 104, GPUS: 83 * 1.5}},
			{ID: "2", App: "vgg16", Ended: began.Add(3 * time.Second), Report: app.Report{Status: "oom", StartS: 110, GPUS: 10}},
			{ID: "3", App: "vgg11", Ended: began.Add(20 * time.Second), Report: app.Report{Status: "oom"}},
			{ID: "4", App: "hoomd"},
		},
	}
}

func TestSum(t *testing.T) {
	f := must.Get(sum(ran(), 10))(t)
	end := 4 + 83*1.5
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"makespan, to a failed job's end", f.MakespanS, 200},
		{"turnaround of the one that completed", f.MeanTurnaroundS, end},
		{"oom", float64(f.OOM), 2},
		{"failed", float64(f.JobsFailed), 3},
		{"completed", float64(f.JobsCompleted), 1},
		{"slowdown, median", f.SlowdownP50, 1.5},
		{"slowdown, 95th percentile", f.SlowdownP95, 1.5},
		{"idle before, and until the last one fails", f.IdleS, 4 + 200 - end},
		{"makespan without idle", f.BusyMakespanS, end - 4},
		{"failed jobs once more: vgg16, vgg11 and hoomd", f.RerunMakespanS, 200 + 65 + 55 + 60},
		{"utilisation", f.GPUUtil, 55.0 / 200},
		{"utilisation of memory", f.MemUtil, 400.0 / 10 / 200},
	} {
		if math.Abs(c.got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
	none := ran()
	none.Jobs = none.Jobs[1:]
	if _, err := sum(none, 10); err == nil {
		t.Error("no job completed, and no error")
	}
}

// Turnaround counts from a job's submission, and a GPU that waits for jobs isn't idle.
func TestSumOpen(t *testing.T) {
	r := ran()
	second := cluster.Job{ID: "2", App: "gromacs", SubmitS: 200, Ended: r.Began.Add(40 * time.Second), Report: app.Report{Status: "finished", StartS: 307, GPUS: 83}}
	r.Jobs = []cluster.Job{r.Jobs[0], second}
	f := must.Get(sum(r, 10))(t)
	if want := (4 + 83*1.5 + 7 + 83) / 2; math.Abs(f.MeanTurnaroundS-want) > 1e-9 {
		t.Errorf("turnaround %v, want %v", f.MeanTurnaroundS, want)
	}
	if math.Abs(f.IdleS-4-7) > 1e-9 || math.Abs(f.MakespanS-290) > 1e-9 {
		t.Errorf("idle for %v of %v s, want 11 of 290", f.IdleS, f.MakespanS)
	}
}

// Jobs are compared one by one; those that did not complete in both are left out.
func TestAgainstWhole(t *testing.T) {
	one := func(job int, endS float64, ok bool) run {
		return run{job: job, app: "gromacs", endS: endS, finished: ok} // 83 s alone
	}
	plain := &figures{MeanTurnaroundS: 200, runs: []run{one(0, 100, true), one(1, 200, true), one(2, 300, true), one(3, 400, false)}}
	dqn := &figures{MeanTurnaroundS: 150, TimeScale: 4, runs: []run{one(1, 205, true), one(0, 110, true), one(3, 900, true), one(2, 900, false)}}
	r := collect([]*cell{{workload: "random", variant: variant{name: "dqn"}, figures: dqn}, {workload: "random", variant: variant{name: "whole"}, figures: plain}})
	want := againstWhole{TurnaroundRatio: 0.75, Lateness: cluster.Lateness{Later: 2, Late: 1, WorstS: 10}}
	if got := r["random"]["dqn"].againstWhole; got == nil || *got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if plain.againstWhole != nil {
		t.Error("whole against itself")
	}
	body := must.Get(json.Marshal(r["random"]))(t)
	var back map[string]map[string]any
	must.OK(t, json.Unmarshal(body, &back))
	for k, want := range map[string]float64{"turnaround_ratio": 0.75, "jobs_later": 2, "jobs_late": 1, "late_worst_s": 10} {
		if back["dqn"][k] != want {
			t.Errorf("%s is %v", k, back["dqn"][k])
		}
		if _, there := back["whole"][k]; there {
			t.Errorf("whole has %s", k)
		}
	}
}

// The keys that others read.
func TestJSON(t *testing.T) {
	f := must.Get(sum(ran(), 10))(t)
	r := collect([]*cell{{workload: "random", variant: variant{name: "mps_half"}, figures: f}, {workload: "random", variant: variant{name: "dqn"}}})
	file := t.TempDir() + "/compare.json"
	must.OK(t, cluster.WriteJSON(file, r))
	var back map[string]map[string]map[string]any
	must.OK(t, json.Unmarshal(read(t, file), &back))
	got := back["random"]["mps_half"]
	for _, k := range []string{"makespan_s", "mean_turnaround_s", "oom", "jobs_failed", "slowdown_p50", "slowdown_p95"} {
		if v, ok := got[k].(float64); !ok || v <= 0 {
			t.Errorf("%s is %v", k, got[k])
		}
	}
	if _, there := back["random"]["dqn"]; there || len(back) != 1 {
		t.Errorf("what was not measured is there: %v", back)
	}
}

func drawRuns(t *rapid.T) []run {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) run {
		s := rapid.Float64Range(0, 100).Draw(t, "start")
		return run{app: "gromacs", startS: s, endS: s + rapid.Float64Range(0, 30).Draw(t, "for")}
	}), 0, 12).Draw(t, "runs")
}

// occupied agrees with counting instants.
func TestOccupied(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := drawRuns(t)
		const step = 0.01
		want := 0.0
		for x := step / 2; x < 131; x += step {
			if slices.ContainsFunc(runs, func(r run) bool { return r.startS <= x && x < r.endS }) {
				want += step
			}
		}
		if got := occupied(runs); math.Abs(got-want) > 0.02*float64(1+len(runs)) {
			t.Errorf("%g, by counting %g", got, want)
		}
	})
}

// No two runs of a lane go on at the same time.
func TestLanes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := drawRuns(t)
		lane := lanes(runs)
		for i := range runs {
			for k := range i {
				if lane[i] == lane[k] && runs[i].startS < runs[k].endS && runs[k].startS < runs[i].endS {
					t.Errorf("%+v and %+v share lane %d", runs[i], runs[k], lane[i])
				}
			}
		}
	})
}
