package store

import (
	"context"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
)

// Stand stores the standing of a user's application after a run that ended at the given time, and adds the run's
// lessons to their cells.
func (s *Store) Stand(ctx context.Context, q database.Querier, of rlcore.Identity, at time.Time,
	standing *interference.Standing, lessons []interference.Lesson,
) error {
	_, err := q.ExecContext(ctx, `INSERT INTO applications (user, app, standing, seen) VALUES (?, ?, ?, ?)
		ON CONFLICT (user, app) DO UPDATE SET standing = excluded.standing, seen = max(seen, excluded.seen)`,
		of.Owner, of.App, database.JSON(standing), at.UnixNano())
	for i := 0; err == nil && i < len(lessons); i++ {
		err = addLesson(ctx, q, at, &lessons[i])
	}
	return database.Wrap(err, "write standing of %s", of.App)
}

func cellColumns(c *interference.Cell) []any { return []any{database.JSON(c)} }

func addLesson(ctx context.Context, q database.Querier, at time.Time, l *interference.Lesson) error {
	one, ok := l.Cell()
	if !ok {
		return nil
	}
	before, err := database.Intact(ctx, q, cellColumns, `SELECT body FROM cells WHERE key = ?`, one.Key())
	if err != nil {
		return err
	}
	all := one
	if len(before) > 0 {
		all = before[0]
		all.Add(&one)
	}
	_, err = q.ExecContext(ctx, `INSERT INTO cells (key, seen, body) VALUES (?, ?, ?)
		ON CONFLICT (key) DO UPDATE SET seen = max(seen, excluded.seen), body = excluded.body`,
		one.Key(), at.UnixNano(), database.JSON(&all))
	return err
}

// Recall has a model learn the standings and the cells that were written since a time. After an error it has learned
// nothing.
func (s *Store) Recall(ctx context.Context, m *interference.Model, since time.Time) error {
	type known struct {
		of rlcore.Identity
		interference.Standing
	}
	standings, err := database.Intact(ctx, s.db, func(k *known) []any {
		return []any{&k.of.Owner, &k.of.App, database.JSON(&k.Standing)}
	}, `SELECT user, app, standing FROM applications WHERE standing NOT NULL AND seen >= ? ORDER BY seen`, since.UnixNano())
	if err != nil {
		return database.Wrap(err, "read standings")
	}
	cells, err := database.Intact(ctx, s.db, cellColumns, `SELECT body FROM cells WHERE seen >= ? ORDER BY id`,
		since.UnixNano())
	if err != nil {
		return database.Wrap(err, "read cells")
	}
	for i := range standings {
		k := &standings[i]
		k.Forget(since)
		m.SetStanding(k.of, k.Standing)
	}
	m.Restore(cells)
	return nil
}
