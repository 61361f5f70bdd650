package main

import (
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
)

// sharedHour is what a controller keeps of two jobs that shared a GPU for about an hour, the second of them
// an array task, where the node's clock is behind by that much.
type sharedHour struct {
	runs    []history.Run // as the receipt counts them
	receipt []byte
	mix     []byte
}

func keepSharedHour(t *testing.T, behind time.Duration) *sharedHour {
	t.Helper()
	ctx := t.Context()
	cfg, err := config.Load(conf(t, "policy: greedy"), nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	st, err := cli.OpenStore(ctx, cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	j := journal.New(st.DB())
	h := &history.History{Records: st, Journal: j}
	if err := st.Import(ctx, []*rlcore.Profile{{App: "md", DurationS: 3600, PeriodS: 3600, Series: []rlcore.Use{{GPU: 0.3, Core: 0.2, MemMiB: 2000}}}}); err != nil {
		t.Fatal(err)
	}

	// The controller sees them wait, run and end.
	zero := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(min int) time.Time { return zero.Add(time.Duration(min) * time.Minute) }
	show := func(min int, state job.JobState, refs ...string) {
		s := &job.Status{Mode: job.Active, Apps: map[string]job.App{}, Snap: &job.Snapshot{
			At: at(min), Nodes: []job.Node{{Name: "n1", GPUs: 1, GPUType: "titanxp", Up: true, Partitions: []string{"gpu"}}},
		}}
		for _, ref := range refs {
			x := job.Job{
				Ref: ref, User: "ann", Account: "lab", Partition: "gpu", State: state, Priority: 1, Submit: zero,
				Request: job.GPURequest{Kind: job.Shares, Count: 50},
			}
			if state == job.Running {
				x.Start, x.Nodes, x.GPUs = at(5), "n1", []int{0}
			}
			s.Apps[ref] = job.App{Key: "md"}
			s.Snap.Jobs = append(s.Snap.Jobs, x)
			if err := st.SetApp(ctx, ref, "ann", "md"); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.RecordPoll(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	show(0, job.Pending, "7", "8_3")
	show(6, job.Running, "7", "8_3")
	show(76, job.Running, "7")
	show(81, job.Running)
	if err := j.SaveTasks(ctx, at(6), map[int64]string{9: "8_3"}); err != nil {
		t.Fatal(err)
	}

	// Their node records them, by its clock.
	w := &wired{bridge: new(loop.Bridge), store: st, journal: j}
	node := func(min int) time.Time { return at(min).Add(-behind) }
	for _, rec := range []gpuprof.Record{
		{JobID: 9, End: node(75), Neighbours: []gpuprof.Neighbour{{JobID: 7, User: "ann", From: node(5), To: node(75)}}},
		{JobID: 7, End: node(80), Neighbours: []gpuprof.Neighbour{{JobID: 9, User: "ann", From: node(5), To: node(75)}}},
	} {
		rec.Node, rec.User, rec.Start, rec.Shared = "n1", "ann", node(5), true
		rec.GPUs, rec.PeriodS, rec.Series = []gpuprof.GPU{{UUID: "GPU-1", Model: "TITAN Xp", MemMiB: 12196}}, 60, []rlcore.Use{{GPU: 0.5}}
		if isNew, err := w.keep(ctx, &rec, behind, nil); err != nil || !isNew {
			t.Fatal(isNew, err)
		}
	}
	unjudged, err := h.Unjudged(ctx)
	if err != nil || len(unjudged) != 2 {
		t.Fatal(unjudged, err)
	}
	for i := range unjudged {
		judge := history.Judgement{Run: &unjudged[i], How: job.Description{State: "COMPLETED"}, Spec: rlcore.TitanXp}
		o := judge.Judge(interference.New(&contention.MPS))
		if err := h.Keep(ctx, &o); err != nil {
			t.Fatal(err)
		}
	}

	in, err := loadReceipt(ctx, cfg, st, log, at(0), at(120), true)
	if err != nil {
		t.Fatal(err)
	}
	in.UsageURL = "" // a port of its own each time
	mix, err := loadMix(ctx, cfg, st, j, at(0), at(120))
	if err != nil {
		t.Fatal(err)
	}
	if learn, held := mix.Sizes(); learn+held != 2 || mix.Guessed != 0 {
		t.Errorf("retraining draws %d runs, %d of them without their arrival", learn+held, mix.Guessed)
	}
	out := &sharedHour{runs: in.Jobs}
	if out.receipt, err = json.Marshal(receipt.Make(in)); err != nil {
		t.Fatal(err)
	}
	if out.mix, err = json.Marshal(mix); err != nil {
		t.Fatal(err)
	}
	return out
}

// Whatever the clock of a node says, receipt and retraining see the same runs at the same times, with the same
// co-runners.
func TestANodeWhoseClockIsOff(t *testing.T) {
	right := keepSharedHour(t, 0)
	for _, behind := range []time.Duration{20 * time.Minute, -20 * time.Minute} {
		got := keepSharedHour(t, behind)
		if len(got.runs) != 2 {
			t.Fatalf("a clock %v behind: the receipt counts %d runs", behind, len(got.runs))
		}
		for i := range got.runs {
			r, want := &got.runs[i], &right.runs[i]
			if r.Ref != want.Ref || !r.Start.Equal(want.Start) || !r.End.Equal(want.End) || !r.Ready.Equal(want.Ready) || r.Account != "lab" {
				t.Errorf("a clock %v behind: job %s from %v to %v, ready %v", behind, r.Ref, r.Start, r.End, r.Ready)
			}
			with := map[string]string{"7": "8_3", "8_3": "7"}[r.Ref]
			if o := r.Outcome; o == nil || !slices.Equal(o.With, []string{with}) || !o.Start.Equal(r.Start) || !o.End.Equal(r.End) {
				t.Errorf("a clock %v behind: outcome of job %s: %+v", behind, r.Ref, o)
			}
		}
		if string(got.receipt) != string(right.receipt) {
			t.Errorf("a clock %v behind: the receipt is\n%s\nand with a right one\n%s", behind, got.receipt, right.receipt)
		}
		if string(got.mix) != string(right.mix) {
			t.Errorf("a clock %v behind: retraining learns from something else", behind)
		}
	}
}
