package soak

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var ever = math.Inf(1)

// nodes are GPUs on one node, in no partition of a name.
func nodes(gpus int) []slot {
	return slices.Repeat([]slot{{Partitions: []string{"", "p"}}}, gpus)
}

func whole(arrival, run float64) plainJob {
	return plainJob{Arrival: arrival, RunS: run, LimitS: 2 * run, GPUs: 1, Until: ever}
}

func several(arrival, run float64) plainJob {
	j := whole(arrival, run)
	j.GPUs = 2
	return j
}

func TestPlain(t *testing.T) {
	changed := func(j plainJob, change func(*plainJob)) plainJob { change(&j); return j }
	for name, c := range map[string]struct {
		jobs    []plainJob
		outages []outage
		gpus    int
		pause   float64
		ends    []float64
	}{
		"one after the other":      {[]plainJob{whole(0, 10), whole(0, 5)}, nil, 1, 0, []float64{10, 15}},
		"side by side":             {[]plainJob{whole(0, 10), whole(3, 5)}, nil, 2, 0, []float64{10, 8}},
		"in order, not by arrival": {[]plainJob{whole(0, 10), whole(2, 5), whole(1, 7)}, nil, 1, 0, []float64{10, 15, 22}},
		"with Slurm's pause":       {[]plainJob{whole(0, 10), whole(0, 5)}, nil, 1, 2, []float64{12, 19}},
		"after another": {[]plainJob{
			whole(0, 10),
			changed(whole(0, 5), func(j *plainJob) { j.After = []int{0} }),
		}, nil, 2, 0, []float64{10, 15}},
		"after one that never starts": {[]plainJob{
			changed(whole(0, 10), func(j *plainJob) { j.Until = -1 }),
			changed(whole(0, 5), func(j *plainJob) { j.After = []int{0} }),
		}, nil, 1, 0, []float64{math.NaN(), 5}},
		"held": {
			[]plainJob{changed(whole(0, 10), func(j *plainJob) { j.Held = []interval{{0, 4}} })},
			nil, 1, 0,
			[]float64{14},
		},
		"released, at the end": {
			[]plainJob{
				whole(0, 3),
				changed(whole(0, 10), func(j *plainJob) { j.Held = []interval{{0, 2}} }), whole(0, 5),
			},
			nil, 1, 0,
			[]float64{3, 18, 8},
		},
		"cancelled while it runs": {
			[]plainJob{changed(whole(0, 10), func(j *plainJob) { j.Until = 3 }), whole(0, 5)},
			nil, 1, 0,
			[]float64{3, 8},
		},
		"cancelled while it waits": {[]plainJob{
			whole(0, 10), changed(whole(0, 10), func(j *plainJob) { j.Until = 3 }),
			whole(0, 5),
		}, nil, 1, 0, []float64{10, math.NaN(), 15}},
		"a node out of service": {
			[]plainJob{whole(1, 10)},
			[]outage{{interval: interval{0, 6}, GPU: 0}},
			1, 0,
			[]float64{16},
		},
		"another node is there": {
			[]plainJob{whole(1, 10)},
			[]outage{{interval: interval{0, 6}, GPU: 0}},
			2, 0,
			[]float64{11},
		},
		"another partition's": {
			[]plainJob{whole(1, 10)},
			[]outage{{interval: interval{0, 6}, GPU: -1, Partition: "p"}},
			1, 0,
			[]float64{11},
		},
		"several keep their node": {
			[]plainJob{whole(0, 10), several(0, 5), whole(0, 3), whole(0, 6)},
			nil, 2, 0,
			[]float64{10, 15, 3, 21},
		},
		"urgent": {[]plainJob{
			whole(0, 10), whole(0, 5),
			changed(whole(0, 2), func(j *plainJob) { j.Urgent = true }),
		}, nil, 1, 0, []float64{12, 17, 2}},
		"slurmctld is gone": {
			[]plainJob{whole(0, 10), whole(0, 5)},
			[]outage{{interval: interval{8, 20}, GPU: -1, Ends: true}},
			1, 0,
			[]float64{20, 25},
		},
	} {
		t.Run(name, func(t *testing.T) {
			plain(c.jobs, nodes(c.gpus), c.outages, c.pause)
			for i, j := range c.jobs {
				if j.Ran.To != c.ends[i] && !(math.IsNaN(j.Ran.To) && math.IsNaN(c.ends[i])) {
					t.Errorf("job %d ends at %v, want %v", i, j.Ran.To, c.ends[i])
				}
			}
		})
	}
}

// Every job that can run runs, for as long as it takes, and no GPU is given away twice.
func TestPlainSchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpus := rapid.IntRange(1, 4).Draw(t, "gpus")
		var jobs []plainJob
		for i := range rapid.IntRange(0, 12).Draw(t, "jobs") {
			j := whole(float64(rapid.IntRange(0, 20).Draw(t, "arrival")), float64(rapid.IntRange(1, 9).Draw(t, "run")))
			j.GPUs = rapid.IntRange(1, min(2, gpus)).Draw(t, "takes")
			if i > 0 && rapid.Bool().Draw(t, "after") {
				j.After = []int{rapid.IntRange(0, i-1).Draw(t, "which")}
			}
			jobs = append(jobs, j)
		}
		var outages []outage
		for range rapid.IntRange(0, 3).Draw(t, "outages") {
			from := float64(rapid.IntRange(0, 30).Draw(t, "from"))
			outages = append(outages, outage{interval: interval{from, from + 5}, GPU: rapid.IntRange(-1, gpus-1).Draw(t, "gpu")})
		}
		plain(jobs, nodes(gpus), outages, 1)
		for i, j := range jobs {
			if j.Ran.To-j.Ran.From != j.RunS+1 || j.Ran.From < j.Arrival {
				t.Fatalf("job %d: %+v", i, j)
			}
			for _, a := range j.After {
				if jobs[a].Ran.To > j.Ran.From {
					t.Fatalf("job %d starts at %v, before job %d ends at %v", i, j.Ran.From, a, jobs[a].Ran.To)
				}
			}
			running := 0
			for _, o := range jobs {
				if o.Ran.has(j.Ran.From) {
					running += o.GPUs
				}
			}
			if running > gpus {
				t.Fatalf("%d GPUs of %d are taken at %v", running, gpus, j.Ran.From)
			}
		}
	})
}
