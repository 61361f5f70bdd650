package history

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(min float64) time.Time { return began.Add(time.Duration(min * float64(time.Minute))) }

// kept is what polls showed, nodes recorded and was concluded, in the order in which it came.
type kept struct {
	records []Record
	shown   []Run
}

// known knows every application.
type known struct{}

func (known) Known(_ context.Context, user, app, _ string) (*rlcore.Profile, error) {
	return &rlcore.Profile{App: user + " " + app}, nil
}

func (known) AppOf(context.Context, string, string) (app string, err error) { return "", nil }

func (known) Learn(context.Context, database.Querier, string, *gpuprof.Record, float64, bool) (bool, error) {
	return false, nil
}

func (known) Ran(context.Context, database.Querier, string, string, string, rlcore.Past) error {
	return nil
}

func (known) Stand(context.Context, database.Querier, rlcore.Identity, time.Time, *interference.Standing,
	[]interference.Lesson,
) error {
	return nil
}

func (known) Recall(context.Context, *interference.Model, time.Time) error { return nil }

// write writes all of it into an empty database.
func (k *kept) write(t testing.TB) *History {
	t.Helper()
	ctx := t.Context()
	db := must.Get(database.Open(ctx, filepath.Join(t.TempDir(), "s.db")))(t)
	t.Cleanup(func() { db.Close() })
	h := &History{DB: db, Profiles: known{}}
	for _, r := range k.shown {
		end := r.End
		if !r.Start.IsZero() {
			r.End = time.Time{}
		}
		must.OK(t, database.Tx(ctx, db, func(tx *sql.Tx) error {
			if err := Show(ctx, tx, &r); err != nil {
				return err
			}
			return Close(ctx, tx, r.Ref, r.Allotted, end, &Ending{})
		}))
	}
	for i := range k.records {
		rec := &k.records[i]
		must.Get(db.Exec(`INSERT INTO record (id, job_id, restart, node, started, ended, app, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			rec.ID, rec.JobID, rec.Restart, rec.Node, rec.Start.UnixNano(), rec.ControllerTime(rec.End).UnixNano(), rec.App,
			database.JSON(&rec.Record)))(t)
	}
	must.OK(t, h.Fit(ctx))
	return h
}

// polls is a run of job 1 as polls showed it.
func polls(from, to float64) Run {
	return Run{
		Ref: "1", User: "ann", Account: "lab", Partition: "gpu", App: "md", Mode: job.Active, Ready: at(from - 5),
		Start: at(from), End: at(to),
		Node: "n1", GPUs: []int{0}, Shares: 100,
	}
}

// record is a run of job 1 as its node recorded it.
func record(id int64, from, to float64) Record {
	return Record{ID: id, App: "md", Record: gpuprof.Record{
		JobID: 1, Node: "n1", User: "ann", Start: at(from), End: at(to), GPUs: []gpuprof.GPU{{Index: 1}}, Shared: true,
	}}
}

// judged are the judged runs that a filter selects.
func judged(t *testing.T, h *History, f Filter) []Run {
	t.Helper()
	f.Judged = true
	return must.List(t, h.Runs(t.Context(), f))
}

// ended returns the runs that ended in a period, in minutes.
func ended(t *testing.T, k *kept, from, to float64) []Run {
	t.Helper()
	return must.Get(k.write(t).Ended(t.Context(), at(from), at(to)))(t)
}

// Whose process broke the MPS server a record says by Slurm's numbers of jobs.
func TestWhoBrokeTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		by       []int64
		own      bool
		brokenBy string
	}{
		"not known":    {},
		"its own":      {by: []int64{1}, own: true},
		"neighbour 3":  {by: []int64{3}, brokenBy: "3"},
		"both":         {by: []int64{3, 1}, own: true, brokenBy: "3"},
		"a job beyond": {by: []int64{9}},
	} {
		rec := record(7, 0, 60)
		rec.MPSFault, rec.MPSFaultBy = at(30), c.by
		rec.Neighbours = []gpuprof.Neighbour{{JobID: 2, From: at(0), To: at(60)}, {JobID: 3, From: at(0), To: at(60)}}
		runs := must.Get((&kept{records: []Record{rec}}).write(t).Unjudged(t.Context()))(t)
		must.Equal(t, len(runs), 1, "runs")
		by := ""
		if r := runs[0].brokenBy(); r != nil {
			by = r.Ref
		}
		must.Equal(t, by, c.brokenBy, name)
		must.Equal(t, runs[0].Faulted, c.own, name)
	}
}

// A record of a later run isn't the missing one of an earlier run on several nodes.
func TestARunOnTwoNodesIsOver(t *testing.T) {
	shown, first, later := polls(0, 3), record(7, 0.1, 3), record(8, 4, 5)
	shown.Node, later.Node, later.Restart = "n[1-2]", "n2", 1
	runs := ended(t, &kept{records: []Record{first, later}, shown: []Run{shown}}, 0, 120)
	if len(runs) != 2 || len(runs[0].GPUs) != 1 || runs[1].Shown() {
		t.Errorf("%+v", runs)
	}
}

// A job that was requeued and cancelled as it waited did not run a second time: the record is of the run before.
func TestACancelledJobHasNoRecord(t *testing.T) {
	first, cancelled, rec := polls(0, 30), polls(31, 30.2), record(7, 0.5, 30)
	cancelled.Start, cancelled.Node, cancelled.GPUs, cancelled.Submit = time.Time{}, "", nil, at(30.1)
	for _, shown := range [][]Run{{first, cancelled}, {cancelled, first}} {
		runs := ended(t, &kept{records: []Record{rec}, shown: shown}, 0, 120)
		if len(runs) != 1 || runs[0].ID != 7 || !runs[0].Shown() || !runs[0].Allotted.Equal(at(0)) {
			t.Errorf("%+v", runs)
		}
	}
}

func TestARunThatOnlyOneSideShows(t *testing.T) {
	k := &kept{shown: []Run{polls(0, 61)}, records: []Record{record(7, 30, 60)}}
	runs := ended(t, k, 0, 100)
	if len(runs) != 2 || !runs[1].Shown() || runs[1].ID != 0 || runs[0].Shown() || runs[0].ID != 7 {
		t.Errorf("%+v", runs)
	}
}

// A job with all shares of a GPU has it alone, and its record says so; it may share all the same.
func TestAJobThatAskedForSharesMayShareThoughItHadThemAll(t *testing.T) {
	all := record(7, 0, 60)
	all.Shared = false
	k := &kept{shown: []Run{polls(0, 61)}, records: []Record{all}}
	must.Equal(t, ended(t, k, 0, 100)[0].WholeGPUs, 0)
	must.Equal(t, ended(t, k, 0, 100)[0].Job().NoShare, false)
	k.shown = nil // nothing but the record knows
	must.Equal(t, ended(t, k, 0, 100)[0].WholeGPUs, 1)
	must.Equal(t, ended(t, k, 0, 100)[0].Job().NoShare, true)
}

// Polls show an end a while after the record has it, where the bridge was away a long one: a run at the
// bound of two periods is one of the first.
func TestARunIsOfOnePeriod(t *testing.T) {
	for _, end := range []float64{59.5, 45, 20} {
		k := &kept{shown: []Run{polls(0, 65)}, records: []Record{record(7, 0, end)}}
		if first, second := ended(t, k, 0, 60), ended(t, k, 60, 120); len(first) != 1 || len(second) != 0 ||
			!first[0].Shown() {
			t.Errorf("ended at %v: %+v and %+v", end, first, second)
		}
	}
}

// An outcome is written down in place of an earlier one of its run, and is of the time in which the run ended.
func TestAnOutcomeReplacesAnEarlierOne(t *testing.T) {
	k := &kept{}
	for i := range int64(3) {
		k.records = append(k.records, record(i+5, 0, 60*float64(i+1)))
		k.records[i].JobID = 7 + i
	}
	k.records[1].Comment = "app=x,share:report"
	h := k.write(t)
	ctx := t.Context()
	for i := range k.records {
		r := must.Get(h.Unjudged(ctx))(t)[0]
		r.Ending.How.State, r.CoRunners = "FAILED", []CoRunner{{Ref: "8", App: "b"}}
		r.Outcome = &Outcome{Lessons: []interference.Lesson{{
			Card: "c", Victim: "a", Others: []string{"b"}, Slowdown: 1.5,
			Off: 0.25,
		}}}
		must.OK(t, h.Store(ctx, &r, &interference.Standing{}, nil))
		r.Outcome.Again = true
		must.OK(t, h.Amend(ctx, &r))
		last := must.Get(h.Last(ctx, r.Ref, r.ID+1))(t)
		none := must.Get(h.Last(ctx, r.Ref, r.ID))(t)
		must.Equal(t, last.ID, r.ID, "the job's last run")
		must.Equal(t, none, nil, "the run before it")
		all := judged(t, h, Filter{})
		if len(all) != i+1 || !reflect.DeepEqual(all[i].Outcome, r.Outcome) || all[i].State() != "FAILED" ||
			all[i].ID != k.records[i].ID || !reflect.DeepEqual(all[i].With(), []string{"8"}) {
			t.Fatalf("%+v", all)
		}
		must.Equal(t, len(must.Get(h.Unjudged(ctx))(t)), 2-i, "runs that are left to judge")
	}
	for what, c := range map[string]struct {
		f    Filter
		want string
	}{
		"all":                     {Filter{}, "[7 8 9]"},
		"of a time":               {Filter{From: at(120), To: at(180)}, "[8]"},
		"of the last time":        {Filter{From: at(120)}, "[8 9]"},
		"the last two":            {Filter{Latest: 2}, "[9 8]"},
		"who asked for a report":  {Filter{Judged: true, Reports: true, Latest: 9}, "[8]"},
		"of a job":                {Filter{Ref: "8"}, "[8]"},
		"whether they have ended": {Filter{From: at(120), Running: true}, "[8 9]"},
	} {
		var refs []string
		for _, r := range judged(t, h, c.f) {
			refs = append(refs, r.Ref)
		}
		must.Equal(t, fmt.Sprint(refs), c.want, what)
	}
	must.OK(t, h.Forget(ctx, at(90)))
	must.Equal(t, len(judged(t, h, Filter{})), 2, "after the old were forgotten")
}

// teachable learns from each run.
type teachable struct{ known }

func (teachable) Learn(context.Context, database.Querier, string, *gpuprof.Record, float64, bool) (bool, error) {
	return true, nil
}

// A run is said to have become part of its application's profile where it has.
func TestARunWithNothingToLearnFrom(t *testing.T) {
	for _, profiles := range []Profiles{known{}, teachable{}} {
		h := (&kept{records: []Record{record(7, 0, 60)}}).write(t)
		h.Profiles = profiles
		r := Run{ID: 7, Ref: "1", Outcome: &Outcome{Learned: true}}
		must.OK(t, h.Store(t.Context(), &r, &interference.Standing{}, nil))
		learns := profiles == Profiles(teachable{})
		must.Equal(t, [2]bool{r.Outcome.Learned, judged(t, h, Filter{})[0].Outcome.Learned}, [2]bool{learns, learns})
	}
}

// However often its owner requeues a job, a record is looked for among its last runs: they are compared with each other.
func TestAJobThatIsRequeuedForEver(t *testing.T) {
	k := &kept{}
	for i := range 2 * mostRuns {
		k.shown = append(k.shown, polls(float64(i), float64(i)+0.5))
	}
	last := float64(2*mostRuns - 1)
	k.records = []Record{record(7, last, last+0.5)}
	h := k.write(t)
	runs := must.Get(runsOf(t.Context(), h.DB, "1"))(t)
	must.Equal(t, len(runs), mostRuns, "runs that are compared")
	must.Equal(t, runs[mostRuns-1].ID, 7, "the record of the last one")
	must.Equal(t, len(must.List(t, h.Runs(t.Context(), Filter{}))), 2*mostRuns, "runs in all")
}

// A footprint is the run's of the moment, once, whatever becomes of its row.
func TestAFootprintFollowsItsRun(t *testing.T) {
	k := &kept{shown: []Run{polls(0, 300)}}
	h := k.write(t)
	ctx := t.Context()
	footprints := func() (n int, took float64) {
		must.OK(t, h.DB.QueryRow(`SELECT count(*), total(took) FROM bridge_used`).Scan(&n, &took))
		return n, took / 60000
	}
	if n, took := footprints(); n != 1 || took != 300 {
		t.Errorf("by polls: %d footprints of %v min", n, took)
	}
	rec := record(7, 0.1, 60) // which knows that the job had long ended
	must.Get(h.DB.Exec(`INSERT INTO record (id, job_id, restart, node, started, ended, app, body) VALUES (7, 1, 0, 'n1', ?, ?, 'md', ?)`,
		rec.Start.UnixNano(), rec.End.UnixNano(), database.JSON(&rec.Record)))(t)
	for range 2 {
		must.OK(t, h.Fit(ctx))
		if n, took := footprints(); n != 1 || took != 60 {
			t.Errorf("by its record: %d footprints of %v min", n, took)
		}
	}
	must.OK(t, h.Amend(ctx, &Run{ID: 7, Ref: "1", Outcome: &Outcome{}}))
	must.OK(t, h.Forget(ctx, at(1000)))
	if n, took := footprints(); n != 1 || took != 60 {
		t.Errorf("after the run was forgotten: %d footprints of %v min", n, took)
	}
}

func TestAnArrayTaskKnowsItsArray(t *testing.T) {
	for ref, want := range map[string]string{"12": "", "12_3": "12"} {
		must.Equal(t, (&Run{Ref: ref}).Job().Array, want, "job %s", ref)
	}
}
