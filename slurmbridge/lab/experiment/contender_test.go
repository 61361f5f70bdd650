package experiment

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// hasty is as little effort as there is.
var hasty = Effort{Rounds: 1, Iterations: 1, Tune: 1}

func newModel() *interference.Model { return interference.New(&contention.MPS) }

// newWorld is a site that knows solo profiles only, and the thesis's jobs.
func newWorld(t *testing.T, workload string) (*World, dqn.Scenario) {
	t.Helper()
	s := must.Get(Thesis(workload))(t)
	return &World{Model: newModel, M: 5}, s
}

func jobSet(t *testing.T, s dqn.Scenario, seed uint64) sim.Config {
	t.Helper()
	cfg := must.Get(s(rand.New(rand.NewPCG(seed, 1))))(t)
	return cfg
}

func app(t *testing.T, name string) *rlcore.Profile {
	t.Helper()
	p, ok := apps.ByName(name)
	if !ok {
		t.Fatalf("no application %q", name)
	}
	return p
}

func compete(t *testing.T, w *World, name string, train dqn.Scenario, cfg sim.Config) *sim.Result {
	t.Helper()
	c := must.Get(w.Prepare(t.Context(), name, train, hasty, 1))(t)
	r := must.Get(c.Run(cfg))(t)
	return r
}

// meanSD is the mean standard deviation of what a model predicts of two of the thesis's applications.
func meanSD(t *testing.T, m *interference.Model) (sum float64) {
	t.Helper()
	for _, a := range apps.Names() {
		for _, b := range apps.Names() {
			var p [2]rlcore.Prediction
			m.Predict(p[:], &rlcore.TitanXp, []*rlcore.Profile{app(t, a), app(t, b)})
			sum += p[0].SD
		}
	}
	return sum / float64(len(apps.Names())*len(apps.Names()))
}

// A site with a past is surer of what it has seen, whatever else it
// believes stays, and the same past teaches the same.
func TestASiteWithAPastIsSurer(t *testing.T) {
	w, train := newWorld(t, "random")
	blank := w.Model
	w.Model = func() *interference.Model {
		m := blank()
		m.Forbid(rlcore.Identity{App: "lammps"}, rlcore.Identity{App: "vgg16"})
		return m
	}
	must.OK(t, w.Learn(train, 4, 1))
	past := func(seed uint64) *interference.Model {
		v := &World{Model: newModel, M: 5}
		must.OK(t, v.Learn(train, 4, seed))
		return v.Model()
	}
	before, after := meanSD(t, blank()), meanSD(t, w.Model())
	if !(after > 0 && after < 0.9*before) {
		t.Errorf("mean SD of a predicted slowdown: %.3f before four job sets, %.3f after", before, after)
	}
	if !w.Model().Forbidden(&rlcore.TitanXp, []*rlcore.Profile{app(t, "lammps"), app(t, "vgg16")}) {
		t.Error("what may not meet was forgotten")
	}
	if one := meanSD(t, past(1)); one != meanSD(t, past(1)) || one == meanSD(t, past(2)) {
		t.Error("what is believed depends on more or on less than the past")
	}
	none := &World{Model: newModel, M: 5}
	if err := none.Learn(train, 0, 1); err != nil || meanSD(t, none.Model()) != before {
		t.Errorf("without a past %.3f is %.3f, %v", before, meanSD(t, none.Model()), err)
	}
	bad := errors.New("no jobs")
	must.Is(t, none.Learn(func(*rand.Rand) (sim.Config, error) { return sim.Config{}, bad }, 1, 1), bad,
		"an unusable scenario")
}

// TestContendersObserve: whichever policy decides under the guard, its model learns from co-runs.
func TestContendersObserve(t *testing.T) {
	w, train := newWorld(t, "random")
	w.BuiltIn = true
	var mu sync.Mutex
	var made []*interference.Model
	w.Model = func() *interference.Model {
		mu.Lock()
		defer mu.Unlock()
		made = append(made, newModel())
		return made[len(made)-1]
	}
	for name, learns := range map[string]bool{
		"greedy": true, "srpt": true, "random": true, "dqn": true, "fifo": false,
		"deeprm_max": false,
	} {
		c := must.Get(w.Prepare(t.Context(), name, train, hasty, 1))(t)
		made = nil
		must.Get(c.Run(jobSet(t, train, 3)))(t)
		knows := func(m *interference.Model) bool { return meanSD(t, m) != meanSD(t, newModel()) }
		must.Equal(t, slices.ContainsFunc(made, knows), learns, "whether %s knows, as it learns", name)
	}
}

// Every contender schedules all jobs; who is alone shares nothing, and
// nobody loses runs who goes by the guard.
func TestEveryContenderSchedulesAllJobs(t *testing.T) {
	w, train := newWorld(t, "gpu_light")
	cfg := jobSet(t, train, 9)
	solo := 0.0
	for i := range cfg.Jobs {
		solo += cfg.Jobs[i].Profile.DurationS
	}
	for _, name := range []string{"fifo", "sjf", "tetris", "deeprm_max", "random", "greedy", "dqn"} {
		r := compete(t, w, name, train, cfg)
		if len(r.Jobs) != len(cfg.Jobs) {
			t.Fatalf("%s ran %d of %d jobs", name, len(r.Jobs), len(cfg.Jobs))
		}
		for i := range cfg.Jobs { // sjf sorts the queue
			must.Equal(t, r.Jobs[i].ID, cfg.Jobs[i].ID, "result %d of %s", i, name)
		}
		slow := r.Slowdowns()
		switch name {
		case "fifo", "sjf":
			if slow[len(slow)-1] > 1+1e-9 || r.MakespanS < solo-1e-6 || r.MakespanS > solo+1e-6 {
				t.Errorf("%s: makespan %v of %v, slowdown up to %v", name, r.MakespanS, solo, slow[len(slow)-1])
			}
		default:
			if r.MakespanS > 0.9*solo {
				t.Errorf("%s shares nothing of what is made to be shared: %v of %v", name, r.MakespanS, solo)
			}
			if name != "tetris" && name != "deeprm_max" && r.OOM > 0 {
				t.Errorf("%s lost %d runs", name, r.OOM)
			}
		}
	}
	if _, err := w.Prepare(t.Context(), "nobody", train, hasty, 1); !errors.Is(err, ErrOptions) ||
		!strings.Contains(err.Error(), "there are fifo, sjf") {
		t.Errorf("nobody: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.Is(t, must.Err(w.Prepare(ctx, "dqn", train, hasty, 1)), context.Canceled, "a training that was ended")
}

// TestShortestFirst: by arrival, then by length, in no other order than the jobs'
// own where both are the same; the caller's list stays.
func TestShortestFirst(t *testing.T) {
	job := func(id string, submit, length float64) sim.Arrival {
		j := sim.Arrival{Job: rlcore.Job{ID: id, SubmitS: submit}}
		if length > 0 {
			j.Profile = &rlcore.Profile{DurationS: length}
		}
		return j
	}
	jobs := []sim.Arrival{job("unknown", 0, 0), job("long", 0, 9), job("late", 1, 1), job("one", 0, 2), job("two", 0, 2)}
	ids := func(jobs []sim.Arrival) (out []string) {
		for i := range jobs {
			out = append(out, jobs[i].ID)
		}
		return out
	}
	was := ids(jobs)
	must.Equal(t, ids(shortestFirst(jobs)), []string{"one", "two", "long", "unknown", "late"}, "order")
	must.Equal(t, ids(jobs), was, "the caller's list")
}
