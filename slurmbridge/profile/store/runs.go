package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

func recordColumns(r *history.Record) []any { return []any{&r.ID, &r.App, database.JSON(&r.Record)} }

// After returns up to limit records that came after record id, oldest first.
func (s *Store) After(ctx context.Context, id int64, limit int) ([]history.Record, error) {
	out, err := database.List(ctx, s.db, recordColumns, `SELECT id, app, body FROM runs WHERE id > ? ORDER BY id LIMIT ?`, id, limit)
	if err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	return out, nil
}

// Ended calls f for each record of a run that ended in [from, to) by the controller's clock, in that order.
func (s *Store) Ended(ctx context.Context, from, to time.Time, f func(*history.Record) error) error {
	err := database.Each(ctx, s.db, func(rows *sql.Rows) error {
		var r history.Record
		if err := rows.Scan(recordColumns(&r)...); err != nil {
			return err
		}
		return f(&r)
	}, `SELECT id, app, body FROM runs WHERE ended_at >= ? AND ended_at < ? ORDER BY ended_at, id`, from.UnixNano(), to.UnixNano())
	if err != nil {
		return fmt.Errorf("read records: %w", err)
	}
	return nil
}

// Ends returns when the runs of the records numbered in (after, upTo] ended, by the controller's clock.
func (s *Store) Ends(ctx context.Context, after, upTo int64) ([]time.Time, error) {
	out := []time.Time{}
	err := database.Each(ctx, s.db, func(rows *sql.Rows) error {
		var ns int64
		err := rows.Scan(&ns)
		out = append(out, time.Unix(0, ns))
		return err
	}, `SELECT ended_at FROM runs WHERE id > ? AND id <= ?`, after, upTo)
	if err != nil {
		return nil, fmt.Errorf("read ends of runs: %w", err)
	}
	return out, nil
}

// Learn makes a run part of the profile of (its user, its application), and reports whether it
// could: only a solo run of one GPU with a stored series counts.
func (s *Store) Learn(ctx context.Context, app string, r *gpuprof.Record) (bool, error) {
	if app == "" || !r.Solo() || len(r.GPUs) != 1 || r.Cut {
		return false, nil
	}
	run, err := gpuprof.ProfileOf(app, r)
	if err != nil {
		return false, nil // it has nothing to learn from
	}
	err = database.Tx(ctx, s.db, func(tx *sql.Tx) error {
		of, err := own(ctx, tx, r.User, app)
		if err != nil {
			return err
		}
		run.Card = r.Card()
		old, earlier := of[run.Card], of[""]
		if run.Card != "" && earlier != nil && earlier.Runs > 0 {
			// An earlier release learned from the runs on all cards together.
			cards := 0
			if err := tx.QueryRowContext(ctx, `SELECT count(DISTINCT card) FROM cards`).Scan(&cards); err != nil {
				return err
			}
			if old == nil && cards == 1 {
				old = earlier
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM profiles WHERE user = ? AND app = ? AND card = ''`, r.User, app); err != nil {
				return err
			}
		}
		merged := gpuprof.Merge(old, run)
		merged.Card = run.Card
		return put(ctx, tx, r.User, merged, s.now())
	})
	if err != nil {
		return false, fmt.Errorf("learn from job %s: %w", r.Ref(), err)
	}
	return true, nil
}
