package compare

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

func TestPickWorkloads(t *testing.T) {
	for names, want := range map[string]string{
		"":                    "gpu_heavy gpu_light mem_heavy mem_light random open-1 open-2 open-3",
		"open":                "open-1 open-2 open-3",
		"OPEN-2,random":       "random open-2",
		"open,open-3,gpu_lig": "",
	} {
		var in []string
		if names != "" {
			in = strings.Split(names, ",")
		}
		got, err := choose("workload", in, workloads())
		if strings.Join(got, " ") != want || (err != nil) != (want == "") {
			t.Errorf("%s: %v, %v", names, got, err)
		}
	}
}

// Open workloads have the jobs of the random one, come at the load that was asked for, and differ
// by their seeds.
func TestOpenJobs(t *testing.T) {
	o := options{jobs: 1000, seed: 7, load: 1.2}
	random, at, err := o.jobsOf("random")
	if err != nil || at != nil {
		t.Fatalf("jobs of a closed workload come at %v, %v", at, err)
	}
	first, at, err := o.jobsOf("open-1")
	if err != nil || !slices.Equal(first, random) {
		t.Errorf("not the same jobs as random's (%v)", err)
	}
	if len(at) != len(first) || at[0] != 0 || !slices.IsSorted(at) {
		t.Errorf("they come at %v", at)
	}
	if load := cluster.SoloS(first) / at[len(at)-1]; math.Abs(load-1.2) > 0.12 {
		t.Errorf("load %v", load)
	}
	if _, again, _ := o.jobsOf("open-1"); !slices.Equal(again, at) {
		t.Error("the same seed, and other times")
	}
	if second, other, _ := o.jobsOf("open-2"); slices.Equal(first, second) || slices.Equal(at, other) {
		t.Error("another seed, and the same jobs or times")
	}
	o.seed = 8
	if third, _, _ := o.jobsOf("open-1"); o.seedOf("open-1") != 8 || o.seedOf("open-3") != 10 || o.seedOf("random") != 8 || slices.Equal(first, third) {
		t.Error("seeds")
	}
}

// The bridge decides for what a workload is judged by.
func TestObjectives(t *testing.T) {
	o := options{base: &cluster.Setup{}, workloads: []string{"random", "open"}, jobs: 3, seed: 1, load: 1, scale: 1, parallel: 1}
	must.OK(t, o.check([]string{"whole", "dqn"}))
	cells, err := o.cells()
	if err != nil || len(cells) != 4*2 {
		t.Fatalf("%d cells, %v", len(cells), err)
	}
	for _, c := range cells {
		want := "objective: makespan"
		if c.workload != "random" {
			want = "objective: turnaround"
		}
		if !slices.Equal(c.setup.Settings, []string{want}) || (c.at == nil) != (c.workload == "random") {
			t.Errorf("%s: %v, jobs come at %v", c.name(), c.setup.Settings, c.at)
		}
	}
}

// three is a report of the three open workloads.
func three() (*options, report) {
	o := &options{workloads: []string{"open-1", "open-2", "open-3"}, scale: 4}
	for _, v := range variants() {
		if v.name == "whole" || v.name == "mps_half" || v.name == "dqn" {
			o.variants = append(o.variants, v)
		}
	}
	r := report{}
	for i, wl := range o.workloads {
		r[wl] = map[string]*figures{"whole": {MakespanS: 500, MeanTurnaroundS: 200}}
		for _, name := range []string{"mps_half", "dqn"} {
			by := []float64{0.5, 0.6, 0.7}[i]
			r[wl][name] = &figures{
				MakespanS: 520, MeanTurnaroundS: 200 * by, Objective: policy.Turnaround,
				againstWhole: &againstWhole{TurnaroundRatio: by, Lateness: cluster.Lateness{Later: i, Late: 1, WorstS: float64(10 * i)}},
			}
		}
	}
	r["open-3"]["mps_half"].JobsFailed = 2
	return o, r
}

func TestOverSeeds(t *testing.T) {
	o, r := three()
	var out bytes.Buffer
	r.show(&out, o)
	var row string
	_, sums, _ := strings.Cut(out.String(), "mean over the seeds")
	for line := range strings.Lines(sums) {
		if strings.Contains(line, "dqn") && row == "" {
			row = strings.Join(strings.Fields(strings.ReplaceAll(line, "│", " ")), " ")
		}
	}
	if want := "dqn 3 0.600 0.100 0.500 0.700 3 3 20 0"; row != want {
		t.Errorf("%q, want %q in\n%s", row, want, out.String())
	}
	// By turnaround: by makespan whole would be the shortest.
	for _, w := range []string{
		"open-1: mps_half has the shortest mean turnaround of those under which no job failed, dqn 0.0 % longer.",
		"open-3: dqn has the shortest mean turnaround of those under which no job failed.",
	} {
		if !strings.Contains(out.String(), w) {
			t.Errorf("%q is missing in\n%s", w, out.String())
		}
	}
	if strings.Contains(out.String(), "NaN") {
		t.Error(out.String())
	}
	// One seed has no spread.
	o.workloads = o.workloads[:1]
	out.Reset()
	if r.show(&out, o); strings.Contains(out.String(), "over the seeds") {
		t.Error(out.String())
	}
}
