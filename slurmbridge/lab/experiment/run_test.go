package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// result is one job set's: jobs with these slowdowns.
func result(makespan float64, oom int, slowdowns ...float64) *sim.Result {
	r := &sim.Result{MakespanS: makespan, MeanTurnaroundS: makespan / 2, GPUUtil: 0.5, MemUtil: 0.25, OOM: oom}
	for _, s := range slowdowns {
		r.Jobs = append(r.Jobs, sim.Outcome{Slowdown: s})
	}
	return r
}

func TestLine(t *testing.T) {
	fifo := []*sim.Result{result(100, 0, 1, 1), result(200, 0, 1, 1)}
	mine := []*sim.Result{result(80, 1, 1, 1.02, 1.0999, 1.1, 1.1999, 1.2), result(120, 2, 1.02, 1.1, 1.2, 3, 4, 5)}
	mine[0].Jobs[0].TimedOut, mine[0].Jobs[0].Harmed, mine[0].Jobs[1].TimedOut = true, true, true
	c := &contest{
		o: &Options{Policies: []string{"mine", Fifo}}, aim: policy.Makespan, lower: []float64{20, 40},
		entries: map[string]*entry{
			"mine": {contender: &Contender{}, trainS: 10, results: mine}, Fifo: {contender: &Contender{}, results: fifo},
		},
	}
	l := c.lines()["mine"]
	ratio, sd := l.Ratio()
	for name, c := range map[string][2]float64{
		"makespan": {l.MakespanS, 100}, "lost runs": {l.OOM, 1.5}, "makespan ÷ fifo": {ratio, 0.7}, "its SD": {sd, 0.1},
		"turnaround": {l.TurnaroundS, 50}, "turnaround ÷ fifo": {l.VsFifo, 0.7}, "GPU": {l.GPUUtil, 0.5},
		"memory": {l.MemUtil, 0.25}, "mean slowdown": {l.MeanSlowdown, (6.6198 + 15.32) / 12}, "worst": {l.MaxSlowdown, 5},
		"÷ the best other": {l.VsBest, 0.7},
		"fifo's":           {c.line(Fifo).VsBest, (1/.8 + 1/.6) / 2}, "of what may be": {l.PossibleShare, (20./80 + 80./160) / 2},
		"timed out": {l.TimedOut, 1}, "harmed": {l.HarmedTimeout, 0.5},
		"training": {l.TrainS, 10},
	} {
		must.Near(t, c[0], c[1], 1e-9, name)
	}
	if same := c.line(Fifo); same.PossibleShare != 0 || same.MakespanVsFifo != 1 || same.MakespanVsFifoSD != 0 {
		t.Errorf("fifo beside itself: %+v", same)
	}
	c.lower = []float64{100, 200}
	must.Equal(t, c.line("mine").PossibleShare, 1, "where nothing is possible")
}

func TestOptions(t *testing.T) {
	o := Options{Policies: []string{"dqn"}}
	if err := o.Check(&OnWorkloads); err != nil || o.Seeds != 10 || o.M != 5 || !slices.Equal(o.Workloads, Workloads()) ||
		!slices.Equal(o.Policies, []string{Fifo, "dqn"}) || o.Effort != Full {
		t.Errorf("%+v", o)
	}
	o = Options{Policies: []string{"Exclusive", "fifo"}}
	if err := o.Check(&OnTrace); err != nil || !slices.Equal(o.Policies, []string{Fifo}) {
		t.Errorf("the daemon's name of fifo: %v", o.Policies)
	}
	for _, bad := range []Options{
		{Seeds: -1},
		{M: -1},
		{M: 13},
		{Jobs: 1},
		{Loads: []float64{0}},
		{Workloads: []string{"nowhere"}},
		{Policies: []string{"nothing"}},
	} {
		must.Is(t, must.Err(Run(t.Context(), bad, &InWorlds)), ErrOptions, bad)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Options{Workloads: []string{"random"}, Policies: []string{"sjf"}, Seeds: 3},
		&OnWorkloads); !errors.Is(err, context.Canceled) {
		t.Errorf("an experiment that was ended: %v", err)
	}
}

// TestTheSameSeedTheSameFigures: all workloads, compared with fifo on the same jobs; the same figures from the same seed, and other job sets
// from another.
func TestTheSameSeedTheSameFigures(t *testing.T) {
	run := func(seed uint64) *Report {
		t.Helper()
		steps := 0
		r := must.Get(Run(t.Context(), Options{
			Policies: []string{"sjf", "greedy", "random"}, Seeds: 2, Seed: seed, Effort: hasty, History: 1,
			Progress: func(step, of int, what string) {
				if step != steps || step >= of || what == "" {
					t.Errorf("step %d of %d, %q; want %d", step, of, what, steps)
				}
				steps++
			},
		}, &OnWorkloads))(t)
		for _, loads := range r.Lines {
			for _, l := range loads["0"] {
				l.TrainS, l.DecisionUS = 0, 0 // wall time
			}
		}
		return r
	}
	text := func(r *Report) string {
		out := must.Get(json.Marshal(r))(t) // no NaN
		return string(out)
	}
	r := run(1)
	if len(r.Lines) != 5 || r.Jobs != 30 {
		t.Fatalf("%+v", r)
	}
	product := 1.0
	for wl, loads := range r.Lines {
		lines := loads["0"]
		must.Equal(t, len(lines), 4, "lines of %s", wl)
		for name, l := range lines {
			if l.PossibleShare > 1+1e-9 || l.GPUUtil <= 0 || l.GPUUtil > 1 || l.MemUtil > 1 {
				t.Errorf("%s: %s: %+v", wl, name, l)
			}
		}
		sjf, _ := lines["sjf"].Ratio()
		if math.Abs(sjf-1) > 1e-9 || lines["greedy"].OOM != 0 {
			t.Errorf("%s: sjf %+v, greedy %+v", wl, lines["sjf"], lines["greedy"])
		}
		product *= lines["greedy"].MakespanVsFifo
	}
	if x := r.Lines["random"]["0"]["sjf"]; !(x.Late > 0 && x.Late < 1 && x.WorstLate > 0.1) {
		t.Errorf("the long jobs of sjf are late: %+v", x)
	}
	if math.Abs(math.Pow(product, 0.2)-r.Geomean["greedy"]) > 1e-9 || math.Abs(r.Geomean["sjf"]-1) > 1e-9 {
		t.Errorf("geometric means %v", r.Geomean)
	}
	must.Equal(t, text(r), text(run(1)), "two runs of one seed")
	if other := run(2); other.Lines["random"]["0"]["sjf"].MakespanS == r.Lines["random"]["0"]["sjf"].MakespanS {
		t.Error("another seed gave the same job sets")
	}
}
