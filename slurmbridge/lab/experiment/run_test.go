package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// TestCost: the thesis prints what sharing costs by both countings, 0.7014 and
// 0.5002 of whole instances. Both follow from one ratio of makespans, as Cost says.
func TestCost(t *testing.T) {
	const printed1, printed2 = 1 - 0.2986, 1 - 0.4998
	ratio := printed1 * 0.75 / 0.602
	one, two := Cost(ratio)
	if math.Abs(one-printed1) > 1e-9 || math.Abs(two-printed2) > 5e-4 {
		t.Errorf("a makespan of %.4f costs %.4f and %.4f, in the thesis %.4f and %.4f", ratio, one, two, printed1, printed2)
	}
	if one, two := Cost(1); math.Abs(one-0.602/0.75) > 1e-12 || math.Abs(two-0.301/0.526) > 1e-12 {
		t.Errorf("as long as alone costs %v, %v", one, two)
	}
}

// result is one job set's: jobs with these slowdowns.
func result(makespan float64, oom int, slowdowns ...float64) *sim.Result {
	r := &sim.Result{MakespanS: makespan, MeanTurnaroundS: makespan / 2, GPUUtil: 0.5, MemUtil: 0.25, OOM: oom}
	for _, s := range slowdowns {
		r.Jobs = append(r.Jobs, sim.Outcome{Slowdown: s})
	}
	return r
}

// A clairvoyant counts where its search finds schedules that are better than each set's best policy.
func TestSearchThatFindsSomething(t *testing.T) {
	c := &contest{o: &Options{Policies: []string{"a", "b"}}, aim: policy.Makespan, entries: map[string]*entry{
		"a": {results: []*sim.Result{result(100, 0, 1), result(90, 0, 1)}},
		"b": {results: []*sim.Result{result(80, 0, 1), result(200, 0, 1)}},
	}}
	for _, x := range []struct {
		first, second float64
		want          bool
	}{{80, 90, false}, {79.9, 90, false}, {78, 90, true}, {70, 91, true}} {
		if got := c.finds([]*sim.Result{result(x.first, 0, 1), result(x.second, 0, 1)}); got != x.want {
			t.Errorf("%v s and %v s beside 80 and 90: %v", x.first, x.second, got)
		}
	}
}

func TestLine(t *testing.T) {
	sjf := []*sim.Result{result(100, 0, 1, 1), result(200, 0, 1, 1)}
	bound := []*sim.Result{result(50, 0, 1, 1), result(100, 0, 1, 1)}
	// Just at the classes' bounds: 2 % is in the first, 10 % and 20 % are in the next.
	mine := []*sim.Result{result(80, 1, 1, 1.02, 1.0999, 1.1, 1.1999, 1.2), result(120, 2, 1.02, 1.1, 1.2, 3, 4, 5)}
	c := &contest{
		o: &Options{Policies: []string{"mine", "sjf"}}, aim: policy.Makespan, lower: []float64{20, 40},
		entries: map[string]*entry{
			"mine": {trainS: 10, results: mine}, "sjf": {results: sjf}, Clairvoyant: {results: bound},
		},
	}
	l := c.line("mine")
	if !slices.Equal(l.MakespanS, []float64{80, 120}) || l.OOM != 3 {
		t.Errorf("%+v", l)
	}
	for name, c := range map[string][2]float64{
		"makespan ÷ sjf": {l.MakespanVsSJF, 0.7}, "its SD": {l.MakespanSD, 0.1},
		"with training": {l.WithTraining, (0.9 + 0.65) / 2}, "turnaround": {l.TurnaroundS, 50},
		"GPU": {l.GPUUtil, 0.5}, "memory": {l.MemUtil, 0.25},
		"≤ 2 %": {l.LE2, 1.5}, "< 10 %": {l.LT10, 2}, "< 20 %": {l.LT20, 3.5}, "≥ 20 %": {l.GE20, 2.5},
		"mean slowdown": {l.MeanSlowdown, (6.6198 + 15.32) / 12},
		"share":         {l.GainShare, (20. + 80) / 150}, "÷ the best other": {l.VsBest, 0.7},
		"sjf's": {c.line("sjf").VsBest, (1/.8 + 1/.6) / 2}, "of what may be": {l.PossibleShare, (20./80 + 80./160) / 2},
		"cost": {l.Cost1, 0.7 * 0.602 / 0.75},
	} {
		if math.Abs(c[0]-c[1]) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, c[0], c[1])
		}
	}
	c.entries[Clairvoyant].results = sjf
	if same := c.line("sjf"); same.GainShare != 1 || same.MakespanVsSJF != 1 || same.MakespanSD != 0 {
		t.Errorf("nothing to gain: %+v", same)
	}
	delete(c.entries, Clairvoyant)
	if free := c.line("sjf"); free.GainShare != 0 {
		t.Errorf("no bound: %+v", free)
	}
}

func TestOptions(t *testing.T) {
	o := Options{Policies: []string{"dqn"}}
	if err := o.Check(&OnWorkloads); err != nil || o.Seeds != 10 || o.M != 5 || !slices.Equal(o.Workloads, Workloads()) ||
		!slices.Equal(o.Policies, []string{"sjf", "dqn"}) || o.Effort != Full {
		t.Errorf("%+v", o)
	}
	for _, bad := range []Options{{Seeds: -1}, {M: -1}, {M: 13}} {
		if err := bad.Check(&OnWorkloads); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := Run(t.Context(), Options{Workloads: []string{"heavy"}}); !errors.Is(err, ErrOptions) {
		t.Errorf("an unknown workload: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Options{Workloads: []string{"random"}, Policies: []string{"sjf"}, Seeds: 3}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("an experiment that was ended: %v", err)
	}
}

// TestRun: all workloads, compared with SJF's on the same jobs; the trade-off; the
// same figures from the same seed, and other job sets from another.
func TestRun(t *testing.T) {
	run := func(seed uint64) *Report {
		t.Helper()
		steps := 0
		r, err := Run(t.Context(), Options{
			Policies: []string{"greedy", "random"}, Seeds: 2, Seed: seed, Effort: hasty, History: 1, Tries: 20,
			Progress: func(step, of int, what string) {
				if step != steps || step >= of || what == "" {
					t.Errorf("step %d of %d, %q; want %d", step, of, what, steps)
				}
				steps++
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, lines := range r.Workloads {
			for _, l := range lines {
				l.TrainS, l.WithTraining = 0, 0 // wall time
			}
		}
		return r
	}
	text := func(r *Report) string {
		out := must.Get(json.Marshal(r))(t) // no NaN
		return string(out)
	}
	r := run(1)
	if len(r.Workloads) != 5 || r.Jobs != 30 || len(r.TradeOff) > 0 {
		t.Fatalf("%+v", r)
	}
	for wl, lines := range r.Workloads {
		bound := lines[Clairvoyant] // where the search finds what policies don't
		if len(lines) != 3 && (len(lines) != 4 || bound == nil) {
			t.Errorf("%s has %d lines", wl, len(lines))
		}
		for name, l := range lines {
			if math.Abs(l.LT20+l.GE20-30) > 1e-9 || l.GainShare > 1+1e-9 || l.GPUUtil <= 0 || l.GPUUtil > 1 || l.MemUtil > 1 {
				t.Errorf("%s: %s: %+v", wl, name, l)
			}
		}
		if lines["sjf"].MakespanVsSJF != 1 || lines["sjf"].GainShare != 0 || bound != nil && bound.GainShare != 1 ||
			lines["greedy"].OOM != 0 {
			t.Errorf("%s: sjf %+v, the clairvoyant %+v", wl, lines["sjf"], bound)
		}
	}
	if r.Workloads["random"]["sjf"].ThesisMakespan != 2416 || r.Workloads["random"]["greedy"].ThesisVsSJF != 0 {
		t.Error("the thesis's figures don't stand beside ours")
	}
	if x := r.Workloads["random"]["sjf"].Lateness; !(x.Late > 0 && x.Late < 1 && x.WorstLate > 0.1) {
		t.Errorf("the long jobs of sjf are late: %+v", x)
	}
	product := 1.0
	for _, wl := range Workloads() {
		product *= r.Workloads[wl]["greedy"].MakespanVsSJF
	}
	if math.Abs(math.Pow(product, 0.2)-r.Geomean["greedy"]) > 1e-9 || math.Abs(r.Geomean["sjf"]-1) > 1e-12 {
		t.Errorf("geometric means %v", r.Geomean)
	}
	if one, again := text(r), text(run(1)); one != again {
		t.Error("the same seed gave other figures")
	}
	if other := run(2); slices.Equal(other.Workloads["random"]["sjf"].MakespanS, r.Workloads["random"]["sjf"].MakespanS) {
		t.Error("another seed gave the same job sets")
	}
}

// TestTradeOff: the tighter the contract, the fewer are slowed by much, and the
// longer all takes.
func TestTradeOff(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	r, err := Run(t.Context(), Options{
		Workloads: []string{"random"}, Policies: []string{"dqn"}, Seeds: 2, Seed: 1, Effort: hasty, History: 8,
		Contracts: []float64{1.05, 0},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.TradeOff) != 2 || r.Workloads["random"][Clairvoyant] != nil {
		t.Fatalf("%+v", r)
	}
	strict, free := r.TradeOff[0], r.TradeOff[1]
	if strict.Contract != 1.05 || free.Contract != 0 || strict.LT10 <= free.LT10 ||
		strict.MakespanVsSJF <= free.MakespanVsSJF {
		t.Errorf("under a contract %+v, without %+v", strict, free)
	}
	if dqn := r.Workloads["random"]["dqn"]; dqn.MakespanVsSJF != free.MakespanVsSJF ||
		!strings.Contains(dqn.Note, "of 1 rounds") {
		t.Errorf("without a contract %v, in the comparison %v (%s)", free.MakespanVsSJF, dqn.MakespanVsSJF, dqn.Note)
	}
}
