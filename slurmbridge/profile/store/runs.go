package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
)

// Run is a record as it was kept.
type Run struct {
	ID     int64 // ascending in the order the records came
	App    string
	Record gpuprof.Record
}

// Runs returns up to limit runs whose records came after that of run id, oldest
// first.
func (s *Store) Runs(ctx context.Context, id int64, limit int) ([]Run, error) {
	return s.runs(ctx, `SELECT id, app, body FROM runs WHERE id > ? ORDER BY id LIMIT ?`, id, limit)
}

// Ended returns the runs that ended in [from, to) by the controller's clock, in the order they ended.
func (s *Store) Ended(ctx context.Context, from, to time.Time) ([]Run, error) {
	return s.runs(ctx, `SELECT id, app, body FROM runs WHERE ended_at >= ? AND ended_at < ? ORDER BY ended_at, id`, from.UnixNano(), to.UnixNano())
}

func (s *Store) runs(ctx context.Context, query string, args ...any) ([]Run, error) {
	columns := func(r *Run) []any { return []any{&r.ID, &r.App, database.JSON(&r.Record)} }
	out, err := database.List(ctx, s.db, columns, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	return out, nil
}

// Learn makes a run part of the profile of (its user, its application), and reports
// whether it could: only a solo run of one GPU whose series is there says
// something.
func (s *Store) Learn(ctx context.Context, app string, r *gpuprof.Record) (bool, error) {
	if app == "" || !r.Solo() || len(r.GPUs) != 1 || r.Cut {
		return false, nil
	}
	run, err := gpuprof.ProfileOf(app, r)
	if err != nil {
		return false, nil // it has nothing to learn from
	}
	err = database.Tx(ctx, s.db, func(tx *sql.Tx) error {
		old, err := own(ctx, tx, r.User, app)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		return put(ctx, tx, r.User, gpuprof.Merge(old, run), s.now())
	})
	if err != nil {
		return false, fmt.Errorf("learn from job %s: %w", r.Ref(), err)
	}
	return true, nil
}
