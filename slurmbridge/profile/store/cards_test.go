package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// on is a record of a run on a GPU model.
func on(model string, id int64, seconds float64) *gpuprof.Record {
	r := record(id, "ann", seconds)
	r.Node, r.GPUs = "with-"+model, []gpuprof.GPU{{UUID: model, Model: model, MemMiB: 16000}}
	return r
}

// keep adds a run and learns from it.
func keep(t *testing.T, s *Store, app string, r *gpuprof.Record) {
	t.Helper()
	if _, err := s.AddRecord(t.Context(), r, app); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Learn(t.Context(), app, r); err != nil || !ok {
		t.Fatal(ok, err)
	}
}

// A run on one model says nothing of the time on another, until three applications have run on both.
func TestProfilesAreOfACard(t *testing.T) {
	ctx := t.Context()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	keep(t, s, "lmp", on("A100", 1, 600))
	if _, err := s.Lookup(ctx, "ann", "lmp", "T4"); !errors.Is(err, ErrNotFound) {
		t.Errorf("on a card that it never ran on: %v", err)
	}
	keep(t, s, "lmp", on("T4", 2, 3000))
	for card, want := range map[string]float64{"A100": 600, "T4": 3000, "": 600} {
		if p, err := s.Lookup(ctx, "ann", "lmp", card); err != nil || p.DurationS != want || p.DurationSD != 0 || p.Runs != 1 {
			t.Errorf("on %q: %+v %v", card, p, err)
		}
	}
	for i, ratio := range []float64{4, 6.25} {
		app := fmt.Sprint("app", i)
		keep(t, s, app, on("A100", int64(10+i), 100))
		keep(t, s, app, on("T4", int64(20+i), 100*ratio))
	}
	keep(t, s, "new", on("A100", 3, 200))
	p, err := s.Lookup(ctx, "ann", "new", "T4")
	if err != nil || math.Abs(p.DurationS-1000) > 1e-6 || p.DurationSD < 100 || p.DurationSD > 400 || p.Peak().MemMiB != 2000 || p.Card != "T4" || p.Runs != 0 {
		t.Errorf("the ratios are 5, 4 and 6.25: %+v %v", p, err)
	}
	// A run there replaces the estimate.
	keep(t, s, "new", on("T4", 4, 900))
	if p, err := s.Lookup(ctx, "ann", "new", "T4"); err != nil || p.DurationS != 900 || p.Runs != 1 {
		t.Errorf("%+v %v", p, err)
	}
	cards, err := s.Cards(ctx)
	if err != nil || cards[job.GPUAddr{Node: "with-T4"}] != "T4" || len(cards) != 2 {
		t.Errorf("%v %v", cards, err)
	}
}

// What an earlier release learned goes on where there is one model, and is given up where it was of several.
func TestProfilesOfAnEarlierRelease(t *testing.T) {
	for _, models := range [][]string{{"T4"}, {"A100", "T4"}} {
		ctx := context.Background()
		s := opened(t, filepath.Join(t.TempDir(), "s.db"))
		for _, app := range []string{"lmp", "other"} {
			if err := put(ctx, s.db, "ann", &rlcore.Profile{App: app, DurationS: 1800, PeriodS: 1800, Runs: 3, Series: []rlcore.Use{{MemMiB: 5000}}}, s.now()); err != nil {
				t.Fatal(err)
			}
		}
		for i, model := range models {
			keep(t, s, "other", on(model, int64(i+1), 600))
		}
		if p, err := s.Lookup(ctx, "ann", "lmp", "T4"); err != nil || p.DurationS != 1800 {
			t.Errorf("%v: before a run: %+v %v", models, p, err)
		}
		keep(t, s, "lmp", on("T4", 9, 600))
		p, err := s.Lookup(ctx, "ann", "lmp", "T4")
		if alone := len(models) == 1; err != nil || alone != (p.Runs == 4) || alone != (p.Peak().MemMiB == 5000) {
			t.Errorf("%v: %+v %v", models, p, err)
		}
	}
}
