package sim

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// whole is a foreign job of so many GPUs of each of so many nodes.
func whole(id string, submitS, seconds float64, perNode, nodes int) Arrival {
	return Arrival{Job: rlcore.Job{
		ID: id, SubmitS: submitS, Profile: constant("whole", seconds, .5, 500), Foreign: true, PerNode: perNode, Nodes: nodes,
	}}
}

// single is a job of one GPU.
func single(id string, submitS, seconds float64) Arrival {
	return Arrival{Job: rlcore.Job{ID: id, SubmitS: submitS, Profile: constant("single", seconds, .5, 500)}}
}

// spans are the jobs' starts and ends, and where foreign ones ran.
func spans(r *Result) map[string]string {
	out := map[string]string{}
	for i := range r.Jobs {
		o := &r.Jobs[i]
		out[o.ID] = fmt.Sprintf("%g to %g", o.StartS, o.EndS)
		if o.On != nil {
			out[o.ID] += fmt.Sprint(" on ", o.On)
		}
	}
	return out
}

func oneByOne() *rlcore.Decider {
	return &rlcore.Decider{Policy: baseline.Exclusive{}, Guard: Bare(), M: 8}
}

// A job of two GPUs waits for the second one. Meanwhile the idle one goes to a short job behind it, not to a long one.
func TestJobOfTwoGPUsHasItsTurn(t *testing.T) {
	r := run(t, Config{GPUs: slices.Repeat([]rlcore.GPUSpec{{MemMiB: 8000}}, 2), Truth: Pairs{}, Jobs: []Arrival{
		single("first", 0, 100), whole("two", 1, 50, 2, 1), single("short", 2, 60), single("long", 2, 500),
	}}, oneByOne())
	want := map[string]string{"first": "0 to 100", "two": "100 to 150 on [0 1]", "short": "2 to 62", "long": "150 to 650"}
	must.Equal(t, spans(r), want)
}

// A job that arrives behind more foreign jobs than a window holds enters a window of its own, and starts on an idle GPU
// where it delays none of them.
func TestBehindForeignJobs(t *testing.T) {
	d := oneByOne()
	d.M = 2
	r := run(t, Config{GPUs: slices.Repeat([]rlcore.GPUSpec{{MemMiB: 8000}}, 2), Truth: Pairs{}, Jobs: []Arrival{
		single("first", 0, 1000), whole("two", 1, 10, 2, 1), whole("then", 2, 10, 2, 1), single("short", 3, 50),
	}}, d)
	must.Equal(t, spans(r)["short"], "3 to 53", "when the short job ran")
}

// Two nodes of two GPUs each have one idle GPU: a job of two GPUs of one node waits, a job of one GPU of two nodes
// starts.
func TestJobsOfNodes(t *testing.T) {
	cfg := Config{
		GPUs: slices.Repeat([]rlcore.GPUSpec{{MemMiB: 8000}}, 4), Nodes: []string{"a", "a", "b", "b"},
		Truth: Pairs{}, Jobs: []Arrival{single("a", 0, 100), single("b", 0, 200), whole("whole", 1, 50, 2, 1)},
	}
	cfg.Jobs[0].GPUs, cfg.Jobs[1].GPUs = rlcore.NewGPUSet(0), rlcore.NewGPUSet(2)
	for want, nodes := range map[string][2]int{"100 to 150 on [0 1]": {2, 1}, "1 to 51 on [1 3]": {1, 2}} {
		cfg.Jobs[2].PerNode, cfg.Jobs[2].Nodes = nodes[0], nodes[1]
		got := spans(run(t, cfg, oneByOne()))
		must.Equal(t, got, map[string]string{"a": "0 to 100", "b": "0 to 200", "whole": want})
	}
}

// What no cluster could ever start is refused.
func TestTooManyGPUs(t *testing.T) {
	cfg := Config{GPUs: slices.Repeat([]rlcore.GPUSpec{{MemMiB: 8000}}, 2), Nodes: []string{"a", "b"}, Truth: Pairs{}}
	mine := whole("several, and not foreign", 0, 10, 1, 2)
	mine.Foreign = false
	for _, j := range []Arrival{whole("two of one node", 0, 10, 2, 1), whole("three nodes", 0, 10, 1, 3), mine} {
		cfg.Jobs = []Arrival{j}
		must.Fail(t, must.Err(New(cfg)), "", j.ID)
	}
}

// Whoever decides, jobs of whole GPUs have them alone and run at full speed, and every job ends.
func TestNobodySharesWithAForeignJob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Truth: Law{&contention.MPS}}
		for range rapid.IntRange(2, 6).Draw(t, "GPUs") {
			cfg.GPUs = append(cfg.GPUs, rlcore.GPUSpec{MemMiB: 12000})
			cfg.Nodes = append(cfg.Nodes, rapid.SampledFrom([]string{"a", "a", "b"}).Draw(t, "node"))
		}
		at := 0.0
		for i := range rapid.IntRange(2, 30).Draw(t, "jobs") {
			j := single(fmt.Sprint(i), at, rapid.Float64Range(1, 500).Draw(t, "seconds"))
			if rapid.IntRange(0, 2).Draw(t, "foreign") == 0 {
				j = whole(j.ID, at, j.Profile.DurationS, rapid.IntRange(1, 3).Draw(t, "a node"),
					rapid.IntRange(1, 2).Draw(t, "nodes"))
			}
			if rapid.IntRange(0, 4).Draw(t, "limited") == 0 {
				j.LimitS = j.Profile.DurationS * rapid.Float64Range(.5, 3).Draw(t, "limit")
			}
			at += rapid.SampledFrom([]float64{0, 0, 20, 200}).Draw(t, "gap")
			if cfg.Room(&j) {
				cfg.Jobs = append(cfg.Jobs, j)
			}
		}
		d := &rlcore.Decider{Policy: anyPolicy(t), Guard: Bare(), M: rapid.IntRange(1, 6).Draw(t, "M")}
		if rapid.Bool().Draw(t, "guarded") {
			d.Guard = rlcore.NewGuard(rlcore.Rules{})
		}
		r := must.Get(Run(cfg, d))(t)
		for i := range r.Jobs {
			o := &r.Jobs[i]
			if !cfg.Jobs[i].Foreign {
				continue
			}
			if want := max(1, cfg.Jobs[i].PerNode) * max(1, cfg.Jobs[i].Nodes); len(o.On) != want || o.Slowdown > 1+1e-9 {
				t.Fatalf("%+v, of %d GPUs", *o, want)
			}
			for k := range r.Jobs {
				x := &r.Jobs[k]
				shared := slices.Contains(o.On, x.GPU) ||
					slices.ContainsFunc(x.On, func(g int) bool { return slices.Contains(o.On, g) })
				if k != i && shared && x.StartS < o.EndS-1e-6 && o.StartS < x.EndS-1e-6 {
					t.Fatalf("%+v beside %+v", *x, *o)
				}
			}
		}
		cut := slices.ContainsFunc(r.Jobs, func(o Outcome) bool { return o.TimedOut })
		for _, aim := range []policy.Objective{policy.Makespan, policy.Turnaround} {
			if got, least := r.Cost(aim), LowerBound(&cfg, aim); !cut && got < least-1e-6*least {
				t.Fatalf("%s %v is below the lower bound %v", aim, got, least)
			}
		}
	})
}
