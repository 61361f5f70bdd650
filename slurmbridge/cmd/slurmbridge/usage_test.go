package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// receiptOf runs the command by itself.
func receiptOf(file string, asJSON bool, args ...string) (string, error) {
	var out bytes.Buffer
	s := &shared{cli.Env{File: file, JSON: asJSON, Out: &out, ErrOut: &out}}
	c := newReceipt(s)
	c.SetArgs(append([]string{}, args...)) // nil would be those of the test binary
	c.SilenceUsage, c.SilenceErrors = true, true
	err := c.ExecuteContext(context.Background())
	return out.String(), err
}

// writeHistory fills a database: three jobs of an hour waited for one GPU from three hours
// ago on; two of them shared it, the third ran alone.
func writeHistory(t *testing.T, file string, mode job.Mode) {
	t.Helper()
	ctx := context.Background()
	cfg := must.Get(config.Load(file, nil))(t)
	st := must.Get(store.Open(ctx, cfg.Database))(t)
	defer st.Close()
	j := journal.New(st.DB())
	must.OK(t, st.Import(ctx,
		[]*rlcore.Profile{{
			App: "md", DurationS: 3600, PeriodS: 3600,
			Series: []rlcore.Use{{GPU: 0.3, Core: 0.2, MemMiB: 2000}},
		}}))
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
			Snap: &job.Snapshot{
				At: at(min), Jobs: jobs,
				Nodes: []job.Node{{Name: "n1", GPUs: 1, GPUType: "titanxp", Up: true, Partitions: []string{"gpu"}}},
			},
		}
	}
	first := poll(0, waiting("1"), waiting("2"), waiting("3"))
	first.Explanations = map[string]*job.Explanation{"3": {Refused: []job.Refusal{{
		With: []string{"1"}, Node: "n1",
		Reason: rlcore.RefusedMemory,
	}}}}
	second := poll(10, on("1", 0), on("2", 0), waiting("3"))
	second.Groups = []job.Group{{ID: 1, Policy: "greedy", Members: []job.Member{
		{Ref: "1", State: job.MemberRunning, Predicted: 1.1}, {Ref: "2", State: job.MemberRunning, Predicted: 1.12},
	}}}
	second.Explanations = map[string]*job.Explanation{"3": {KeptOut: []rlcore.Refusal{rlcore.RefusedMemory}}}
	for _, st := range []*job.Status{first, second, poll(80, on("3", 70)), poll(140)} {
		must.OK(t, j.RecordPoll(ctx, st))
	}
	for i, span := range [][2]int{{0, 70}, {0, 66}, {70, 130}} {
		r := &gpuprof.Record{
			JobID: int64(i + 1), Node: "n1", User: "ann", Start: at(span[0]).Add(300 * time.Millisecond), End: at(span[1]),
			GPUs: []gpuprof.GPU{{UUID: "GPU-1", MemMiB: 12196}}, Shared: true,
		}
		must.Get(st.AddRecord(ctx, r, "md"))(t)
		o := &history.Outcome{
			Run: int64(i + 1), Ref: fmt.Sprint(i + 1), User: "ann", App: "md", State: "COMPLETED",
			End: r.End, SoloS: 3600, Slowdown: float64(span[1]-span[0]) / 60,
		}
		if i < 2 {
			o.With, o.Predicted, o.Contract = []string{fmt.Sprint(2 - i)}, 1.1, 1.2
		}
		must.OK(t, past(st).Fit(ctx))
		must.OK(t, past(st).Store(ctx, o))
	}
}

func TestReceipt(t *testing.T) {
	file := conf(t, "policy: greedy")
	writeHistory(t, file, job.Active)
	out := must.Get(receiptOf(file, true, "--since", "1d"))(t)
	var r receipt.Receipt
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if r.Jobs != 3 || r.Shared != 2 || r.Grouped != 2 || r.Contracts.Kept != 2 || len(r.Refused) != 1 || r.Seen.Of != "1" {
		t.Errorf("%+v", r)
	}
	if x := r.Refused[0]; x.Jobs != 1 || x.Looks != 2 || math.Abs(x.WaitH-1./6) > 1e-9 {
		t.Errorf("job 3 waited for memory from the first poll to the second: %+v", x)
	}
	if h := r.Hours; h.Used < 2.1 || h.Used > 2.2 || h.OneByOne < 2.99 || h.OneByOne > 3.01 {
		t.Errorf("%+v", h)
	}
	if x := r.Replay; x == nil || x.Jobs != 3 || x.GPUs != 1 || x.Policy != "greedy" || x.All.Shorter == 0 ||
		x.Base.Wait < 0.99 || x.Base.Wait > 1.01 {
		t.Errorf("%+v %s", r.Replay, r.NoReplay)
	}
	text, err := receiptOf(file, false)
	for _, want := range []string{
		"3 jobs of 1 user ended", "Grouped: 2 jobs in 1 group", "GPU memory would not suffice",
		"Contracts: 2 kept, 0 broken",
	} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("it doesn't say %q: %v\n%s", want, err, text)
		}
	}
	if out, err := receiptOf(file, false, "--no-replay"); err != nil || !strings.Contains(out, "it was not requested") {
		t.Errorf("%q %v", out, err)
	}
	if _, err := receiptOf(file, false, "--what-if"); err == nil ||
		!strings.Contains(err.Error(), "of 3 jobs none requested one whole GPU") {
		t.Errorf("what if: %v", err)
	}
	for _, args := range [][]string{{"--what-if", "mig"}, {"--what-if=mig"}} {
		if _, err := receiptOf(file, false, args...); err == nil ||
			!strings.Contains(err.Error(), "no GPU of the nodes is known to have MIG") {
			t.Errorf("%q: %v", args, err)
		}
	}
	for _, args := range [][]string{{"mig"}, {"--what-if", "mix"}, {"--what-if=mig", "mig"}} {
		if _, err := receiptOf(file, false, args...); err == nil || !strings.Contains(err.Error(), "--what-if mig") {
			t.Errorf("%q: %v", args, err)
		}
	}
	if _, err := receiptOf(file, false, "--what-if", "--no-replay"); err == nil ||
		!strings.Contains(err.Error(), "--what-if") {
		t.Errorf("what if without a replay: %v", err)
	}
	if text, err := receiptOf(file, false, "--since", "10d", "--until", "1d"); err != nil ||
		!strings.Contains(text, "No job with a GPU is known to have ended") {
		t.Errorf("%v\n%s", err, text)
	}
}

// In shadow the same jobs say what would have been.
func TestReceiptOfShadow(t *testing.T) {
	file := conf(t, "mode: shadow", "policy: greedy")
	writeHistory(t, file, job.Shadow)
	if text, err := receiptOf(file, false); err != nil || !strings.Contains(text, "Shadow changed nothing") ||
		!strings.Contains(text, "3 in mode shadow") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestReceiptTimes(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"7d": now.AddDate(0, 0, -7), "2w": now.AddDate(0, 0, -14), "36h": now.Add(-36 * time.Hour),
		"1d12h": now.Add(-36 * time.Hour), "0h": now,
		"2026-03-01":                time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC),
		"2026-03-01T10:30":          time.Date(2026, 3, 1, 10, 30, 0, 0, time.UTC),
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
	for _, args := range [][]string{
		{"--since", "soon"},
		{"--since", "1d", "--until", "2d"},
		{"--limit", "0"},
		{"--until", "x"},
	} {
		if _, err := receiptOf(file, false, args...); err == nil || !strings.Contains(err.Error(), "--") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestUsage(t *testing.T) {
	file := conf(t, "policy: greedy")
	writeHistory(t, file, job.Active)
	status, out, errOut := call("usage", "--json", "--since", "1d", "-c", file)
	if status != 0 {
		t.Fatal(status, errOut)
	}
	var r usage.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	// Three runs that had all shares of their GPU, for 70, 66 and 60 minutes.
	if l := r.Total; l.Runs != 3 || math.Abs(l.Held-196./60) > 0.01 || len(r.Lines) != 1 || r.Lines[0].Name != "ann" ||
		l.Computed != nil {
		t.Errorf("%+v", r)
	}
	for _, by := range usage.Ways() {
		if status, out, errOut := call("usage", "--by", string(by), "-c", file); status != 0 ||
			!strings.Contains(out, "196.0") || !strings.Contains(out, "all") {
			t.Errorf("by %s: %d %s %s", by, status, out, errOut)
		}
	}
	if status, out, _ := call("usage", "--csv", "-c", file); status != 0 ||
		!strings.HasPrefix(out, "user,runs,held_gpu_h,computed_gpu_h,") || !strings.Contains(out, "\nann,3,3.2") {
		t.Errorf("%d %s", status, out)
	}
	// Called again it counts nothing twice.
	if _, again, _ := call("usage", "--json", "--since", "1d", "-c", file); !strings.Contains(again, `"runs": 3`) {
		t.Error(again)
	}
}

// What can't be answered is said in one sentence.
func TestUsageOfNothing(t *testing.T) {
	file := conf(t)
	writeHistory(t, file, job.Active)
	for says, c := range map[string]struct {
		status int
		args   []string
	}{
		"nothing is known of GPU jobs from ":             {1, []string{"--since", "10d", "--until", "1d"}},
		"nothing is known of GPU jobs of eve":            {1, []string{"--user", "eve"}},
		"nothing is known of GPU jobs of account absent": {1, []string{"--account", "absent"}},
		"--by: \"colour\": it takes user,":               {2, []string{"--by", "colour"}},
		"--since: \"soon\"":                              {2, []string{"--since", "soon"}},
		"is not before --until":                          {2, []string{"--since", "1d", "--until", "2d"}},
		"--limit is 0":                                   {2, []string{"--limit", "0"}},
		"choose one":                                     {2, []string{"--csv", "--json"}},
		"--me is one user":                               {2, []string{"--me", "--user", "bob"}},
		"--user and --account take names":                {2, []string{"--user", ""}},
		"take names, and got an empty":                   {2, []string{"--server", "localhost:1", "--account", "physics,"}},
		"--charged is worked out from the database":      {2, []string{"--charged", "--me"}},
		"no answer from the daemon":                      {1, []string{"--me"}},
		"is Slurm installed here":                        {1, []string{"--charged"}},
	} {
		status, out, errOut := call(append([]string{"usage", "-c", file}, c.args...)...)
		if status != c.status || out != "" || !strings.Contains(errOut, says) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%v: %d %q %q", c.args, status, out, errOut)
		}
	}
	cfg := must.Get(config.Load(file, nil))(t)
	db := must.Get(database.Open(t.Context(), cfg.Database))(t)
	must.Get(db.Exec(`PRAGMA user_version = 99`))(t)
	db.Close()
	if status, _, errOut := call("usage", "-c", file); status != 1 ||
		!strings.Contains(errOut, "another release of slurmbridge wrote it") || strings.Count(errOut, "\n") != 1 {
		t.Errorf("a database from the future: %d %q", status, errOut)
	}
}

// ran writes down that polls saw job 1, with a whole GPU from start on, and then no longer.
func ran(t *testing.T, j *journal.Journal, start, seen, gone time.Time) {
	t.Helper()
	x := job.Job{
		Ref: "1", ID: 1, User: "ann", Account: "lab", Partition: "gpu", State: job.Running, Submit: start,
		Start: start, Nodes: "n1", GPUs: []int{0}, Request: job.GPURequest{Kind: job.WholeGPU, Count: 1},
	}
	for _, snap := range []*job.Snapshot{{At: seen, Jobs: []job.Job{x}}, {At: gone}} {
		must.OK(t, j.RecordPoll(t.Context(), &job.Status{Mode: job.Shadow, Snap: snap}))
	}
}

// A job whose end a poll has just shown is in the daemon's answer, though tidy's next turn is a minute away.
func TestUsageHasTheRunThatJustEnded(t *testing.T) {
	ctx := t.Context()
	st := must.Get(store.Open(ctx, filepath.Join(t.TempDir(), "s.db")))(t)
	defer st.Close()
	w := &wired{store: st, journal: journal.New(st.DB()), bridge: &loop.Bridge{Log: slog.New(slog.DiscardHandler)}}
	now := time.Now().Truncate(time.Second)
	ran(t, w.journal, now.Add(-time.Hour), now.Add(-time.Minute), now.Add(-time.Second))
	r, err := w.usage(ctx, usage.Query{Period: history.Period{From: now.Add(-24 * time.Hour), To: now}, By: usage.User})
	if err != nil || r.Total.Runs != 1 || math.Abs(r.Total.Held-1) > 0.02 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestWeights(t *testing.T) {
	got, err := weightsOf(text.ParsePartitions([]byte("PartitionName=a " +
		"TRESBillingWeights=CPU=1.0,GRES/gpu=200,GRES/mps=2\nPartitionName=b " +
		"TRESBillingWeights=gres/gpu=100\nPartitionName=c TRESBillingWeights=CPU=1\n")))
	if err != nil || len(got) != 2 || got["a"] != (usage.Weights{GPU: 200, Share: 2}) ||
		got["b"] != (usage.Weights{GPU: 100}) {
		t.Errorf("%v %v", got, err)
	}
	if _, err := weightsOf(nil); !errors.Is(err, errNoBilling) {
		t.Error(err)
	}
}

// A year's footprints stay where the details of runs are far too many for the database.
func TestFootprintsOutliveTheRuns(t *testing.T) {
	ctx := t.Context()
	st := must.Get(store.Open(ctx, filepath.Join(t.TempDir(), "s.db")))(t)
	defer st.Close()
	w := &wired{store: st, journal: journal.New(st.DB())}
	now := time.Now()
	writeMonths(t, st.DB(), now, 12, 300)
	for k := range 120 {
		g := &job.Group{ID: int64(k + 1), State: job.Done, Decided: now.Add(-time.Duration(119-k) * 24 * time.Hour)}
		g.Members = append(g.Members, job.Member{Ref: fmt.Sprint(k), App: strings.Repeat("x", 32000)})
		must.OK(t, w.journal.SaveGroup(ctx, g))
	}
	full := must.Get(database.Size(ctx, st.DB()))(t)
	runs := func() int {
		ever := history.Period{From: now.AddDate(-2, 0, 0), To: now}
		r := must.Get(loadUsage(ctx, st, now, usage.Query{Period: ever, By: usage.User}))(t)
		return r.Total.Runs
	}
	if kept, err := w.tidyOnce(ctx, now, full/2); err != nil || kept >= history.KeptFor || runs() != 3600 {
		t.Errorf("%v of details and %d footprints are kept, %v", kept, runs(), err)
	}
	if kept, err := w.tidyOnce(ctx, now, 1); err != nil || kept != leastKept || runs() == 0 || runs() > 50 {
		t.Errorf("without room %v of details and %d footprints are kept, %v", kept, runs(), err)
	}
}

// writeMonths writes footprints as a cluster of 125 nodes with four GPUs each leaves them: so many jobs in each of the
// last months, of 300 users with 3 applications each.
func writeMonths(tb testing.TB, db *sql.DB, now time.Time, months, jobs int) {
	tb.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	const days = 30
	for d := range months * days {
		end := now.Add(-time.Duration(months*days-d) * 24 * time.Hour).Truncate(24 * time.Hour)
		list := make([]history.Footprint, 0, jobs/days)
		for i := range jobs / days {
			user := r.IntN(300)
			long := time.Duration(r.ExpFloat64() * 1.8 * float64(time.Hour))
			f := history.Footprint{
				Ref: fmt.Sprint(d*jobs/days + i), User: fmt.Sprintf("user%03d", user), Account: fmt.Sprintf("account%02d", user%40),
				Partition: "gpu", App: fmt.Sprintf("application-%d-%d", user, r.IntN(3)),
				Node: fmt.Sprintf("node%03d", r.IntN(125)),
				End:  end.Add(time.Duration(r.Int64N(int64(24*time.Hour)) / 1e6 * 1e6)), GPUs: 1, Whole: true, Judged: true,
				Timed: true,
			}
			f.Start = f.End.Add(-max(long, time.Second)).Truncate(time.Second)
			s := f.End.Sub(f.Start).Seconds()
			f.Use = &history.Use{
				KnownS: s, ComputedS: s * r.Float64(), IdleKnownS: s, MeanMiB: math.Round(8000 * r.Float64()),
				PeakMiB: math.Round(8000 * r.Float64()),
				CardMiB: 81920, EnergyJ: math.Round(s * 300 * r.Float64()),
			}
			if r.IntN(3) == 0 {
				f.GPUs, f.Whole, f.Use.SharedS, f.LostS, f.SavedS = 0.5, false, s, math.Round(s*0.1), math.Round(s*r.Float64())
			}
			list = append(list, f)
		}
		must.OK(tb, database.Tx(tb.Context(), db, func(tx *sql.Tx) error {
			for i := range list {
				if err := list[i].Write(tb.Context(), tx); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

// spentCPU is the processors' time that this process has taken; unlike the time that passes it doesn't depend on what
// else the machine does.
func spentCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	must.OK(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkUsage answers for a month of 20,000 jobs, and for the year of such months that the database holds; it
// reports the database's size. With SLURMBRIDGE_SLOW=1 a month also has 200,000, which takes long to write.
func BenchmarkUsage(b *testing.B) {
	months := []int{20_000}
	if os.Getenv("SLURMBRIDGE_SLOW") != "" {
		months = append(months, 200_000)
	}
	for _, jobs := range months {
		st := must.Get(store.Open(b.Context(), filepath.Join(b.TempDir(), "s.db")))(b)
		now := time.Now()
		writeMonths(b, st.DB(), now, 12, jobs)
		size := must.Get(database.Size(b.Context(), st.DB()))(b)
		for _, days := range []int{30, 365} {
			for _, by := range []usage.By{usage.User, usage.Node, usage.Job} {
				q := usage.Query{Period: history.Period{From: now.AddDate(0, 0, -days), To: now}, By: by, Limit: 1000}
				b.Run(fmt.Sprintf("%d jobs a month/%d days/%s", jobs, days, by), func(b *testing.B) {
					runs, before := 0, spentCPU(b)
					for b.Loop() {
						runs = must.Get(loadUsage(b.Context(), st, now, q))(b).Total.Runs
					}
					b.ReportMetric((spentCPU(b)-before).Seconds()/float64(b.N), "cpu-s/op")
					b.ReportMetric(float64(runs), "runs")
					b.ReportMetric(float64(size)/(1<<20), "MiB/year")
				})
			}
		}
		st.Close()
	}
}
