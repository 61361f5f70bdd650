package usage

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// KeptFor is how long footprints are kept: a month can be compared with the same of a year ago.
const KeptFor = 400 * 24 * time.Hour

const (
	// longMS is how long a run takes to be in the index of long runs, ms.
	longMS = 2 * 24 * 3600 * 1000
	hourMS = 3600 * 1000
)

// flags of a run in the database; a kind of harm is firstHarm shifted by its place in history.Harms.
const (
	isWhole = 1 << iota
	isRecorded
	isJudged
	isTimed
	isSuspect
	isCleared
	firstHarm
)

// Store keeps footprints, a row a run, and sums them up.
type Store struct{ DB *sql.DB }

// sums of runs, by the figures below. Shares count as hundredths of a GPU and times as ms, peak and host are maxima.
type sums [len(figures)]float64

const (
	runs = iota
	unheld
	held
	heldWhole
	computed
	computedOf
	split
	memory
	memoryOf
	peak
	idle
	idleOf
	sharing
	sharingOf
	saved
	savedOf
	lost
	lostOf
	energy
	energyOf
	cpu
	cpuOf
	host
)

// figures are how a row of bridge_used adds to each sum; {w} is the factor by which the run counts.
var figures = [...]string{
	runs:       "1",
	unheld:     "(shares = 0)",
	held:       "shares * took{w}",
	heldWhole:  "(flags & 1) * shares * took{w}",
	computed:   "max(100, shares) * computed{w}",
	computedOf: "shares * known{w}",
	split:      "max(100, shares) * split{w}",
	memory:     "1.0 * shares * took * mean / card{w}", // nothing where card is 0
	memoryOf:   "shares * took * (card > 0){w}",
	peak:       "1.0 * peak / card",
	idle:       "shares * idle{w}",
	idleOf:     "shares * idleknown{w}",
	sharing:    "shares * shared{w}",
	sharingOf:  "(flags & 2 > 0) * shares * took{w}",
	saved:      "saved{w}",
	savedOf:    "(flags & 8 > 0)",
	lost:       "lost{w}",
	lostOf:     "(flags & 4 > 0)",
	energy:     "energy{w}",
	energyOf:   "(energy > 0) * shares * took{w}",
	cpu:        "(shares > 0) * cpu{w}",
	cpuOf:      "(cpu > 0) * shares * took{w}",
	host:       "(shares > 0) * host",
}

// figuresOf are what a row adds to the sums, as SQL; sum: the sums of rows.
func figuresOf(w string, sum bool) string {
	all := make([]string, len(figures))
	for i, f := range figures {
		f = strings.ReplaceAll(f, "{w}", w)
		switch {
		case !sum:
			all[i] = "ifnull(" + f + ", 0)"
		case i == peak || i == host:
			all[i] = "coalesce(max(" + f + "), 0)"
		default:
			all[i] = "total(" + f + ")"
		}
	}
	return strings.Join(all, ", ")
}

func (s *sums) add(o *sums) {
	mostOfCard, mostOfHost := max(s[peak], o[peak]), max(s[host], o[host])
	for i := range s {
		s[i] += o[i]
	}
	s[peak], s[host] = mostOfCard, mostOfHost
}

// label is what runs are summed up by.
type label struct{ user, account, partition, app, node string }

type writer struct {
	labels, runs *sql.Stmt
	known        map[label]int64
}

func newWriter(ctx context.Context, tx *sql.Tx) (*writer, error) {
	labels, err := tx.PrepareContext(ctx, `INSERT INTO bridge_labels (user, account, partition, app, node) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET user = excluded.user RETURNING id`)
	if err != nil {
		return nil, err
	}
	runs, err := tx.PrepareContext(ctx, `INSERT OR REPLACE INTO bridge_used (ended, ref, who, place, took, shares, flags, known, computed, split,
		idleknown, idle, shared, mean, peak, card, energy, saved, lost, cpu, host) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`)
	return &writer{labels, runs, map[label]int64{}}, err // the transaction closes them
}

func (w *writer) id(ctx context.Context, x label) (id int64, err error) {
	if id, ok := w.known[x]; ok {
		return id, nil
	}
	err = w.labels.QueryRowContext(ctx, x.user, x.account, x.partition, x.app, x.node).Scan(&id)
	w.known[x] = id
	return id, err
}

// Settled returns up to when, and up to which record, footprints were made; zero = never.
func (s Store) Settled(ctx context.Context) (at time.Time, record int64, err error) {
	err = s.DB.QueryRowContext(ctx, `SELECT at, record FROM bridge_settled WHERE id = 1`).Scan(database.Millis(&at), &record)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return at, record, wrap("read", err)
}

func wrap(what string, err error) error { return database.Wrap(err, "%s footprints", what) }

// SetSettled notes up to when, and up to which record, footprints were made.
func (s Store) SetSettled(ctx context.Context, at time.Time, record int64) error {
	_, err := s.DB.ExecContext(ctx, `INSERT INTO bridge_settled (id, at, record) VALUES (1, ?, ?)
		ON CONFLICT (id) DO UPDATE SET at = excluded.at, record = excluded.record`, at.UnixMilli(), record)
	return wrap("write", err)
}

// Save keeps footprints of runs that ended in [from, to), in place of earlier ones of the same runs, whose end may have
// been taken to be up to an hour off.
func (s Store) Save(ctx context.Context, from, to time.Time, all []history.Footprint) error {
	if len(all) == 0 {
		return nil
	}
	return wrap("write", database.Tx(ctx, s.DB, func(tx *sql.Tx) error {
		there, err := database.List(ctx, tx, func(r *kept) []any { return []any{&r.ref, &r.ended, &r.took} },
			`SELECT ref, ended, took FROM bridge_used WHERE ended >= ? AND ended < ?`, from.UnixMilli()-hourMS, to.UnixMilli()+hourMS)
		if err != nil {
			return err
		}
		return save(ctx, tx, there, all)
	}))
}

// Drop removes the footprint of a job's run that was taken to have ended then: in that second, or at that millisecond.
func (s Store) Drop(ctx context.Context, ref string, end time.Time) error {
	return wrap("drop", database.Tx(ctx, s.DB, func(tx *sql.Tx) error {
		for _, ended := range []int64{end.Truncate(time.Second).UnixMilli(), end.UnixMilli()} {
			if _, err := tx.ExecContext(ctx, `DELETE FROM bridge_used WHERE ended = ? AND ref = ?`, ended, ref); err != nil {
				return err
			}
		}
		return nil
	}))
}

type kept struct {
	ref         string
	ended, took int64 // ms
}

// save writes runs; a kept run of the same job at the same time is replaced.
func save(ctx context.Context, tx *sql.Tx, there []kept, all []history.Footprint) error {
	byRef := map[string][]kept{}
	for _, r := range there {
		byRef[r.ref] = append(byRef[r.ref], r)
	}
	w, err := newWriter(ctx, tx)
	if err != nil {
		return err
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b history.Footprint) int { return a.End.Compare(b.End) })
	for i := range all {
		f := &all[i]
		start, end := f.Start.UnixMilli(), f.End.UnixMilli()
		if start >= end {
			continue
		}
		for _, r := range byRef[f.Ref] {
			if r.ended-r.took < end && start < r.ended {
				if _, err := tx.ExecContext(ctx, `DELETE FROM bridge_used WHERE ended = ? AND ref = ?`, r.ended, r.ref); err != nil {
					return err
				}
			}
		}
	}
	for i := range all { // only now: several may have one end, of nodes that no poll showed together
		if f := &all[i]; f.Start.UnixMilli() < f.End.UnixMilli() {
			if err := w.insert(ctx, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// insert writes one run. What counts nowhere is written as 0.
func (w *writer) insert(ctx context.Context, f *history.Footprint) error {
	who, err := w.id(ctx, label{user: f.User, account: f.Account, partition: f.Partition, app: f.App})
	if err != nil {
		return err
	}
	place, err := w.id(ctx, label{partition: f.Partition, node: f.Node})
	if err != nil {
		return err
	}
	var u history.Use
	flags, savedS, lostS := 0, 0.0, 0.0
	if shares := math.Round(f.GPUs * job.Units); shares > 0 {
		set := func(flag int, yes bool) {
			if yes {
				flags |= flag
			}
		}
		set(isWhole, f.Whole)
		set(isRecorded, f.Use != nil)
		set(isJudged, f.Judged)
		set(isTimed, f.Timed)
		set(isSuspect, f.Suspect && len(f.Harm) > 0)
		set(isCleared, f.Cleared)
		if f.Use != nil {
			u = *f.Use
		}
		if f.Judged {
			lostS = f.LostS
			for i, kind := range history.Harms() {
				set(firstHarm<<i, slices.Contains(f.Harm, kind))
			}
		}
		if f.Timed {
			savedS = f.SavedS
		}
	} else if f.Cleared {
		flags = isCleared
	}
	if !(u.KnownS > 0) {
		u.ComputedS, u.SplitS = 0, 0
	}
	if !(u.IdleKnownS > 0) {
		u.IdleS = 0
	}
	ms := func(s float64) int64 { return int64(math.Round(s * 1000)) }
	kib := func(mib float64) int64 { return int64(math.Round(mib * 1024)) }
	_, err = w.runs.ExecContext(ctx,
		f.End.UnixMilli(), f.Ref, who, place, f.End.UnixMilli()-f.Start.UnixMilli(), int64(math.Round(f.GPUs*job.Units)), flags,
		ms(u.KnownS), ms(u.ComputedS), ms(u.SplitS), ms(u.IdleKnownS), ms(u.IdleS), ms(u.SharedS),
		kib(u.MeanMiB), kib(u.PeakMiB), kib(u.CardMiB), int64(math.Round(u.EnergyJ)), ms(savedS), ms(lostS), ms(u.CPUS), kib(u.HostMiB))
	return err
}

// First is when the first run with a footprint ended; zero = there is none.
func (s Store) First(ctx context.Context) (first time.Time, err error) {
	err = s.DB.QueryRowContext(ctx, `SELECT min(ended) FROM bridge_used`).Scan(database.Millis(&first))
	return first, wrap("read", err)
}

// Forget removes footprints of runs that ended before the given day (UTC).
func (s Store) Forget(ctx context.Context, before time.Time) error {
	before = before.Truncate(24 * time.Hour)
	return wrap("forget", database.Tx(ctx, s.DB, func(tx *sql.Tx) error {
		gone, err := tx.ExecContext(ctx, `DELETE FROM bridge_used WHERE ended < ?`, before.UnixMilli())
		if err != nil {
			return err
		}
		if n, err := gone.RowsAffected(); err != nil || n == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM bridge_labels WHERE id NOT IN (SELECT who FROM bridge_used UNION SELECT place FROM bridge_used)`)
		return err
	}))
}
