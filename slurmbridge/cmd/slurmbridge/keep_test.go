package main

import (
	"log/slog"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// What the controller knows of a run and its node doesn't is in the record it keeps;
// what a node says of it isn't believed. Whose MPS server failed is a victim.
func TestRecordsAreCompleted(t *testing.T) {
	ctx := t.Context()
	st, err := store.Open(ctx, t.TempDir()+"/db", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	j := journal.New(st.DB())
	w := &wired{bridge: new(loop.Bridge), store: st, journal: j}
	apps := &recogniser{st}
	for id, script := range map[string]string{
		"1": "#!/bin/bash\nmodule load lammps\nsrun lmp -in melt.in -v steps 4000 -v n 64x64x64 data_2048.h5\n", "2": "",
	} {
		if _, err := apps.Identify(ctx, &job.Job{Ref: id, User: "ann"}, job.Terms{App: map[string]string{"2": "mine"}[id]}, []byte(script)); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Unix(1e9, 0).UTC()
	for id := range int64(3) {
		rec := &gpuprof.Record{
			JobID: id + 1, Node: "n1", User: "ann", Start: start, End: start.Add(time.Minute), App: "forged", AppType: "forged", InputMiB: 7, Params: "forged",
			GPUs: []gpuprof.GPU{{MemMiB: 12000}}, PeriodS: 60, Series: []rlcore.Use{{GPU: .5}}, NoEpilog: id == 1,
		}
		if id == 0 {
			rec.MPSFault = start.Add(30 * time.Second)
		}
		if isNew, err := w.keep(ctx, rec, -3*time.Second, nil); err != nil || !isNew {
			t.Fatal(isNew, err)
		}
	}
	kept, err := st.After(ctx, 0, 10)
	if err != nil || len(kept) != 3 {
		t.Fatal(kept, err)
	}
	for i, want := range []struct{ app, params string }{
		{"lmp", "argument 3=4000; argument 5=262144; file data_#.h5=2048"}, {"mine", ""}, {"", ""},
	} {
		r := &kept[i].Record
		if r.App != want.app || r.Params != want.params || r.AppType != "" || r.InputMiB != 0 || r.ClockBehindS != -3 || !r.Start.Equal(start) {
			t.Errorf("job %d: %q %q %q %v %v, start %v", r.JobID, r.App, r.Params, r.AppType, r.InputMiB, r.ClockBehindS, r.Start)
		}
	}
	runs, err := (&history.History{Records: st, Journal: j}).Unjudged(ctx)
	if err != nil || len(runs) != 3 {
		t.Fatal(runs, err)
	}
	for i, want := range []struct{ fault, complete bool }{{true, true}, {false, false}, {false, true}} {
		if runs[i].MPSFault != want.fault || runs[i].Complete != want.complete {
			t.Errorf("run %d: fault %v, complete %v", i+1, runs[i].MPSFault, runs[i].Complete)
		}
	}
}
