package compare

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Wrong settings end it before anything starts, in a sentence that names what there is.
func TestWrongSettingsStartNothing(t *testing.T) {
	for args, words := range map[string]string{
		"--workloads gpu_huge":  `--workloads: there is no "gpu_huge"; there are gpu_heavy, gpu_light`,
		"--variants whole,best": `--variants: there is no "best"; there are whole, shard_half`,
		"--load 0":              "0.1 to 10",
		"--jobs 0":              "1 to 1000",
		"--scale NaN":           "--scale",
		"--parallel 0":          "--parallel",
		"random":                "random",
	} {
		c := Command(&cluster.Setup{})
		c.SetArgs(strings.Fields(args))
		c.SilenceErrors, c.SilenceUsage = true, true
		must.Fail(t, c.ExecuteContext(t.Context()), words, args)
	}
}

// Each workload has a cell for each variant, with the same jobs; "open" names the three open ones. What takes longest
// starts first. The bridge decides for what a workload is judged by.
func TestEachWorkloadHasEachVariant(t *testing.T) {
	o := options{
		base: &cluster.Setup{}, workloads: []string{"open", "random"}, jobs: 5, seed: 7, scale: 3, load: 1.2,
		parallel: 2,
	}
	must.OK(t, o.check(t.Context(), []string{"dqn", "whole"}))
	cells := must.Get(o.cells())(t)
	var names, first []string
	for i, c := range cells {
		names = append(names, c.String())
		must.Equal(t, c.apps, cells[i/2*2].apps, c.String())
		decides := map[bool]string{true: "dqn", false: "dqn-makespan"}[c.at != nil]
		must.Equal(t, c.setup.Policy, map[string]string{"dqn": decides}[c.variant.name])
	}
	for _, c := range longestFirst(cells) {
		first = append(first, c.variant.name)
	}
	must.Equal(t, names, []string{
		"random, whole", "random, dqn", "open-1, whole", "open-1, dqn", "open-2, whole", "open-2, dqn", "open-3, whole",
		"open-3, dqn",
	})
	must.Equal(t, first, slices.Concat(slices.Repeat([]string{"whole"}, 4), slices.Repeat([]string{"dqn"}, 4)))
}

// Open workloads have the jobs of the random one, come at the load that was asked for, and differ by their seeds.
func TestOpenJobs(t *testing.T) {
	o := options{jobs: 1000, seed: 7, load: 1.2}
	draw := func(name string) workload { return must.Get(o.workload(name))(t) }
	random, first, second := draw("random"), draw("open-1"), draw("open-2")
	must.Equal(t, random.at, nil, "times of a closed workload")
	must.Equal(t, first.apps, random.apps)
	must.Equal(t, draw("open-1"), first, "jobs of one seed")
	at := first.at
	if load := cluster.SoloS(first.apps) / at[len(at)-1]; at[0] != 0 || !slices.IsSorted(at) || math.Abs(load-1.2) > 0.12 {
		t.Errorf("they come at %v", at)
	}
	if slices.Equal(first.apps, second.apps) || slices.Equal(at, second.at) {
		t.Error("another seed, and the same jobs or times")
	}
}

// aRun is a run whose first job could start at 100 s of the GPU's clock, ten GPU seconds a second: one job completes,
// one fails for memory on the way, one before it computes, one leaves nothing.
func aRun() *ran {
	began := time.Unix(1000, 0)
	return &ran{
		began:  began,
		before: &gpusim.Snapshot{Figures: gpusim.Figures{T: 100, BusyS: 5, OOM: 1, MemMiBS: 100}},
		after:  &gpusim.Snapshot{Figures: gpusim.Figures{T: 400, BusyS: 60, OOM: 3, MemMiBS: 500}, MemTotalMiB: 10},
		jobs: []job{
			{
				id: "1", app: "gromacs", ended: began.Add(9 * time.Second),
				Report: app.Report{Status: "finished", StartS: 104, GPUS: 83 * 1.5},
			},
			{id: "2", app: "vgg16", ended: began.Add(3 * time.Second), Report: app.Report{Status: "oom", StartS: 110, GPUS: 10}},
			{id: "3", app: "vgg11", ended: began.Add(20 * time.Second), Report: app.Report{Status: "oom"}},
			{id: "4", app: "hoomd"},
		},
	}
}

func TestFiguresOfARun(t *testing.T) {
	const end = 4 + 83*1.5
	want := &figures{
		MakespanS:       200, // to a failed job's end
		MeanTurnaroundS: end, // of the job that completed
		OOM:             2, JobsFailed: 3, JobsCompleted: 1, SlowdownP50: 1.5, SlowdownP95: 1.5,
		GPUUtil: 55.0 / 200, MemUtil: 400.0 / 10 / 200, TimeScale: 10,
		IdleS:         4 + 200 - end, // before it, and until the last one fails
		BusyMakespanS: end - 4,
	}
	ignored := cmp.Options{
		cmpopts.IgnoreUnexported(figures{}), cmpopts.IgnoreFields(figures{}, "Runs"),
		cmpopts.EquateApprox(0, 1e-9),
	}
	if diff := cmp.Diff(want, must.Get(sum(aRun(), 10))(t), ignored); diff != "" {
		t.Error(diff)
	}
	// Turnaround counts from a job's submission, and a GPU that waits for jobs isn't idle.
	open := aRun()
	open.jobs = []job{open.jobs[0], {
		id: "2", app: "gromacs", submitS: 200, ended: open.began.Add(40 * time.Second),
		Report: app.Report{Status: "finished", StartS: 307, GPUS: 83},
	}}
	f := must.Get(sum(open, 10))(t)
	if diff := cmp.Diff([]float64{(end + 7 + 83) / 2, 4 + 7, 290}, []float64{f.MeanTurnaroundS, f.IdleS, f.MakespanS},
		ignored); diff != "" {
		t.Errorf("open: turnaround, idle, makespan: %s", diff)
	}
	open.jobs = aRun().jobs[1:]
	must.Fail(t, must.Err(sum(open, 10)), "", "no job completed")
}

// Jobs are compared one by one; those that did not complete in both are left out. The table and demo.json show it.
func TestAgainstWhole(t *testing.T) {
	one := func(job int, endS float64, ok bool) run {
		return run{Job: job, App: "gromacs", EndS: endS, Finished: ok} // 83 s alone
	}
	plain := &figures{MakespanS: 900, MeanTurnaroundS: 200, JobsCompleted: 3, Runs: []run{
		one(0, 100, true), one(1, 200, true), one(2, 300, true), one(3, 400, false),
	}}
	dqn := &figures{MakespanS: 450, MeanTurnaroundS: 150, TimeScale: 4, slowdowns: []float64{1.05, 1.3}, Runs: []run{
		one(1, 205, true), one(0, 110, true), one(3, 900, true), one(2, 900, false),
	}}
	cells := []*cell{
		{workload: workload{name: "open-1"}, variant: variant{name: "dqn"}, figures: dqn},
		{workload: workload{name: "open-1"}, variant: variant{name: "whole"}, figures: plain},
	}
	r := collect(cells)
	want := &againstWhole{TurnaroundRatio: 0.75, Lateness: Lateness{Later: 2, Late: 1, WorstS: 10}}
	if diff := cmp.Diff(want, r["open-1"]["dqn"].againstWhole); diff != "" || plain.againstWhole != nil {
		t.Errorf("whole %v, dqn %s", plain.againstWhole, diff)
	}
	r["open-2"] = r["open-1"]
	o := &options{workloads: []string{"open-1", "open-2"}, variants: variants(), scale: 12}
	var out, demo bytes.Buffer
	r.show(&out, o)
	d := demoReport{Plain: plain, Bridged: dqn, Lateness: want.Lateness, Objective: "makespan", TimeScale: 50}
	d.show(&demo)
	for _, c := range []struct{ text, want string }{
		{out.String(), "open-2, objective turnaround"},
		{out.String(), "0.500"},
		{out.String(), "0.750 │     2 │    1 │    10 │"},
		{out.String(), "not measured"},
		{out.String(), "dqn │     2 │              0.750 │ 0.000 │ 0.750 │ 0.750 │     4 │    2 │    10 │"},
		{demo.String(), "ended later than on plain Slurm │            │       2 │"},
		{demo.String(), "under 10 %       │          0 │       1"},
	} {
		if !strings.Contains(c.text, c.want) || strings.Contains(c.text, "NaN") {
			t.Errorf("%q is missing in\n%s", c.want, c.text)
		}
	}
	body := string(must.Get(json.Marshal(&d))(t))
	for _, key := range strings.Fields("plain bridged makespan_s mean_turnaround_s gpu_util mem_util jobs_completed " +
		"jobs_failed oom groups jobs_later jobs_late late_worst_s turnaround_ratio costart_skew_p50_s added_delay_max_s " +
		"time_scale seed jobs slurm profiles_known") {
		must.Contain(t, body, `"`+key+`":`, "demo.json")
	}
}

// Every variant once, on real daemons.
func TestVariants(t *testing.T) {
	o := &options{
		base: &cluster.Setup{Build: "../../../build", Lua: "../../job_submit.lua"}, jobs: 2, load: 1, scale: 40,
		parallel: 6,
	}
	cluster.Require(t, o.base.Build)
	must.OK(t, o.check(t.Context(), nil))
	var cells []*cell
	for _, v := range o.variants {
		pair := workload{name: "pair", apps: []string{"gromacs", "gromacs"}}
		cells = append(cells, o.cell(pair, v))
		if v.name == "whole" || v.name == "dqn" {
			pair.name, pair.at = "open-1", []float64{0, 40}
			cells = append(cells, o.cell(pair, v))
		}
	}
	compare(t.Context(), o, cells, newBoard(&cluster.Line{Out: io.Discard}, cells))
	must.OK(t, failures(cells))
	for _, c := range cells {
		f := c.figures
		if f.JobsCompleted != 2 || f.OOM != 0 || f.MakespanS < 83 {
			t.Errorf("%s: %+v", c.String(), f)
		}
		// Plain Slurm runs one job after the other, variants that share both at a time. Tetris hands out one job at a
		// time and may leave the second waiting. A job that comes in the middle of a run of two seconds may come too late.
		overlap := f.Runs[1].StartS < f.Runs[0].EndS && f.Runs[0].StartS < f.Runs[1].EndS
		switch whole := c.variant.name == "whole"; {
		case whole && overlap, !whole && !overlap && c.at == nil && c.variant.name != "tetris":
			t.Errorf("%s: both at a time: %t: %+v", c.String(), overlap, f.Runs)
		}
		if second := f.Runs[1]; c.at != nil && (second.SubmitS < 40 || second.StartS < second.SubmitS) {
			t.Errorf("%s: %+v; the second job was to come at 40", c.String(), f.Runs)
		}
	}
}
