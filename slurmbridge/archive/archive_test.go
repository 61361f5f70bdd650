package archive

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

func open(st *store.Store) *Archive {
	return &Archive{Store: st, Journal: journal.New(st.DB()), Runs: &history.History{DB: st.DB(), Profiles: st}}
}

// What the controller knows of a run and its node doesn't is in the record it keeps;
// what a node says of it isn't believed. Whose MPS server failed is a victim.
func TestRecordsAreCompleted(t *testing.T) {
	ctx := t.Context()
	st := must.Get(store.Open(ctx, t.TempDir()+"/db"))(t)
	defer st.Close()
	a := open(st)
	for id, script := range map[string]string{
		"1": "#!/bin/bash\nmodule load lammps\nsrun lmp -in melt.in -v steps 4000 -v n 64x64x64 data_2048.h5\n", "2": "",
	} {
		must.Get(st.Identify(ctx, &job.Job{Ref: id, User: "ann"}, job.Terms{App: map[string]string{"2": "mine"}[id]},
			[]byte(script)))(t)
	}
	start := time.Unix(1e9, 0).UTC()
	for id := range int64(3) {
		rec := &gpuprof.Record{
			JobID: id + 1, Node: "n1", User: "ann", Start: start, End: start.Add(time.Minute), App: "forged",
			Params: "forged", GPUs: []gpuprof.GPU{{MemMiB: 12000}}, PeriodS: 60, Series: []rlcore.Use{{GPU: .5}},
			NoEpilog: id == 1,
		}
		if id == 0 {
			rec.MPSFault = start.Add(30 * time.Second)
		}
		isNew, _, err := a.Keep(ctx, rec, -3*time.Second)
		must.OK(t, err)
		must.Equal(t, isNew, true)
	}
	kept := must.Get(database.List(ctx, st.DB(), func(r *gpuprof.Record) []any { return []any{database.JSON(r)} },
		`SELECT body FROM record ORDER BY id`))(t)
	must.Equal(t, len(kept), 3, "records")
	for i, want := range []struct{ app, params string }{
		{"lmp", "argument 3=4000; argument 5=262144; file data_#.h5=2048"}, {"mine", ""}, {"", ""},
	} {
		r := &kept[i]
		if r.App != want.app || r.Params != want.params || r.ClockBehindS != -3 || !r.Start.Equal(start) {
			t.Errorf("job %d: %q %q %v, start %v", r.JobID, r.App, r.Params, r.ClockBehindS, r.Start)
		}
	}
	runs, err := a.Runs.Unjudged(ctx)
	if err != nil || len(runs) != 3 {
		t.Fatal(runs, err)
	}
	for i, want := range []struct{ fault, complete bool }{{true, true}, {false, false}, {false, true}} {
		must.Equal(t, [2]bool{runs[i].MPSFault, runs[i].Complete}, [2]bool{want.fault, want.complete}, "run %d", i+1)
	}
}

// The controller answers with what a job was given when its last group was decided, an array
// task by its own number once a poll has shown it.
func TestMemoryLimitOfAJob(t *testing.T) {
	ctx := t.Context()
	st := must.Get(store.Open(ctx, t.TempDir()+"/db"))(t)
	defer st.Close()
	a := open(st)
	for i, g := range []*job.Group{
		{Members: []job.Member{{Ref: "7", User: "ann", MemMiB: 900, State: job.MemberRestored}}, State: job.Done},
		{
			Members: []job.Member{{Ref: "8", User: "ann"}, {Ref: "7", User: "ann", MemMiB: 1200, State: job.MemberWaiting}},
			State:   job.Released,
		},
		{
			Members: []job.Member{{Ref: "120_4", User: "ann", MemMiB: 4800, ProcessMiB: 1200, State: job.MemberRunning}},
			State:   job.Started,
		},
		{Members: []job.Member{{Ref: "10", User: "ann", MemMiB: 1200, State: job.MemberRestored}}, State: job.Done},
	} {
		g.ID = int64(i + 1)
		must.OK(t, a.Journal.SaveGroup(ctx, g))
	}
	now := time.Now()
	for id, at := range map[int64]time.Time{124: now, 125: now.Add(-3 * time.Hour)} {
		must.OK(t, history.Show(ctx, st.DB(), &history.Run{Ref: "120_4", Task: id, Mode: job.Active, Start: at, End: at}))
	}
	names := func(_ context.Context, id int64) (string, error) {
		if id == 126 { // a task that no poll has shown yet
			return "120_4", nil
		}
		return fmt.Sprint(id), nil
	}
	a.TaskName = names
	task := httpapi.MemoryReport{MiB: 1200} // it has four processes
	hand := httpapi.MemoryReport{ByHand: true}
	for job, want := range map[[2]string]httpapi.MemoryReport{
		{"7", ""}: {}, {"7", "ann"}: {MiB: 1200}, {"7", "bob"}: {}, {"8", "ann"}: {}, {"9", ""}: hand,
		{"10", "ann"}: {}, {"120_4", "ann"}: task, {"124", "ann"}: task, {"125", ""}: hand, {"126", ""}: {},
		{"126", "ann"}: task, {"127", "ann"}: hand,
	} {
		must.Equal(t, must.Get(a.MemoryLimit(ctx, job[0], job[1]))(t), want, job)
	}
	st.Close()
	must.Fail(t, must.Err(a.MemoryLimit(ctx, "7", "ann")), "", "without its database")
}

// Whatever the clock of a node says, its records have the times of the controller's clock, and an array's task is known
// by the name that polls showed, in its own record and as a co-runner.
func TestANodeWhoseClockIsOff(t *testing.T) {
	for _, behind := range []time.Duration{0, 3 * time.Hour, -3 * time.Hour} {
		ctx := t.Context()
		st := must.Get(store.Open(ctx, t.TempDir()+"/db"))(t)
		defer st.Close()
		a := open(st)
		start := time.Unix(1e9, 0).UTC()
		must.OK(t, history.Show(ctx, st.DB(), &history.Run{Ref: "8_3", Task: 9, Mode: job.Active, Start: start}))
		from, to := start.Add(-behind), start.Add(time.Minute-behind)
		for id, other := range map[int64]int64{7: 9, 9: 7} {
			isNew, _, err := a.Keep(ctx, &gpuprof.Record{
				JobID: id, Node: "n1", User: "ann", Start: from, End: to, GPUs: []gpuprof.GPU{{UUID: "GPU-1"}}, Shared: true,
				PeriodS: 60, Series: []rlcore.Use{{GPU: .5}},
				Neighbours: []gpuprof.Neighbour{{JobID: other, User: "ann", From: from, To: to}},
			}, behind)
			if err != nil || !isNew {
				t.Fatal(isNew, err)
			}
		}
		runs := must.Get(a.Runs.Unjudged(ctx))(t)
		must.Equal(t, len(runs), 2, "runs, a clock %v behind", behind)
		for _, r := range runs {
			with := map[string]string{"7": "8_3", "8_3": "7"}[r.Ref]
			if r.CoRunners[0].Ref != with || !r.Start.Equal(start) || !r.End.Equal(start.Add(time.Minute)) {
				t.Errorf("a clock %v behind: job %s, %v to %v, beside %s", behind, r.Ref, r.Start, r.End, r.CoRunners[0].Ref)
			}
		}
	}
}
