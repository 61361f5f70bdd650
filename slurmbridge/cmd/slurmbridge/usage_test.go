package main

import (
	"database/sql"
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
	"github.com/slurmbridge/slurmbridge/slurmbridge/archive"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

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
		must.Fail(t, must.Err(moment(now, bad)), "", bad)
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
		must.OK(t, j.RecordRuns(t.Context(), &job.Status{Mode: job.Shadow, Snap: snap}, nil))
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

// A database that is too large loses its oldest part, and never the last day. A year's footprints stay where the details
// of runs are far too many.
func TestDatabaseIsBounded(t *testing.T) {
	ctx := t.Context()
	st := must.Get(store.Open(ctx, filepath.Join(t.TempDir(), "s.db")))(t)
	defer st.Close()
	a := &archive.Archive{Store: st, Journal: journal.New(st.DB()), Runs: past(st)}
	now := time.Now()
	writeMonths(t, st.DB(), now, 12, 300)
	for day := range 120 {
		g := &job.Group{ID: int64(day + 1), State: job.Done, Decided: now.Add(-time.Duration(119-day) * 24 * time.Hour)}
		g.Members = append(g.Members, job.Member{Ref: fmt.Sprint(day), App: strings.Repeat("x", 32000)})
		must.OK(t, a.Journal.SaveGroup(ctx, g))
	}
	const leastKept = 24 * time.Hour
	full := must.Get(database.Size(ctx, st.DB()))(t)
	ever := usage.Query{Period: history.Period{From: now.AddDate(-2, 0, 0), To: now}, By: usage.User}
	type kept struct {
		Details            time.Duration
		Groups, Footprints int
	}
	for _, c := range []struct {
		name        string
		room        int64
		least, most kept
	}{
		{"room for all", full, kept{history.KeptFor, 91, 3600}, kept{history.KeptFor, 91, 3600}},
		{"room for half", full / 2, kept{leastKept, 10, 3600}, kept{history.KeptFor - 1, 60, 3600}},
		{"no room", 1, kept{leastKept, 2, 1}, kept{leastKept, 2, 50}},
	} {
		got := kept{
			must.Get(a.Tidy(ctx, now, c.room))(t), len(must.Get(a.Journal.Groups(ctx, time.Time{}, 1000))(t)),
			must.Get(loadUsage(ctx, st, now, ever))(t).Total.Runs,
		}
		must.Equal(t, got, kept{
			min(max(got.Details, c.least.Details), c.most.Details), min(max(got.Groups, c.least.Groups), c.most.Groups),
			min(max(got.Footprints, c.least.Footprints), c.most.Footprints),
		}, c.name)
		if size := must.Get(database.Size(ctx, st.DB()))(t); size > c.room && c.room > 1 {
			t.Errorf("%s: %d bytes", c.name, size)
		}
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
