package journal

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/gob"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// FootprintsKeptFor is how long footprints are kept: a month can be compared with the same of a year ago.
const FootprintsKeptFor = 400 * 24 * time.Hour

const day = 24 * time.Hour

// dayOf is the day of a time, counted from 1970.
func dayOf(t time.Time) int64 {
	return int64(math.Floor(float64(t.UnixMilli()) / float64(day.Milliseconds())))
}

// Settled returns up to when, and up to which record, footprints were made; zero = never.
func (j *Journal) Settled(ctx context.Context) (at time.Time, record int64, err error) {
	err = j.db.QueryRowContext(ctx, `SELECT at, record FROM bridge_settled WHERE id = 1`).Scan(database.Millis(&at), &record)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return at, 0, fmt.Errorf("read footprints: %w", err)
	}
	return at, record, nil
}

// SetSettled notes up to when, and up to which record, footprints were made.
func (j *Journal) SetSettled(ctx context.Context, at time.Time, record int64) error {
	if _, err := j.db.ExecContext(ctx, `INSERT INTO bridge_settled (id, at, record) VALUES (1, ?, ?)
		ON CONFLICT (id) DO UPDATE SET at = excluded.at, record = excluded.record`, at.UnixMilli(), record); err != nil {
		return fmt.Errorf("write footprints: %w", err)
	}
	return nil
}

// SaveFootprints keeps footprints of runs that ended in [from, to), in place of earlier ones of the same runs. The end
// of a run may have been taken to be up to an hour off before.
func (j *Journal) SaveFootprints(ctx context.Context, from, to time.Time, all []history.Footprint) error {
	if len(all) == 0 {
		return nil
	}
	byDay, byRef := map[int64][]history.Footprint{}, map[string][]*history.Footprint{}
	for i := range all {
		f := &all[i]
		d := dayOf(f.End)
		byDay[d] = append(byDay[d], *f)
		byRef[f.Ref] = append(byRef[f.Ref], f)
	}
	replaced := func(old history.Footprint) bool {
		return slices.ContainsFunc(byRef[old.Ref], func(f *history.Footprint) bool { return old.Start.Before(f.End) && f.Start.Before(old.End) })
	}
	err := database.Tx(ctx, j.db, func(tx *sql.Tx) error {
		for d := dayOf(from.Add(-time.Hour)); d <= dayOf(to.Add(time.Hour)); d++ {
			if err := saveDay(ctx, tx, d, byDay[d], replaced); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write footprints: %w", err)
	}
	return nil
}

// saveDay adds to a day's footprints and replaces some.
func saveDay(ctx context.Context, tx *sql.Tx, d int64, list []history.Footprint, replaced func(history.Footprint) bool) error {
	var body []byte
	err := tx.QueryRowContext(ctx, `SELECT body FROM bridge_footprints WHERE day = ?`, d).Scan(&body)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	there, err := unpack(body)
	if err != nil {
		there = nil // a damaged day is made again from the runs that are left
	}
	kept := slices.DeleteFunc(slices.Clone(there), replaced)
	if len(kept) == len(there) && len(list) == 0 {
		return nil
	}
	list = append(kept, list...)
	if len(list) == 0 {
		_, err := tx.ExecContext(ctx, `DELETE FROM bridge_footprints WHERE day = ?`, d)
		return err
	}
	// Neighbours that are alike pack well.
	slices.SortStableFunc(list, func(a, b history.Footprint) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.App, b.App), a.End.Compare(b.End), cmp.Compare(a.Ref, b.Ref))
	})
	first := list[0].Start
	for i := range list {
		if list[i].Start.Before(first) {
			first = list[i].Start
		}
	}
	if body, err = pack(list); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO bridge_footprints (day, first, runs, body) VALUES (?, ?, ?, ?)
		ON CONFLICT (day) DO UPDATE SET first = excluded.first, runs = excluded.runs, body = excluded.body`,
		d, first.UnixMilli(), len(list), body)
	return err
}

func pack(list []history.Footprint) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := gob.NewEncoder(z).Encode(list); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func unpack(body []byte) ([]history.Footprint, error) {
	if len(body) == 0 {
		return nil, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	var list []history.Footprint
	return list, gob.NewDecoder(z).Decode(&list)
}

// readers is how many days are unpacked at a time.
const readers = 2

// Footprints calls f with the footprints of ended runs that were on their GPUs in [from, to), a day
// at a time, in no order, one call after the other.
func (j *Journal) Footprints(ctx context.Context, from, to time.Time, f func([]history.Footprint) error) error {
	g, ctx := errgroup.WithContext(ctx)
	packed, lists := make(chan []byte), make(chan []history.Footprint)
	g.Go(func() error {
		defer close(packed)
		return database.Each(ctx, j.db, func(rows *sql.Rows) error {
			var body []byte
			if err := rows.Scan(&body); err != nil {
				return err
			}
			select {
			case packed <- body:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, `SELECT body FROM bridge_footprints WHERE day >= ? AND first < ? ORDER BY day`, dayOf(from), to.UnixMilli())
	})
	var unpackers errgroup.Group
	for range readers {
		unpackers.Go(func() error {
			for body := range packed {
				list, err := unpack(body)
				if err != nil {
					return fmt.Errorf("a day is damaged: %w", err)
				}
				list = slices.DeleteFunc(list, func(x history.Footprint) bool { return x.End.Before(from) || !x.Start.Before(to) })
				select {
				case lists <- list:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(lists)
		return unpackers.Wait()
	})
	g.Go(func() error {
		for list := range lists {
			if err := f(list); err != nil {
				return err
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("read footprints: %w", err)
	}
	return nil
}

// FirstFootprint is the earliest start of a run with a footprint; zero = there is none.
func (j *Journal) FirstFootprint(ctx context.Context) (time.Time, error) {
	var first time.Time
	if err := j.db.QueryRowContext(ctx, `SELECT min(first) FROM bridge_footprints`).Scan(database.Millis(&first)); err != nil {
		return first, fmt.Errorf("read footprints: %w", err)
	}
	return first, nil
}

// OutcomesIn returns the outcomes of the runs that ended in [from, to).
func (j *Journal) OutcomesIn(ctx context.Context, from, to time.Time) ([]history.Outcome, error) {
	out, err := list[history.Outcome](ctx, j.db, `SELECT body FROM bridge_outcomes WHERE ended >= ? AND ended < ? ORDER BY run`, from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	return out, nil
}

// LastPoll is about when a poll last showed a node, an hour earlier at most; zero = none has.
func (j *Journal) LastPoll(ctx context.Context) (time.Time, error) {
	var at time.Time
	if err := j.db.QueryRowContext(ctx, `SELECT max(seen) FROM bridge_nodes`).Scan(database.Millis(&at)); err != nil {
		return at, fmt.Errorf("read nodes: %w", err)
	}
	return at, nil
}

// ForgetFootprints removes footprints of days before the given time.
func (j *Journal) ForgetFootprints(ctx context.Context, before time.Time) error {
	if _, err := j.db.ExecContext(ctx, `DELETE FROM bridge_footprints WHERE day < ?`, dayOf(before)); err != nil {
		return fmt.Errorf("forget footprints: %w", err)
	}
	return nil
}
