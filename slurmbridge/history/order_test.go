package history

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// event is something that is told of a run: a poll that shows it for the first time or no longer, or its record.
type event struct {
	at   float64 // min
	tell func(ctx context.Context, t must.T, h *History)
}

// A job runs several times, on one node or another or both, perhaps between two polls. Whenever its records come, late or
// before the poll that shows the run, twice or never, and whatever its node's clock says, each run is one row with one
// footprint, its times and GPUs are its record's by the controller's clock where there is one, and what polls showed of it,
// the time in the queue and its end say, stays with it.
func TestRecordsMayComeWhenTheyLike(t *testing.T) {
	db := must.Get(database.Open(t.Context(), filepath.Join(t.TempDir(), "s.db")))(t)
	defer db.Close()
	ctx := t.Context()
	rapid.Check(t, func(rt *rapid.T) {
		for _, table := range []string{"run", "record", "bridge_used"} {
			must.Get(db.Exec(`DELETE FROM ` + table))(rt)
		}
		h := &History{DB: db, Profiles: known{}}
		var events []event
		var want []Run
		now := 0.0
		for i := range rapid.IntRange(1, 4).Draw(rt, "runs") {
			start := now + rapid.Float64Range(0.2, 30).Draw(rt, "waits")
			end := start + rapid.Float64Range(1, 90).Draw(rt, "runs for")
			gone := end + rapid.SampledFrom([]float64{0.1, 0.5, 3}).Draw(rt, "poll after its end")
			now = gone
			shown := polls(start, gone)
			shown.Node, shown.Start = fmt.Sprint("n", rapid.IntRange(1, 2).Draw(rt, "node")), at(start).Truncate(time.Second)
			seen := rapid.Bool().Draw(rt, "a poll sees it run") || end-start > 1
			ending := Ending{How: job.Description{State: fmt.Sprint("EXIT ", i)}}
			if !seen {
				shown.Start, shown.Node, shown.GPUs, shown.Ending = time.Time{}, "", nil, ending
			}
			nodes := []string{cmp.Or(shown.Node, "n1")}
			if seen && rapid.Bool().Draw(rt, "on both nodes") {
				shown.Node, shown.GPUs, nodes = "n[1-2]", nil, []string{"n1", "n2"}
			}
			ready := shown.Ready
			events = append(events,
				event{cmp.Or(map[bool]float64{true: start + 0.1}[seen], gone), func(ctx context.Context, t must.T, h *History) {
					r := shown
					if seen {
						r.End = time.Time{}
					}
					must.OK(t, database.Tx(ctx, h.DB, func(tx *sql.Tx) error { return Show(ctx, tx, &r) }))
				}})
			if seen {
				events = append(events, event{gone, func(ctx context.Context, t must.T, h *History) {
					must.OK(t, database.Tx(ctx, h.DB, func(tx *sql.Tx) error { return Close(ctx, tx, "1", shown.Start, at(gone), &ending) }))
				}})
			}
			one := Run{
				Ref: "1", Account: "lab", Mode: job.Active, Shares: 100, Ready: ready, Start: shown.Start, End: at(gone),
				GPUs: shown.GPUs, App: "ann md", // its profile
				Ending: ending,
			}
			came := 0
			for _, node := range nodes {
				comes := rapid.SampledFrom([]float64{0, 0.01, 1, 20, 500, -1}).Draw(rt, "its record comes after")
				if comes < 0 {
					continue
				}
				behind := rapid.SampledFrom([]float64{0, 0, -20, 20}).Draw(rt, "its node's clock is behind")
				rec := record(0, start+0.02-behind, end-behind)
				rec.Node, rec.Restart, rec.ClockBehindS = node, i, 60*behind
				for range rapid.IntRange(1, 2).Draw(rt, "times") {
					events = append(events, event{end + comes, func(ctx context.Context, t must.T, h *History) {
						must.Get(h.DB.Exec(`INSERT OR IGNORE INTO record (job_id, restart, node, started, ended, app, body) VALUES (1, ?, ?, ?, ?, 'md', ?)`,
							rec.Restart, rec.Node, rec.Start.UnixNano(), rec.ControllerTime(rec.End).UnixNano(),
							database.JSON(&rec.Record)))(t)
						must.OK(t, h.Fit(ctx))
					}})
				}
				came++
				one.Start, one.End, one.GPUs = rec.ControllerTime(rec.Start), rec.ControllerTime(rec.End),
					slices.Repeat([]int{1}, came)
			}
			if !one.Start.IsZero() {
				want = append(want, one)
			}
		}
		slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
		for _, e := range events {
			e.tell(ctx, rt, h)
		}
		got := must.Get(h.Ended(ctx, at(-1000), at(10000)))(rt)
		for i := range got {
			r := &got[i]
			got[i] = Run{
				Ref: r.Ref, Account: r.Account, Mode: r.Mode, Shares: r.Shares, Ready: r.Ready, Start: r.Start, End: r.End,
				GPUs: r.GPUs, App: r.Profile.App, Ending: r.Ending,
			}
		}
		clocks := cmpopts.EquateApproxTime(time.Millisecond)
		if diff := gocmp.Diff(want, got, cmpopts.IgnoreUnexported(Run{}), cmpopts.EquateEmpty(), clocks); diff != "" {
			rt.Fatalf("runs, - as they were, + as they are kept: %s", diff)
		}
		var footprints int
		must.OK(rt, db.QueryRow(`SELECT count(*) FROM bridge_used`).Scan(&footprints))
		must.Equal(rt, footprints, len(want), "footprints")
	})
}
