package history

import (
	"cmp"
	"context"
	"database/sql"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Record is a node's record as it is kept.
type Record struct {
	ID  int64 // ascending in the order the records came
	App string
	gpuprof.Record
}

// Profiles are what is known of applications.
type Profiles interface {
	// AppOf returns the application that was recognised in a job, "" = none.
	AppOf(ctx context.Context, ref, user string) (app string, err error)
	// Known returns what is known of a user's application, nil = nothing.
	Known(ctx context.Context, user, app, card string) (*rlcore.Profile, error)
	// Learn makes a run alone, with its time limit, s, part of its application's profile, where it can.
	Learn(ctx context.Context, q database.Querier, app string, r *gpuprof.Record, limitS float64, cut bool) (bool, error)
	// Ran adds a run's length to the profile that there is of its application on a card.
	Ran(ctx context.Context, q database.Querier, user, app, card string, x rlcore.Past) error
	// Stand writes the standing of an application, and what a run of it at the given time taught of its co-runners.
	Stand(ctx context.Context, q database.Querier, of rlcore.Identity, at time.Time, s *interference.Standing,
		lessons []interference.Lesson) error
	// Recall has a model learn what was written since the given time.
	Recall(ctx context.Context, m *interference.Model, since time.Time) error
}

// History reads and writes runs, one row each. It implements Runs.
type History struct {
	DB       *sql.DB
	Profiles Profiles
}

const (
	// KeptFor is how long runs are kept.
	KeptFor = 90 * 24 * time.Hour
	// atOnce is how many records are taken, and how many runs one poll judges, at a time.
	atOnce = 200
	// mostRuns is how many runs of a job a record may be of: an owner may requeue a job every few seconds.
	mostRuns = 50
	// sameTime is how far the times of a record and of a poll may lie apart for the same run: Slurm takes its
	// time from a job's start to its prolog.
	sameTime = 10 * time.Minute
	// clocksApart is how far a record's times may be off once the offset of its node's clock is taken away.
	clocksApart = 5 * time.Second
	// atEnd is how close to a run's end another job must have been there to count as there when it ended:
	// nodes sample, and the members of a group end one by one.
	atEnd = 5 * time.Second
)

// columns are a row's, for scan.
const columns = `run.id, run.used, run.detail`

func (r *Run) columns() []any { return []any{&r.row, &r.used, database.JSON(r)} }

// list reads runs; where follows FROM.
func list(ctx context.Context, q database.Querier, where string, args ...any) ([]Run, error) {
	out, err := database.Intact(ctx, q, (*Run).columns, `SELECT `+columns+` FROM `+where, args...)
	return out, database.Wrap(err, "read runs")
}

// runsOf reads the last runs of a job.
func runsOf(ctx context.Context, q database.Querier, ref string) ([]Run, error) {
	return list(ctx, q, `run WHERE id IN (SELECT id FROM run WHERE ref = ? ORDER BY id DESC LIMIT ?) ORDER BY id`,
		ref, mostRuns)
}

// save writes the run's row and its footprint, in place of earlier ones.
func (r *Run) save(ctx context.Context, q database.Querier) error {
	if err := r.dropFootprint(ctx, q); err != nil {
		return err
	}
	f, counts := r.counted()
	if counts {
		if err := f.Write(ctx, q); err != nil {
			return err
		}
	}
	r.used = sql.NullInt64{Int64: f.ended(), Valid: counts}
	err := q.QueryRowContext(ctx, `INSERT INTO run (id, ref, task, ended, record, used, judged, detail)
		VALUES (nullif(?, 0), ?, nullif(?, 0), ?, nullif(?, 0), ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
		ended = excluded.ended, record = excluded.record, used = excluded.used, judged = excluded.judged,
		detail = excluded.detail RETURNING id`,
		r.row, r.Ref, r.Task, sql.NullInt64{Int64: r.End.UnixMilli(), Valid: !r.End.IsZero()}, r.ID, r.used, r.Outcome != nil,
		database.JSON(r)).Scan(&r.row)
	return database.Wrap(err, "write run of job %s", r.Ref)
}

func (r *Run) dropFootprint(ctx context.Context, q database.Querier) error {
	if !r.used.Valid {
		return nil
	}
	_, err := q.ExecContext(ctx, `DELETE FROM bridge_used WHERE ended = ? AND ref = ?`, r.used, r.Ref)
	return database.Wrap(err, "write footprint of job %s", r.Ref)
}

// Show writes a run that a poll shows for the first time, with zero Start one that came and went between two polls. Its
// records may have come before.
func Show(ctx context.Context, q database.Querier, r *Run) error {
	r.Allotted = r.Start
	all, err := runsOf(ctx, q, r.Ref)
	written := func(x Run) bool { return x.Shown() && !r.Start.IsZero() && x.Allotted.Equal(r.Start) }
	if err != nil || slices.ContainsFunc(all, written) { // by an earlier daemon
		return err
	}
	if err := r.save(ctx, q); err != nil {
		return err
	}
	return join(ctx, q, r.Ref)
}

// join makes the records of a job parts of the runs that polls showed, those nearest in time first.
func join(ctx context.Context, q database.Querier, ref string) error {
	all, err := runsOf(ctx, q, ref)
	for err == nil {
		to, from, nearest := -1, -1, sameTime
		for i := range all {
			for k := range all {
				if d, ok := all[i].apart(&all[k]); ok && d < nearest {
					to, from, nearest = i, k, d
				}
			}
		}
		if to < 0 {
			return nil
		}
		r, part := &all[to], &all[from]
		r.take(part)
		err = part.dropFootprint(ctx, q)
		if err == nil {
			_, err = q.ExecContext(ctx, `DELETE FROM run WHERE id = ?`, part.row)
		}
		if err == nil {
			err = r.save(ctx, q)
		}
		all = slices.Delete(all, from, from+1)
	}
	return database.Wrap(err, "join records of job %s", ref)
}

// Close writes that polls no longer show a job's run that Slurm started then, or show it end, and what is known of its
// end; a zero ending, that nothing is known. What was written first stays, and so does the end that a record knows.
func Close(ctx context.Context, q database.Querier, ref string, start, at time.Time, e *Ending) error {
	return Change(ctx, q, ref, start, func(r *Run) {
		if r.End.IsZero() {
			r.End = at
		}
		if !r.Ending.written() {
			r.Ending = *e
			r.Ending.Node, r.Ending.GPUs = "", nil // the run has them
		}
	})
}

// Change changes what polls say of the run of a job that Slurm started then. Of a run with an End its record may know
// better.
func Change(ctx context.Context, q database.Querier, ref string, start time.Time, f func(*Run)) error {
	all, err := runsOf(ctx, q, ref)
	for i := range all {
		if r := &all[i]; r.Shown() && r.Allotted.Equal(start) {
			f(r)
			return r.save(ctx, q)
		}
	}
	return err
}

// Open returns the runs that polls have not shown to have ended.
func Open(ctx context.Context, q database.Querier) ([]Run, error) {
	return list(ctx, q, `run WHERE ended IS NULL`)
}

// Fit makes the records that have come since its last call part of their runs. Each is taken once, whoever calls.
func (h *History) Fit(ctx context.Context) error {
	known := h.known(ctx)
	for more := true; more; {
		err := database.Tx(ctx, h.DB, func(tx *sql.Tx) error {
			records, err := recordsOf(ctx, tx, `NOT fitted ORDER BY id LIMIT ?`, atOnce)
			for i := 0; err == nil && i < len(records); i++ {
				err = h.fit(ctx, tx, &records[i], known)
			}
			more = len(records) == atOnce
			return err
		})
		if err != nil {
			return database.Wrap(err, "join records with runs")
		}
	}
	return nil
}

// fit writes the run of a record, which becomes part of the run that polls showed, if one is near enough in time.
func (h *History) fit(ctx context.Context, tx *sql.Tx, rec *Record, known lookup) error {
	own, with, err := h.company(ctx, rec, rec.App, known)
	if err != nil {
		return err
	}
	r := recordedRun(rec)
	r.Use = useOf(rec, own, with)
	if err := r.save(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE record SET fitted = 1 WHERE id = ?`, r.ID); err != nil {
		return err
	}
	return join(ctx, tx, r.Ref)
}

// recordsOf reads records.
func recordsOf(ctx context.Context, q database.Querier, where string, args ...any) ([]Record, error) {
	all, err := database.Intact(ctx, q, func(r *Record) []any { return []any{&r.ID, &r.App, database.JSON(&r.Record)} },
		`SELECT id, app, body FROM record WHERE `+where, args...)
	return all, database.Wrap(err, "read records")
}

// lookup is Profiles.Known, which is asked once for each application.
type lookup func(user, app, card string) (*rlcore.Profile, error)

func (h *History) known(ctx context.Context) lookup {
	all := map[[3]string]*rlcore.Profile{}
	return func(user, app, card string) (p *rlcore.Profile, err error) {
		p, ok := all[[3]string{user, app, card}]
		if !ok {
			if p, err = h.Profiles.Known(ctx, user, app, card); err == nil {
				all[[3]string{user, app, card}] = p
			}
		}
		return p, err
	}
}

// recordedRun is a run as its record shows it, by the controller's clock.
func recordedRun(rec *Record) Run {
	r := Run{
		ID: rec.ID, Nodes: []string{rec.Node}, Ref: rec.Ref(), User: rec.User, App: rec.App,
		Terms: job.ParseTerms(rec.Comment),
		Start: rec.ControllerTime(rec.Start), End: rec.ControllerTime(rec.End), Node: rec.Node, Devices: rec.GPUs,
		PeakMemMiB: rec.Peak.MemMiB,
		Complete:   len(rec.GPUs) == 1 && !rec.Cut && len(rec.Series) > 0 && !rec.NoEpilog,
		WithoutMPS: rec.WithoutMPS, Host: rec.Host,
		MPSFault: !rec.MPSFault.IsZero(), Faulted: slices.Contains(rec.MPSFaultBy, rec.JobID),
	}
	for i := range rec.GPUs {
		r.GPUs = append(r.GPUs, rec.GPUs[i].Index)
	}
	if !rec.Shared {
		r.WholeGPUs = len(rec.GPUs)
	}
	return r
}

// apart is the time between a run that polls showed and a record of the same job, each node's once; false = they are of
// different runs. Where no poll showed the start, the ends are compared. A run that was over before the record's start
// is another one, and so is what was submitted, or requeued, after it, and cancelled.
func (r *Run) apart(rec *Run) (time.Duration, bool) {
	switch {
	case !r.Shown() || rec.Shown() || r.ID != 0 && !several(r.Node) || slices.Contains(r.Nodes, rec.Node),
		r.Node != "" && r.Node != rec.Node && !several(r.Node),
		!r.End.IsZero() && rec.Start.Sub(r.End) > clocksApart:
		return 0, false
	case r.Allotted.IsZero():
		return rec.End.Sub(r.End).Abs(), r.Submit.Sub(rec.Start) <= clocksApart
	}
	return rec.Start.Sub(r.Allotted).Abs(), true
}

// several reports whether a run was on several nodes, of which its Node is a list.
func several(node string) bool { return strings.ContainsAny(node, "[,") }

// take completes what polls showed of a run by the record of one of its nodes, which knows best when and where the job
// ran.
func (r *Run) take(rec *Run) {
	first := r.ID == 0
	if first {
		r.ID, r.Terms, r.App, r.Host = rec.ID, rec.Terms, cmp.Or(rec.App, r.App), rec.Host
		r.Start, r.End, r.GPUs = rec.Start, rec.End, nil
		if !several(r.Node) {
			r.Node = rec.Node
		}
	} else if r.Host != nil && rec.Host != nil {
		r.Host = &gpuprof.Host{Cores: r.Host.Cores + rec.Host.Cores, MemMiB: r.Host.MemMiB + rec.Host.MemMiB}
	}
	if rec.Start.Before(r.Start) {
		r.Start = rec.Start
	}
	if rec.End.After(r.End) {
		r.End = rec.End
	}
	r.Use = r.Use.and(rec.Use, len(r.GPUs), len(rec.GPUs))
	r.Nodes, r.GPUs, r.Devices = slices.Concat(r.Nodes, rec.Nodes), slices.Concat(r.GPUs, rec.GPUs),
		slices.Concat(r.Devices, rec.Devices)
	r.PeakMemMiB += rec.PeakMemMiB
	r.Complete, r.MPSFault = first && rec.Complete, r.MPSFault || rec.MPSFault
	r.Faulted, r.WithoutMPS = r.Faulted || rec.Faulted, r.WithoutMPS || rec.WithoutMPS
	if r.Outcome == nil && rec.Outcome != nil {
		r.Outcome, r.CoRunners = rec.Outcome, rec.CoRunners
		r.Ending.How = cmp.Or(r.Ending.How, rec.Ending.How)
	}
}

// Unjudged returns the runs with records that have no outcome, in the order of their records, some at a time.
func (h *History) Unjudged(ctx context.Context) ([]Run, error) {
	if err := h.Fit(ctx); err != nil {
		return nil, err
	}
	runs, err := list(ctx, h.DB, `run WHERE NOT judged AND record IN (SELECT id FROM record)
		ORDER BY record LIMIT ?`, atOnce)
	known := h.known(ctx)
	for i := 0; err == nil && i < len(runs); i++ {
		r := &runs[i]
		var records []Record
		if records, err = recordsOf(ctx, h.DB, `id = ?`, r.ID); err == nil && len(records) > 0 {
			r.Profile, r.CoRunners, err = h.company(ctx, &records[0], r.App, known)
		}
	}
	return runs, err
}

// company is what is known of the application of a record's run, and the run's neighbours, in the record's order.
func (h *History) company(ctx context.Context, rec *Record, app string, known lookup) (
	own *rlcore.Profile, all []CoRunner, err error,
) {
	if own, err = known(rec.User, app, rec.Model()); err != nil {
		return nil, nil, err
	}
	for _, n := range rec.Neighbours {
		c := CoRunner{
			Owner: n.User, FromS: n.From.Sub(rec.Start).Seconds(), ToS: n.To.Sub(rec.Start).Seconds(),
			AtEnd: rec.End.Sub(n.To) < atEnd, Faulted: slices.Contains(rec.MPSFaultBy, n.JobID),
		}
		if c.Ref, err = h.TaskName(ctx, n.JobID, rec.ControllerTime(n.From), rec.ControllerTime(n.To)); err != nil {
			return nil, nil, err
		}
		if c.App, err = h.Profiles.AppOf(ctx, c.Ref, n.User); err != nil {
			return nil, nil, err
		}
		if c.Profile, err = known(n.User, c.App, rec.Model()); err != nil {
			return nil, nil, err
		}
		all = append(all, c)
	}
	return own, all, nil
}

// clocks is how far a node's clock may be off.
const clocks = time.Hour

// TaskName names the job that ran under a number for some or all of the time from start to end: "120_4" for an array
// task that a poll showed, else the number. slurmctld may start to count from the beginning again, so the times must
// agree.
func (h *History) TaskName(ctx context.Context, id int64, start, end time.Time) (string, error) {
	runs, err := list(ctx, h.DB, `run WHERE task = ? ORDER BY id DESC LIMIT ?`, id, mostRuns)
	for i := range runs {
		r := &runs[i]
		if r.Allotted.Before(end.Add(clocks)) && (r.End.IsZero() || r.End.After(start.Add(-clocks))) {
			return r.Ref, nil
		}
	}
	return strconv.FormatInt(id, 10), err
}

// Last implements Runs.
func (h *History) Last(ctx context.Context, ref string, before int64) (*Run, error) {
	all, err := list(ctx, h.DB, `run WHERE ref = ? AND judged AND record < ? ORDER BY record DESC LIMIT 1`, ref, before)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

// Store implements Runs. A run whose outcome is Learned becomes part of its application's profile; of another run only
// the length does, where it is known. Store clears Learned if the run has nothing to learn from, for example because
// the agent has missed too much of it.
func (h *History) Store(ctx context.Context, r *Run, s *interference.Standing, before *Run) error {
	return database.Tx(ctx, h.DB, func(tx *sql.Tx) error {
		if before != nil {
			if err := writeDown(ctx, tx, before); err != nil {
				return err
			}
		}
		if err := h.learn(ctx, tx, r); err != nil {
			return err
		}
		if err := h.Profiles.Stand(ctx, tx, r.Identity(), r.End, s, r.Outcome.Lessons); err != nil {
			return err
		}
		return writeDown(ctx, tx, r)
	})
}

// learn makes a run, or its length, part of its application's profile.
func (h *History) learn(ctx context.Context, tx *sql.Tx, r *Run) error {
	o := r.Outcome
	if !o.Learned && o.BelievedS == 0 {
		return nil
	}
	records, err := recordsOf(ctx, tx, `id = ?`, r.ID)
	if err != nil || len(records) == 0 {
		return err
	}
	rec := &records[0]
	if !o.Learned {
		x := rlcore.Past{SoloS: o.BelievedS, LimitS: r.OwnLimitS(), Shared: true}
		return h.Profiles.Ran(ctx, tx, rec.User, rec.App, rec.Model(), x)
	}
	o.Learned, err = h.Profiles.Learn(ctx, tx, rec.App, &rec.Record, r.OwnLimitS(), o.Cut)
	return err
}

// Recall implements Runs.
func (h *History) Recall(ctx context.Context, m *interference.Model, since time.Time) error {
	return h.Profiles.Recall(ctx, m, since)
}

// Amend implements Runs.
func (h *History) Amend(ctx context.Context, r *Run) error {
	return database.Tx(ctx, h.DB, func(tx *sql.Tx) error { return writeDown(ctx, tx, r) })
}

// writeDown writes what was concluded of a run into its row, to which another node's record may have been added.
func writeDown(ctx context.Context, tx *sql.Tx, r *Run) error {
	all, err := list(ctx, tx, `run WHERE record = ?`, r.ID)
	for i := range all {
		row := &all[i]
		row.Outcome, row.CoRunners, row.Ending.How = r.Outcome, r.CoRunners, r.Ending.How
		err = row.save(ctx, tx)
	}
	return err
}

// Filter selects runs; the zero one selects all.
type Filter struct {
	Ref      string    // of this job
	From, To time.Time // that ended in [From, To)
	Running  bool      // and those that haven't ended
	Judged   bool      // with an outcome alone
	Reports  bool      // whose owners want a report alone
	// Latest is how many there are at most, the latest first; 0 = all, in the order of their ends, those with outcomes in
	// that of their records.
	Latest int
}

// query is the filter as SQL.
func (f *Filter) query() (string, []any) {
	from, where, order := "run", "TRUE", "ended, ref"
	var args []any
	and := func(when bool, condition string, values ...any) {
		if when {
			where, args = where+" AND "+condition, append(args, values...)
		}
	}
	and(f.Ref != "", "ref = ?", f.Ref)
	and(!f.From.IsZero() && f.Running, "(ended >= ? OR ended IS NULL)", f.From.UnixMilli())
	and(!f.From.IsZero() && !f.Running, "ended >= ?", f.From.UnixMilli())
	and(!f.To.IsZero(), "ended < ?", f.To.UnixMilli())
	and(f.Judged, "judged")
	and(f.Reports, "json_extract(detail, '$.terms.report')")
	switch {
	case f.Latest > 0:
		order = "ended DESC NULLS FIRST, ref LIMIT ?"
		args = append(args, f.Latest)
	case f.Judged && f.From.IsZero():
		from, order = "run INDEXED BY run_record", "record" // so that nothing need be sorted
		where += " AND record NOT NULL"
	case f.Judged:
		order = "record"
	}
	return `SELECT ` + columns + ` FROM ` + from + ` WHERE ` + where + ` ORDER BY ` + order, args
}

// Runs are the runs that a filter selects.
func (h *History) Runs(ctx context.Context, f Filter) iter.Seq2[Run, error] {
	query, args := f.query()
	return func(yield func(Run, error) bool) {
		for r, err := range database.Rows(ctx, h.DB, (*Run).columns, query, args...) {
			if !yield(r, database.Wrap(err, "read runs")) {
				return
			}
		}
	}
}

// Ended returns the runs that ended in [from, to), with what is known of their applications.
func (h *History) Ended(ctx context.Context, from, to time.Time) (all []Run, err error) {
	if err := h.Fit(ctx); err != nil {
		return nil, err
	}
	known := h.known(ctx)
	for r, err := range h.Runs(ctx, Filter{From: from, To: to}) {
		if err != nil {
			return nil, err
		}
		if r.Start.IsZero() {
			continue // it never ran
		}
		if r.Profile, err = known(r.User, r.App, gpuprof.ModelOf(r.Devices)); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Forget removes the runs that ended before the given time; their footprints stay.
func (h *History) Forget(ctx context.Context, before time.Time) error {
	for _, query := range []string{
		`DELETE FROM run WHERE ended < ?1`,
		// the highest number must not be given out again: outcomes name it
		`DELETE FROM record WHERE ended < ?1 * 1000000 AND id < (SELECT max(id) FROM record)`,
	} {
		if _, err := h.DB.ExecContext(ctx, query, before.UnixMilli()); err != nil {
			return database.Wrap(err, "forget old runs")
		}
	}
	return nil
}
