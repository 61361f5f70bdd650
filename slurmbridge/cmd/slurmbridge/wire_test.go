package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// What the controller knows of a run and its node doesn't is in the record it keeps;
// what a node says of it isn't believed. Whose MPS server failed is a victim.
func TestRecordsAreCompleted(t *testing.T) {
	ctx := t.Context()
	st := must.Get(store.Open(ctx, t.TempDir()+"/db"))(t)
	defer st.Close()
	j := journal.New(st.DB())
	w := &wired{bridge: new(loop.Bridge), store: st, journal: j}
	apps := &recogniser{st}
	for id, script := range map[string]string{
		"1": "#!/bin/bash\nmodule load lammps\nsrun lmp -in melt.in -v steps 4000 -v n 64x64x64 data_2048.h5\n", "2": "",
	} {
		must.Get(apps.Identify(ctx, &job.Job{Ref: id, User: "ann"}, job.Terms{App: map[string]string{"2": "mine"}[id]},
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
		if isNew, err := w.keep(ctx, rec, -3*time.Second, nil); err != nil || !isNew {
			t.Fatal(isNew, err)
		}
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
	runs, err := past(st).Unjudged(ctx)
	if err != nil || len(runs) != 3 {
		t.Fatal(runs, err)
	}
	for i, want := range []struct{ fault, complete bool }{{true, true}, {false, false}, {false, true}} {
		if runs[i].MPSFault != want.fault || runs[i].Complete != want.complete {
			t.Errorf("run %d: fault %v, complete %v", i+1, runs[i].MPSFault, runs[i].Complete)
		}
	}
}

// The controller answers with what a job was given when its last group was decided, an array
// task by its own number once a poll has shown it.
func TestMemoryLimitOfAJob(t *testing.T) {
	ctx := t.Context()
	st := must.Get(store.Open(ctx, t.TempDir()+"/db"))(t)
	defer st.Close()
	j := journal.New(st.DB())
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
		must.OK(t, j.SaveGroup(ctx, g))
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
	w := &wired{store: st, journal: j, taskName: names}
	task := httpapi.MemoryReport{MiB: 1200} // it has four processes
	hand := httpapi.MemoryReport{ByHand: true}
	for job, want := range map[[2]string]httpapi.MemoryReport{
		{"7", ""}: {}, {"7", "ann"}: {MiB: 1200}, {"7", "bob"}: {}, {"8", "ann"}: {}, {"9", ""}: hand,
		{"10", "ann"}: {}, {"120_4", "ann"}: task, {"124", "ann"}: task, {"125", ""}: hand, {"126", ""}: {},
		{"126", "ann"}: task, {"127", "ann"}: hand,
	} {
		must.Equal(t, must.Get(w.memoryLimit(ctx, job[0], job[1]))(t), want, job)
	}
	st.Close()
	if limit, err := w.memoryLimit(ctx, "7", "ann"); err == nil {
		t.Errorf("without its database: %v", limit)
	}
}

// A policy that this file alone knows is explained, configured and listed. It is registered
// here and not with the package: the manual is written by a test of it.
func TestRegisteredPolicy(t *testing.T) {
	made := policy.Register(policy.Spec{
		Name: "madeup", About: "decides for this test", Rank: 1000, Live: true, Alone: true,
		New: func(policy.Setup) (rlcore.Policy, error) { return baseline.SJF{}, nil },
	})
	t.Run("help", func(t *testing.T) {
		if _, out, _ := call("serve", "--help"); !strings.Contains(out, made.Name) || !strings.Contains(out, made.About) {
			t.Errorf("serve --help: %s", out)
		}
	})
	t.Run("configuration", func(t *testing.T) {
		cfg := must.Get(config.Load(conf(t, "policy: "+made.Name), nil))(t)
		policies, err := newPolicies(cfg, interference.New(&contention.MPS), nil)
		if err != nil || len(policies) != 3 || policies[0].Name() != "sjf" || policies[2].Name() != "exclusive" {
			t.Errorf("it and what to fall back on: %v, %v", policies, err)
		}
	})
	t.Run("an unknown name's error", func(t *testing.T) {
		if _, _, errOut := call("plan", "-c", conf(t, "policy: coin")); !strings.Contains(errOut, ", "+made.Name) {
			t.Errorf("it isn't listed: %s", errOut)
		}
	})
}

// TestOnePolicy: serve and plan, which are wired alike, and experiment and replay,
// which let contenders compete, decide the same of the same State, value by value.
func TestOnePolicy(t *testing.T) {
	cfg := must.Get(config.Load("", nil))(t)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	model := interference.New(&contention.MPS)
	policies := must.Get(newPolicies(cfg, model, log))(t)
	live := newDecider(cfg, policies, model)
	cp := must.Get(pretrained.Checkpoint(policy.Turnaround))(t)
	net := must.Get(cp.Network(interference.New(&contention.MPS)))(t)
	world := &experiment.World{
		Model: func() *interference.Model { return interference.New(&contention.MPS) }, M: rlcore.DefaultWindow,
		Rules:   live.Guard.Rules,
		Trained: net,
	}
	contender := must.Get(world.Prepare(t.Context(), "dqn", nil, experiment.Effort{}, 1))(t)
	replayed := contender.Decider()
	scenario := must.Get(experiment.Thesis("random"))(t)
	job := must.Get(scenario(rand.New(rand.NewPCG(1, 2))))(t)
	s := must.Get(sim.New(job))(t)
	decisions, groups := 0, 0
	for s.Next() {
		a, b := live.Decide(s.State(), s.GPU()), replayed.Decide(s.State(), s.GPU())
		if a.Combo != b.Combo || a.Score != b.Score || !slices.Equal(a.Combos, b.Combos) ||
			!slices.Equal(a.Scores, b.Scores) {
			t.Fatalf("decision %d: the bridge takes %b of %b, the replay %b of %b", decisions, a.Combo, a.Combos, b.Combo,
				b.Combos)
		}
		decisions++
		if a.Combo.Len() > 1 {
			groups++
		}
		s.Take(a)
	}
	if decisions < 20 || groups == 0 {
		t.Errorf("%d decisions, %d groups: nothing was compared", decisions, groups)
	}
}

// Whatever the clock of a node says, its records have the times of the controller's clock, and an array's task is known
// by the name that polls showed, in its own record and as a co-runner.
func TestANodeWhoseClockIsOff(t *testing.T) {
	for _, behind := range []time.Duration{0, 3 * time.Hour, -3 * time.Hour} {
		ctx := t.Context()
		st := must.Get(store.Open(ctx, t.TempDir()+"/db"))(t)
		defer st.Close()
		w := &wired{bridge: new(loop.Bridge), store: st, journal: journal.New(st.DB())}
		start := time.Unix(1e9, 0).UTC()
		must.OK(t, history.Show(ctx, st.DB(), &history.Run{Ref: "8_3", Task: 9, Mode: job.Active, Start: start}))
		from, to := start.Add(-behind), start.Add(time.Minute-behind)
		for id, other := range map[int64]int64{7: 9, 9: 7} {
			must.Get(w.keep(ctx, &gpuprof.Record{
				JobID: id, Node: "n1", User: "ann", Start: from, End: to, GPUs: []gpuprof.GPU{{UUID: "GPU-1"}}, Shared: true,
				PeriodS: 60, Series: []rlcore.Use{{GPU: .5}},
				Neighbours: []gpuprof.Neighbour{{JobID: other, User: "ann", From: from, To: to}},
			}, behind, nil))(t)
		}
		runs := must.Get(past(st).Unjudged(ctx))(t)
		must.Equal(t, len(runs), 2, "runs, a clock %v behind", behind)
		for _, r := range runs {
			with := map[string]string{"7": "8_3", "8_3": "7"}[r.Ref]
			if r.CoRunners[0].Ref != with || !r.Start.Equal(start) || !r.End.Equal(start.Add(time.Minute)) {
				t.Errorf("a clock %v behind: job %s, %v to %v, beside %s", behind, r.Ref, r.Start, r.End, r.CoRunners[0].Ref)
			}
		}
	}
}
