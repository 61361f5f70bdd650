package usage

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Report sums up the footprints of runs that were on their GPUs in the query's period; those that still run are taken
// to run until now. It is nil where there is none.
func (s Store) Report(ctx context.Context, q Query, now time.Time) (*Report, error) {
	t := &tally{
		query: q, labels: map[int64]label{}, lines: map[string]*line{}, total: line{name: "all"},
		args: []any{q.From.UnixMilli(), q.To.UnixMilli(), database.JSON(q.Users), database.JSON(q.Accounts), now.UnixMilli()},
	}
	if err := database.Read(ctx, s.DB, func(r database.Querier) error { return t.read(ctx, r) }); err != nil {
		return nil, wrap("read", err)
	}
	if t.total.runs == 0 {
		return nil, nil
	}
	return t.report(), nil
}

type tally struct {
	query  Query
	args   []any // of the queries
	labels map[int64]label
	lines  map[string]*line
	total  line
}

type line struct {
	runs, unheld  int64
	sums          sums
	whole, record float64 // of what was held, by jobs of whole GPUs, and by those with records
	timed, judged int64
	charged       float64 // GPUs, shares as parts of one, by time, s
	charges       bool
	harm          map[history.Harm]int
	name          string
	owner         string // the user of a job
}

func (t *tally) line(ref string, of label) *line {
	name := of.user
	switch t.query.By {
	case Account:
		name = of.account
	case Partition:
		name = of.partition
	case Application:
		name = of.app
	case Node:
		name = of.node
	case Job:
		name = ref
	}
	l := t.lines[name]
	if l == nil {
		l = &line{name: name, owner: of.user}
		t.lines[name] = l
	}
	return l
}

// some are runs of a label, or of one of its jobs, that hold as many shares each and have the same flags, and their
// figures for one share.
type some struct {
	ref                     string
	label, shares, flags, n int64
	figures                 sums
}

// add adds runs to their line; ended: they ended in the period, so that their harm counts.
func (t *tally) add(x *some, ended bool) {
	of := t.labels[x.label]
	w, priced := t.query.Weights[of.partition]
	for _, l := range []*line{t.line(x.ref, of), &t.total} {
		l.runs += x.n
		if x.shares == 0 {
			l.unheld += x.n
		}
		l.sums.add(&x.figures, x.shares)
		held, price := float64(x.shares)*x.figures[held], 1.0
		if x.flags&history.FlagWhole > 0 {
			l.whole += held
		} else {
			price = job.Units * w.Share / w.GPU
		}
		if priced && w.GPU > 0 && held > 0 {
			l.charges, l.charged = true, l.charged+price*held/(job.Units*1000)
		}
		if x.flags&history.FlagRecorded > 0 {
			l.record += held
		}
		if x.flags&history.FlagTimed > 0 {
			l.timed += x.n
		}
		if x.flags&history.FlagJudged > 0 {
			l.judged += x.n
		}
		for k, kind := range history.Harms() {
			if ended && x.flags&(history.FlagHarm<<k) > 0 {
				if l.harm == nil {
					l.harm = map[history.Harm]int{}
				}
				l.harm[kind] += int(x.n)
			}
		}
	}
}

// longMS is how long a run takes to be in the index of long runs, ms.
const longMS = 2 * 24 * 3600 * 1000

// span are runs that were on their GPUs in the period ?1 to ?2, as an index finds them, how long they took, and the
// factor by which they count.
type span struct {
	where, took, part string
	ended             bool // in the period
}

// part is the factor for a run that lies partly in the period.
const part = " * ((min(ended, ?2) - max(ended - took, ?1)) * 1.0 / took)"

// spans select all runs of a period. Runs within it count whole, other runs by their part in it; a run of more than
// longMS may end long after the period, and a run that goes on lasts until ?5.
var spans = []span{
	{"ended > ?1 AND ended <= ?2 AND ended - took >= ?1", "took", "", true},
	{"ended > ?1 AND ended <= ?2 AND ended - took < ?1", "took", part, true},
	{fmt.Sprintf("ended > ?2 AND ended <= ?2 + %d AND ended - took < ?2", longMS), "took", part, false},
	{fmt.Sprintf("ended > ?2 + %d AND ended - took < ?2 AND took > %d", longMS, longMS), "took", part, false},
	{
		"ended = 0 AND max(-took, ?1) < min(?5, ?2)",
		"(?5 + took)", " * ((min(?5, ?2) - max(-took, ?1)) * 1.0 / (?5 + took))", false,
	},
}

// query is the SQL that sums up a span, by a job or not, and by a label.
func (s *span) query(q *Query) string {
	ref, label, count, total, largest, by := "''", "who", "count(*)", "total", "max", " GROUP BY who, shares, flags"
	switch q.By {
	case Job: // most jobs have one run; the runs of the others meet in their line
		ref, count, total, largest, by = "ref", "1", "", "", ""
	case Node:
		label, by = "place", " GROUP BY place, shares, flags"
	}
	of := strings.NewReplacer("{took}", s.took, "{part}", s.part)
	sql := "SELECT " + ref + ", " + label + ", shares, flags, " + count
	for _, f := range figures {
		sum := total
		if f.weight == most {
			sum = largest
		}
		sql += ", ifnull(" + sum + "(" + of.Replace(f.sql) + "), 0)"
	}
	return sql + " FROM bridge_used WHERE " + s.where + q.condition() + by
}

// condition is the SQL that restricts a query to the users ?3 and the accounts ?4.
func (q *Query) condition() (sql string) {
	if q.Users != nil {
		sql += " AND who IN (SELECT id FROM bridge_labels WHERE user IN (SELECT value FROM json_each(?3)))"
	}
	if q.Accounts != nil {
		sql += " AND who IN (SELECT id FROM bridge_labels WHERE account IN (SELECT value FROM json_each(?4)))"
	}
	return sql
}

func (t *tally) read(ctx context.Context, r database.Querier) error {
	var id int64
	var l label
	if err := each(ctx, r, []any{&id, &l.user, &l.account, &l.partition, &l.app, &l.node}, func() { t.labels[id] = l },
		`SELECT id, user, account, partition, app, node FROM bridge_labels`); err != nil {
		return err
	}
	var x some
	into := []any{&x.ref, &x.label, &x.shares, &x.flags, &x.n}
	for i := range x.figures {
		into = append(into, &x.figures[i])
	}
	for i := range spans {
		if err := each(ctx, r, into, func() { t.add(&x, spans[i].ended) }, spans[i].query(&t.query), t.args...); err != nil {
			return err
		}
	}
	return nil
}

// each calls row for each row of a query's result, which is in into then.
func each(ctx context.Context, r database.Querier, into []any, row func(), query string, args ...any) error {
	return database.Each(ctx, r, func(rows *sql.Rows) error {
		err := rows.Scan(into...)
		if err == nil {
			row()
		}
		return err
	}, query, args...)
}

func (t *tally) report() *Report {
	r := &Report{
		From: t.query.From, To: t.query.To, By: t.query.By, Total: t.total.line(),
		Lines: make([]Line, 0, len(t.lines)),
	}
	order := make([]*line, 0, len(t.lines))
	for _, l := range t.lines {
		order = append(order, l)
	}
	slices.SortFunc(order, func(a, b *line) int {
		return cmp.Or(cmp.Compare(b.sums[held], a.sums[held]), cmp.Compare(a.name, b.name))
	})
	if t.query.By == Job {
		r.Owners = make(map[string]string, len(order))
	}
	for _, l := range order {
		r.Lines = append(r.Lines, l.line())
		if r.Owners != nil {
			r.Owners[l.name] = l.owner
		}
	}
	r.Notes = r.notes(t.query.Weights != nil)
	return r
}
