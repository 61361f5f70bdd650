package usage

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Report sums up the footprints of runs that were on their GPUs in the query's period; those that still run are taken to
// run until now. It is nil where there is none.
func (s Store) Report(ctx context.Context, q Query, now time.Time) (*Report, error) {
	t := &tally{
		query: q, labels: map[int64]label{}, lines: map[string]*line{}, total: line{name: "all"},
		args: []any{q.From.UnixMilli(), q.To.UnixMilli(), database.JSON(q.Users), database.JSON(q.Accounts), now.UnixMilli()},
	}
	if err := database.Read(ctx, s.DB, func(r database.Querier) error { return t.read(ctx, r) }); err != nil {
		return nil, wrap("read", err)
	}
	if t.total.sums[runs] == 0 {
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
	sums    sums
	charged float64 // GPUs, shares as parts of one, by time, s
	charges bool
	harm    map[history.Harm]int
	name    string
	owner   string // the user of a job
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

func (t *tally) add(ref string, of label, s *sums) {
	w, priced := t.query.Weights[of.partition]
	for _, one := range []*line{t.line(ref, of), &t.total} {
		one.sums.add(s)
		if priced && w.GPU > 0 && s[held] > 0 {
			one.charges = true
			one.charged += (s[heldWhole] + (s[held]-s[heldWhole])*job.Units*w.Share/w.GPU) / (job.Units * 1000)
		}
	}
}

// span are runs that were on their GPUs in the period ?1 to ?2, as an index finds them, how long they took, and the factor
// by which they count.
type span struct{ where, took, part string }

// spans are all of them: those that lie in the period count whole, the others, of which the long ones may end much
// later, by their part in it; those that haven't ended last until ?5.
var spans = []span{
	{"ended > ?1 AND ended <= ?2 AND ended - took >= ?1", "took", ""},
	{
		fmt.Sprintf("ended > ?1 AND ended <= ?2 + %d AND ended - took < ?2 AND (ended > ?2 OR ended - took < ?1)", longMS),
		"took", " * ((min(ended, ?2) - max(ended - took, ?1)) * 1.0 / took)",
	},
	{
		fmt.Sprintf("ended > ?2 + %d AND ended - took < ?2 AND took > %d", longMS, longMS),
		"took", " * ((min(ended, ?2) - max(ended - took, ?1)) * 1.0 / took)",
	},
	{
		"ended = 0 AND max(-took, ?1) < min(?5, ?2)",
		"(?5 + took)", " * ((min(?5, ?2) - max(-took, ?1)) * 1.0 / (?5 + took))",
	},
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
	key, by, sum := "'' AS ref, who", " GROUP BY who", true
	switch t.query.By {
	case Job: // most jobs have one run; the runs of the others meet in their line
		key, by, sum = "ref, who", "", false
	case Node:
		key, by = "'' AS ref, place AS who", " GROUP BY place"
	}
	var ref string
	var s sums
	into := []any{&ref, &id}
	for i := range s {
		into = append(into, &s[i])
	}
	for i := range spans {
		if err := each(ctx, r, into, func() { t.add(ref, t.labels[id], &s) },
			`SELECT `+key+`, `+spans[i].figures(sum)+` FROM bridge_used WHERE `+spans[i].where+t.query.condition()+by, t.args...); err != nil {
			return err
		}
	}
	var flags, n int
	return each(ctx, r, []any{&ref, &id, &flags, &n}, func() { t.harm(ref, t.labels[id], flags, n) },
		`SELECT `+key+`, flags, count(*) FROM bridge_used INDEXED BY bridge_used_harm
		WHERE flags >= 16 AND ended >= ?1 AND ended < ?2`+t.query.condition()+` GROUP BY 1, 2, 3`, t.args...)
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

// harm counts the harm of n runs that ended in the period.
func (t *tally) harm(ref string, of label, flags, n int) {
	for _, l := range []*line{t.line(ref, of), &t.total} {
		for k, kind := range history.Harms() {
			if flags&(history.FlagHarm<<k) == 0 {
				continue
			}
			if l.harm == nil {
				l.harm = map[history.Harm]int{}
			}
			l.harm[kind] += n
		}
	}
}

func (t *tally) report() *Report {
	r := &Report{From: t.query.From, To: t.query.To, By: t.query.By, Total: t.total.line(), Lines: make([]Line, 0, len(t.lines))}
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
