package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
)

// receiptOf runs the command by itself.
func receiptOf(file string, asJSON bool, args ...string) (string, error) {
	var out bytes.Buffer
	s := &shared{cli.Env{File: file, JSON: asJSON, Out: &out, ErrOut: &out}}
	c := newReceipt(s)
	c.SetArgs(args)
	c.SilenceUsage, c.SilenceErrors = true, true
	err := c.ExecuteContext(context.Background())
	return out.String(), err
}

// writeHistory fills a database: three jobs of an hour waited for one GPU from three hours
// ago on; two of them shared it, the third ran alone.
func writeHistory(t *testing.T, file string, mode job.Mode) {
	t.Helper()
	ctx := context.Background()
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(ctx, cfg.Database, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	j := journal.New(st.DB())
	if err := st.Import(ctx, []*rlcore.Profile{{App: "md", DurationS: 3600, PeriodS: 3600, Series: []rlcore.Use{{GPU: 0.3, Core: 0.2, MemMiB: 2000}}}}); err != nil {
		t.Fatal(err)
	}
	zero := time.Now().Add(-3 * time.Hour).Truncate(time.Second)
	at := func(min int) time.Time { return zero.Add(time.Duration(min) * time.Minute) }
	waiting := func(ref string) job.Job {
		return job.Job{
			Ref: ref, User: "ann", Account: "lab", Partition: "gpu", State: job.Pending, Priority: 1, Submit: zero,
			Request: job.GPURequest{Kind: job.Shares, Count: 100},
		}
	}
	on := func(ref string, start int) job.Job {
		x := waiting(ref)
		x.State, x.Start, x.Nodes, x.GPUs = job.Running, at(start), "n1", []int{0}
		return x
	}
	poll := func(min int, jobs ...job.Job) *job.Status {
		return &job.Status{
			Mode: mode, Apps: map[string]job.App{"1": {Key: "md"}, "2": {Key: "md"}, "3": {Key: "md"}},
			Snap: &job.Snapshot{At: at(min), Jobs: jobs, Nodes: []job.Node{{Name: "n1", GPUs: 1, GPUType: "titanxp", Up: true, Partitions: []string{"gpu"}}}},
		}
	}
	first := poll(0, waiting("1"), waiting("2"), waiting("3"))
	first.Explanations = map[string]*job.Explanation{"3": {Refused: []job.Refusal{{With: []string{"1"}, Node: "n1", Reason: rlcore.RefusedMemory}}}}
	for _, st := range []*job.Status{first, poll(10, on("1", 0), on("2", 0), waiting("3")), poll(80, on("3", 70)), poll(140)} {
		if err := j.RecordPoll(ctx, st); err != nil {
			t.Fatal(err)
		}
	}
	for i, span := range [][2]int{{0, 70}, {0, 66}, {70, 130}} {
		r := &gpuprof.Record{
			JobID: int64(i + 1), Node: "n1", User: "ann", Start: at(span[0]).Add(300 * time.Millisecond), End: at(span[1]),
			GPUs: []gpuprof.GPU{{UUID: "GPU-1", MemMiB: 12196}}, Shared: true,
		}
		if _, err := st.AddRecord(ctx, r, "md"); err != nil {
			t.Fatal(err)
		}
		o := &history.Outcome{Run: int64(i + 1), Ref: fmt.Sprint(i + 1), User: "ann", App: "md", State: "COMPLETED", End: r.End, SoloS: 3600, Slowdown: float64(span[1]-span[0]) / 60}
		if i < 2 {
			o.With, o.Predicted, o.Contract = []string{fmt.Sprint(2 - i)}, 1.1, 1.2
		}
		if err := j.SaveOutcome(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	g := &job.Group{ID: 1, Kind: job.StartNow, State: job.Done, Decided: at(0), Policy: "greedy", Members: []job.Member{
		{Ref: "1", State: job.MemberEnded, Start: at(0), Predicted: 1.1}, {Ref: "2", State: job.MemberEnded, Start: at(0), Predicted: 1.12},
	}}
	if err := j.SaveGroup(ctx, g); err != nil {
		t.Fatal(err)
	}
}

func TestReceipt(t *testing.T) {
	file := conf(t, "policy: greedy")
	writeHistory(t, file, job.Active)
	out, err := receiptOf(file, true, "--since", "1d")
	if err != nil {
		t.Fatal(err)
	}
	var r receipt.Receipt
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if r.Jobs != 3 || r.Shared != 2 || r.Grouped != 2 || r.Contracts.Kept != 2 || len(r.Refused) != 1 || r.Seen.Of != "1" {
		t.Errorf("%+v", r)
	}
	if h := r.Hours; h.Used < 2.1 || h.Used > 2.2 || h.OneByOne < 2.99 || h.OneByOne > 3.01 {
		t.Errorf("%+v", h)
	}
	if x := r.Replay; x == nil || x.Jobs != 3 || x.GPUs != 1 || x.Policy != "greedy" || x.All.Shorter == 0 || x.Alone.Wait < 0.99 || x.Alone.Wait > 1.01 {
		t.Errorf("%+v %s", r.Replay, r.NoReplay)
	}
	text, err := receiptOf(file, false)
	for _, want := range []string{"3 jobs of 1 user ended", "Grouped: 2 jobs in 1 group", "GPU memory would not suffice", "lab", "Contracts: 2 kept, 0 broken"} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("it doesn't say %q: %v\n%s", want, err, text)
		}
	}
	page := filepath.Join(t.TempDir(), "receipt.html")
	if out, err := receiptOf(file, false, "--html", page, "--no-replay"); err != nil || out != "" {
		t.Errorf("%q %v", out, err)
	}
	if body, err := os.ReadFile(page); err != nil || !bytes.Contains(body, []byte("<circle")) || !bytes.Contains(body, []byte("it was not requested")) || !bytes.Contains(body, []byte("/usage\"")) {
		t.Errorf("%v", err)
	}
	if _, err := receiptOf(file, false, "--what-if"); err == nil || !strings.Contains(err.Error(), "of 3 jobs none requested one whole GPU") {
		t.Errorf("what if: %v", err)
	}
	if _, err := receiptOf(file, false, "--what-if", "--html", page); err == nil || !strings.Contains(err.Error(), "--what-if") {
		t.Errorf("what if as a page: %v", err)
	}
	if text, err := receiptOf(file, false, "--since", "10d", "--until", "1d"); err != nil || !strings.Contains(text, "No job with a GPU is known to have ended") {
		t.Errorf("%v\n%s", err, text)
	}
}

// In shadow the same jobs say what would have been.
func TestReceiptOfShadow(t *testing.T) {
	file := conf(t, "mode: shadow", "policy: greedy")
	writeHistory(t, file, job.Shadow)
	if text, err := receiptOf(file, false); err != nil || !strings.Contains(text, "Shadow changed nothing") || !strings.Contains(text, "3 in mode shadow") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestReceiptTimes(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"7d": now.AddDate(0, 0, -7), "2w": now.AddDate(0, 0, -14), "36h": now.Add(-36 * time.Hour), "1.5d": now.Add(-36 * time.Hour), "0h": now,
		"2026-03-01": time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), "2026-03-01T10:30": time.Date(2026, 3, 1, 10, 30, 0, 0, time.UTC),
		"2026-03-01T10:30:00+02:00": time.Date(2026, 3, 1, 8, 30, 0, 0, time.UTC),
	} {
		if got, err := moment(now, text); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v %v, want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "d", "-7d", "NaNd", "1e99w", "infd", "yesterday", "-1h", "2026-13-01"} {
		if got, err := moment(now, bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
	file := conf(t)
	for _, args := range [][]string{{"--since", "soon"}, {"--since", "1d", "--until", "2d"}, {"--limit", "0"}, {"--until", "x"}} {
		if _, err := receiptOf(file, false, args...); err == nil || !strings.Contains(err.Error(), "--") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
