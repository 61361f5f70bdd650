package usage

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Report sums up the footprints of runs that were on their GPUs in the query's period, and runs that haven't ended. It
// is nil where there is none.
func (s Store) Report(ctx context.Context, q Query, running []history.Footprint) (*Report, error) {
	t := &tally{query: q, labels: map[int64]label{}, lines: map[string]*line{}, total: line{name: "all"}}
	if err := t.read(ctx, s.DB); err != nil {
		return nil, wrap("read", err)
	}
	for i := range running {
		t.run(&running[i])
	}
	if t.total.sums[runs] == 0 {
		return nil, nil
	}
	return t.report(), nil
}

type tally struct {
	query  Query
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

func (t *tally) add(l *line, of label, s *sums) {
	w, priced := t.query.Weights[of.partition]
	for _, one := range []*line{l, &t.total} {
		one.sums.add(s)
		if priced && w.GPU > 0 && s[held] > 0 {
			one.charges = true
			one.charged += (s[heldWhole] + (s[held]-s[heldWhole])*job.Units*w.Share/w.GPU) / (job.Units * 1000)
		}
	}
}

// run adds a run that hasn't ended.
func (t *tally) run(f *history.Footprint) {
	q := &t.query
	from, to := max(f.Start.UnixMilli(), q.From.UnixMilli()), min(f.End.UnixMilli(), q.To.UnixMilli())
	if from >= to || q.Users != nil && !slices.Contains(q.Users, f.User) || q.Accounts != nil && !slices.Contains(q.Accounts, f.Account) {
		return
	}
	s := sums{runs: 1}
	if s[held] = f.GPUs * job.Units * float64(to-from); s[held] == 0 {
		s[unheld] = 1
	} else if f.Whole {
		s[heldWhole] = s[held]
	}
	of := label{user: f.User, account: f.Account, partition: f.Partition, app: f.App, node: f.Node}
	t.add(t.line(f.Ref, of), of, &s)
}

// spans are the runs that were on their GPUs in the period ?1 to ?2, in parts that an index finds: those that lie in it
// count whole; the others, of which the long ones may end much later, by their part in it.
var spans = []struct{ where, part string }{
	{"ended > ?1 AND ended <= ?2 AND ended - took >= ?1", ""},
	{fmt.Sprintf("ended > ?1 AND ended <= ?2 + %d AND ended - took < ?2 AND (ended > ?2 OR ended - took < ?1)", longMS), part},
	{fmt.Sprintf("ended > ?2 + %d AND ended - took < ?2 AND took > %d", longMS, longMS), part},
}

// part is the factor by which a run counts that lies partly in the period.
const part = " * ((min(ended, ?2) - max(ended - took, ?1)) * 1.0 / took)"

func (t *tally) read(ctx context.Context, db *sql.DB) error {
	return database.Read(ctx, db, func(r database.Querier) error {
		if err := t.readLabels(ctx, r); err != nil {
			return err
		}
		if err := t.readSums(ctx, r); err != nil {
			return err
		}
		return t.readHarm(ctx, r)
	})
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

func (t *tally) readSums(ctx context.Context, r database.Querier) error {
	q := &t.query
	key, by, sum := "'' AS ref, who", " GROUP BY who", true
	switch q.By {
	case Job: // most jobs have one run; the runs of the others meet in their line
		key, by, sum = "ref, who", "", false
	case Node:
		key, by = "'' AS ref, place AS who", " GROUP BY place"
	}
	for _, s := range spans {
		if err := t.each(ctx, r, `SELECT `+key+`, `+figuresOf(s.part, sum)+` FROM bridge_used WHERE `+s.where+q.condition()+by, q.args()); err != nil {
			return err
		}
	}
	return nil
}

// args are the arguments of a query on the period, and of its condition.
func (q *Query) args() []any {
	return []any{q.From.UnixMilli(), q.To.UnixMilli(), database.JSON(q.Users), database.JSON(q.Accounts)}
}

// each adds the rows of a query: a job, the number of a label, and sums.
func (t *tally) each(ctx context.Context, r database.Querier, query string, args []any) error {
	var ref string
	var id int64
	var s sums
	into := []any{&ref, &id}
	for i := range s {
		into = append(into, &s[i])
	}
	return database.Each(ctx, r, func(rows *sql.Rows) error {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		of := t.labels[id]
		t.add(t.line(ref, of), of, &s)
		return nil
	}, query, args...)
}

func (t *tally) readLabels(ctx context.Context, r database.Querier) error {
	return database.Each(ctx, r, func(rows *sql.Rows) error {
		var id int64
		var l label
		if err := rows.Scan(&id, &l.user, &l.account, &l.partition, &l.app, &l.node); err != nil {
			return err
		}
		t.labels[id] = l
		return nil
	}, `SELECT id, user, account, partition, app, node FROM bridge_labels`)
}

// readHarm counts the harm of the runs that ended in the period. Where a run failed, perhaps for having shared, and the
// job failed alone as well, that was no harm.
func (t *tally) readHarm(ctx context.Context, r database.Querier) error {
	q := &t.query
	type row struct {
		ref        string
		flags      int
		who, place int64
	}
	rows, err := database.List(ctx, r, func(x *row) []any { return []any{&x.ref, &x.flags, &x.who, &x.place} },
		`SELECT ref, flags, who, place FROM bridge_used INDEXED BY bridge_used_harm
		WHERE flags >= 16 AND ended >= ?1 AND ended < ?2`+q.condition(), q.args()...)
	if err != nil {
		return err
	}
	alone := map[string]bool{}
	for i := range rows {
		alone[rows[i].ref] = alone[rows[i].ref] || rows[i].flags&history.FlagCleared > 0
	}
	for i := range rows {
		x := &rows[i]
		of := t.labels[x.who]
		of.node = t.labels[x.place].node
		first := x.flags&history.FlagSuspect > 0 && alone[x.ref]
		for k, kind := range history.Harms() {
			switch {
			case x.flags&(history.FlagHarm<<k) == 0:
			case first:
				first = false // the gravest is why it is suspect
			default:
				for _, l := range []*line{t.line(x.ref, of), &t.total} {
					if l.harm == nil {
						l.harm = map[history.Harm]int{}
					}
					l.harm[kind]++
				}
			}
		}
	}
	return nil
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
