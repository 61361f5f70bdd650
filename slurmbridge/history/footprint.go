package history

import (
	"cmp"
	"context"
	"database/sql"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Footprint is a summary of a run: what it held of GPUs, what it did with them, and what sharing
// saved or cost it. It is kept far longer than the run, with a record a hundred times as large.
type Footprint struct {
	Ref       string    `json:"job"`
	User      string    `json:"user"`
	Account   string    `json:"account,omitempty"`
	Partition string    `json:"partition,omitempty"`
	App       string    `json:"app,omitempty"`
	Node      string    `json:"node"`
	Start     time.Time `json:"start"` // by the controller's clock
	End       time.Time `json:"end,omitzero"`
	// GPUs is what it held at a time: whole ones, or the part of one that its shares are; 0 = not known.
	GPUs  float64 `json:"gpus"`
	Whole bool    `json:"whole_gpus"`

	// Use is nil without a record.
	Use *Use `json:"use,omitempty"`
	// Judged: it is known whether sharing did harm. Timed: plain Slurm's schedule has it, by which it waited
	// SavedS less, s; below 0 it waited longer. LostS is by how much sharing made it run longer, s.
	Judged bool    `json:"judged"`
	Timed  bool    `json:"timed"`
	SavedS float64 `json:"wait_saved_s,omitempty"`
	LostS  float64 `json:"time_lost_s,omitempty"`
	Harm   []Harm  `json:"harm,omitempty"`
}

// Footprint is the run in short, ended or not.
func (r *Run) Footprint() Footprint {
	f := Footprint{
		Ref: r.Ref, User: r.User, Account: r.Account, Partition: r.Partition, App: r.App, Node: r.Node,
		Start: r.Start, End: r.End, Use: r.Use,
	}
	if r.Shown() && !r.Allotted.After(r.Start) {
		// What accounting counts: from the start that Slurm gives, in whole seconds. A run that starts and ends in one second
		// took no time there, and keeps its own times.
		if end := f.End.Truncate(time.Second); f.End.IsZero() || end.After(cmp.Or(r.Allotted, r.Start)) {
			if f.End = end; !r.Allotted.IsZero() {
				f.Start = r.Allotted
			}
		}
	}
	switch {
	case r.WholeGPUs > 0:
		// A request may be for each of several nodes or tasks; what it got is more certain.
		f.GPUs, f.Whole = float64(max(r.WholeGPUs, len(r.GPUs))), true
	case r.Shares > 0:
		f.GPUs = float64(r.Shares) / job.Units
	}
	if r.Outcome == nil {
		return f
	}
	f.Judged, f.Harm = true, r.Harm()
	solo, basis := r.Solo()
	if basis == Lost || r.Mode != job.Active {
		return f
	}
	if r.Shared() {
		f.LostS = r.DurationS() - solo
	}
	if plainEnd := r.Ending.PlainEnd; !plainEnd.IsZero() && ranToEnd(r.State()) {
		f.Timed, f.SavedS = true, plainEnd.Sub(r.Start).Seconds()-solo
	}
	return f
}

// counted is the run's footprint; false: it has none, since it never ran, or had no GPU.
func (r *Run) counted() (Footprint, bool) {
	if r.Start.IsZero() || !r.Shown() && len(r.GPUs) == 0 {
		return Footprint{}, false
	}
	f := r.Footprint()
	return f, f.End.IsZero() || f.Start.UnixMilli() < f.End.UnixMilli()
}

// goesOn is the end that a footprint has in the database while its run goes on: later than any other.
const goesOn = 1 << 53

// ended is the key of a footprint among those of its job.
func (f *Footprint) ended() int64 {
	if f.End.IsZero() {
		return goesOn
	}
	return f.End.UnixMilli()
}

// Flags of a footprint in the database; a kind of harm is flagHarm shifted by its place in Harms.
const (
	flagWhole = 1 << iota
	flagRecorded
	flagJudged
	flagTimed
	flagHarm
)

// figures are the columns of a footprint's figures, of what one of them is in the database's unit, and where the
// footprint has it.
var figures = []struct {
	column string
	unit   float64
	of     func(f *Footprint) *float64
}{
	{"known", 1000, func(f *Footprint) *float64 { return &f.Use.KnownS }},
	{"computed", 1000, func(f *Footprint) *float64 { return &f.Use.ComputedS }},
	{"split", 1000, func(f *Footprint) *float64 { return &f.Use.SplitS }},
	{"idleknown", 1000, func(f *Footprint) *float64 { return &f.Use.IdleKnownS }},
	{"idle", 1000, func(f *Footprint) *float64 { return &f.Use.IdleS }},
	{"shared", 1000, func(f *Footprint) *float64 { return &f.Use.SharedS }},
	{"mean", 1024, func(f *Footprint) *float64 { return &f.Use.MeanMiB }},
	{"peak", 1024, func(f *Footprint) *float64 { return &f.Use.PeakMiB }},
	{"card", 1024, func(f *Footprint) *float64 { return &f.Use.CardMiB }},
	{"energy", 1, func(f *Footprint) *float64 { return &f.Use.EnergyJ }},
	{"saved", 1000, func(f *Footprint) *float64 { return &f.SavedS }},
	{"lost", 1000, func(f *Footprint) *float64 { return &f.LostS }},
}

// footprintColumns are the columns of bridge_used, in the order in which they are read and written.
var footprintColumns = func() string {
	list := "ended, ref, who, place, took, shares, flags"
	for _, x := range figures {
		list += ", " + x.column
	}
	return list
}()

// Write writes the footprint into the database.
func (f *Footprint) Write(ctx context.Context, q database.Querier) error {
	row := []any{f.ended(), f.Ref}
	for _, l := range []label{{f.User, f.Account, f.Partition, f.App, ""}, {"", "", f.Partition, "", f.Node}} {
		id, err := l.number(ctx, q)
		if err != nil {
			return database.Wrap(err, "write footprint of job %s", f.Ref)
		}
		row = append(row, id)
	}
	flags := 0
	facts := []bool{f.Whole, f.Use != nil, f.Judged, f.Timed} // in the order of their flags
	for _, kind := range Harms() {
		facts = append(facts, slices.Contains(f.Harm, kind))
	}
	for i, is := range facts {
		if is {
			flags |= 1 << i
		}
	}
	row = append(row, f.ended()-f.Start.UnixMilli(), int64(math.Round(f.GPUs*job.Units)), flags)
	all := *f
	all.Use = cmp.Or(f.Use, &Use{})
	for _, x := range figures {
		row = append(row, int64(math.Round(*x.of(&all)*x.unit)))
	}
	_, err := q.ExecContext(ctx, "INSERT OR REPLACE INTO bridge_used ("+footprintColumns+") VALUES (?"+
		strings.Repeat(", ?", len(row)-1)+")", row...)
	return database.Wrap(err, "write footprint of job %s", f.Ref)
}

// label is what runs are summed up by; it stands in a footprint as its number.
type label struct{ user, account, partition, app, node string }

func (l *label) number(ctx context.Context, q database.Querier) (id int64, err error) {
	err = q.QueryRowContext(ctx, `INSERT INTO bridge_labels (user, account, partition, app, node) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET user = excluded.user RETURNING id`, l.user, l.account, l.partition, l.app, l.node).Scan(&id)
	return id, err
}

// Period selects footprints: of runs that were on their GPUs in [From, To), of these users and accounts; nil = of all.
// Slurm keeps accounts' names in small letters, however they are written.
type Period struct {
	From, To        time.Time
	Users, Accounts []string
}

// where is a period as SQL, with its arguments.
func (p *Period) where() (string, []any) {
	args := []any{p.From.UnixMilli(), p.To.UnixMilli(), nil, nil}
	for i, names := range [][]string{p.Users, p.Accounts} {
		if names != nil {
			args[2+i] = database.JSON(names)
		}
	}
	const of = "who IN (SELECT id FROM bridge_labels WHERE "
	return " FROM bridge_used WHERE ended > ?1 AND ended - took < ?2" +
		" AND (?3 IS NULL OR " + of + "user IN (SELECT value FROM json_each(?3))))" +
		" AND (?4 IS NULL OR " + of + "lower(account) IN (SELECT lower(value) FROM json_each(?4))))", args
}

// Footprints calls f for each footprint of a period; it is good for the call.
func Footprints(ctx context.Context, q database.Querier, p *Period, each func(f *Footprint)) error {
	labels, id, l := map[int64]label{}, int64(0), label{}
	if err := database.Each(ctx, q, func(rows *sql.Rows) error {
		err := rows.Scan(&id, &l.user, &l.account, &l.partition, &l.app, &l.node)
		labels[id] = l
		return err
	}, `SELECT id, user, account, partition, app, node FROM bridge_labels`); err != nil {
		return database.Wrap(err, "read footprints")
	}
	// A year may have millions: values are taken as the driver has them.
	row := make([]any, 7+len(figures))
	into := make([]any, len(row))
	for i := range row {
		into[i] = &row[i]
	}
	number := func(i int) int64 {
		n, _ := row[i].(int64)
		return n
	}
	var f Footprint
	var u Use
	harms := Harms()
	where, args := p.where()
	return database.Wrap(database.Each(ctx, q, func(rows *sql.Rows) error {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		flags := int(number(6))
		who := labels[number(2)]
		f = Footprint{
			User: who.user, Account: who.account, Partition: who.partition, App: who.app, Node: labels[number(3)].node,
			Start: time.UnixMilli(number(0) - number(4)), GPUs: float64(number(5)) / job.Units, Use: &u,
			Whole: flags&flagWhole > 0, Judged: flags&flagJudged > 0, Timed: flags&flagTimed > 0,
		}
		f.Ref, _ = row[1].(string)
		if number(0) != goesOn {
			f.End = time.UnixMilli(number(0))
		}
		for i, x := range figures {
			*x.of(&f) = float64(number(7+i)) / x.unit
		}
		if flags&flagRecorded == 0 {
			f.Use = nil
		}
		for i, kind := range harms {
			if flags&(flagHarm<<i) > 0 {
				f.Harm = append(f.Harm, kind)
			}
		}
		each(&f)
		return nil
	}, "SELECT "+footprintColumns+where, args...), "read footprints")
}

// Largest are the jobs of the runs that held most in a period, so many runs at most.
func Largest(ctx context.Context, q database.Querier, p *Period, limit int) (map[string]bool, error) {
	where, args := p.where()
	refs := map[string]bool{}
	return refs, database.Wrap(database.Each(ctx, q, func(rows *sql.Rows) error {
		var ref string
		err := rows.Scan(&ref)
		refs[ref] = true
		return err
	}, "SELECT ref"+where+" ORDER BY shares * (min(ended, ?2) - max(ended - took, ?1)) DESC LIMIT ?5",
		append(args, limit)...), "read footprints")
}

// FirstFootprint is when the first run with a footprint ended; zero = there is none.
func FirstFootprint(ctx context.Context, q database.Querier) (first time.Time, err error) {
	err = q.QueryRowContext(ctx, `SELECT min(ended) FROM bridge_used WHERE ended < ?`, goesOn).
		Scan(database.Millis(&first))
	return first, database.Wrap(err, "read footprints")
}

// ForgetFootprints removes those of runs that ended before the given day (UTC).
func ForgetFootprints(ctx context.Context, db *sql.DB, before time.Time) error {
	return database.Wrap(database.Tx(ctx, db, func(tx *sql.Tx) error {
		gone, err := tx.ExecContext(ctx, `DELETE FROM bridge_used WHERE ended < ?`, before.Truncate(24*time.Hour).UnixMilli())
		if err != nil {
			return err
		}
		if n, err := gone.RowsAffected(); err != nil || n == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx,
			`DELETE FROM bridge_labels WHERE id NOT IN (SELECT who FROM bridge_used UNION SELECT place FROM bridge_used)`)
		return err
	}), "forget footprints")
}
