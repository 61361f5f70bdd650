package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
)

// SaveTasks keeps the names of array tasks, "120_4", by their own job numbers.
func (j *Journal) SaveTasks(ctx context.Context, at time.Time, tasks map[int64]string) error {
	err := database.Tx(ctx, j.db, func(tx *sql.Tx) error {
		for id, ref := range tasks {
			a, t, _ := strings.Cut(ref, "_")
			array, err1 := strconv.ParseInt(a, 10, 64)
			task, err2 := strconv.ParseInt(t, 10, 64)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO bridge_tasks (id, array, task, at) VALUES (?, ?, ?, ?)
				ON CONFLICT (id) DO UPDATE SET array = excluded.array, task = excluded.task, at = excluded.at`,
				id, array, task, at.UnixMilli()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write array tasks: %w", err)
	}
	return nil
}

// clocks is how far a node's clock may be off.
const clocks = time.Hour

// TaskName names the job that ran under a number from start to end: "120_4" for an array task, else the
// number.
func (j *Journal) TaskName(ctx context.Context, id int64, start, end time.Time) (string, error) {
	array, task, err := j.Task(ctx, id, start, end)
	if err != nil || array == 0 {
		return strconv.FormatInt(id, 10), err
	}
	return fmt.Sprintf("%d_%d", array, task), nil
}

// Task returns which array task ran under a job number from start to end; array 0 = no poll showed
// that the job was one. slurmctld may start to count from the beginning again, so the times must
// agree.
func (j *Journal) Task(ctx context.Context, id int64, start, end time.Time) (array, task int64, err error) {
	err = j.db.QueryRowContext(ctx, `SELECT array, task FROM bridge_tasks WHERE id = ? AND at BETWEEN ? AND ?`,
		id, start.Add(-clocks).UnixMilli(), end.Add(clocks).UnixMilli()).Scan(&array, &task)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, 0, fmt.Errorf("name job %d: %w", id, err)
	}
	return array, task, nil
}
