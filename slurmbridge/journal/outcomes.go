package journal

import (
	"context"
	"fmt"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// SaveOutcome writes an outcome down, in place of an earlier one of the same run.
func (j *Journal) SaveOutcome(ctx context.Context, o *history.Outcome) error {
	if _, err := j.db.ExecContext(ctx, `INSERT INTO bridge_outcomes (run, ref, ended, body) VALUES (?, ?, ?, ?)
		ON CONFLICT (run) DO UPDATE SET body = excluded.body`, o.Run, o.Ref, o.End.UnixMilli(), database.JSON(o)); err != nil {
		return fmt.Errorf("write outcome of job %s: %w", o.Ref, err)
	}
	return nil
}

// LastOutcome returns the highest number of a run with an outcome, 0 = there is none.
func (j *Journal) LastOutcome(ctx context.Context) (run int64, err error) {
	if err := j.db.QueryRowContext(ctx, `SELECT coalesce(max(run), 0) FROM bridge_outcomes`).Scan(&run); err != nil {
		return 0, fmt.Errorf("read outcomes: %w", err)
	}
	return run, nil
}

// Outcomes returns the outcomes of runs that ended in [from, to), in the order of their records.
func (j *Journal) Outcomes(ctx context.Context, from, to time.Time) ([]history.Outcome, error) {
	out, err := list[history.Outcome](ctx, j.db, `SELECT body FROM bridge_outcomes WHERE ended >= ? AND ended < ? ORDER BY run`, from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	return out, nil
}

// LastOutcomes returns the last limit of them, in no order.
func (j *Journal) LastOutcomes(ctx context.Context, since time.Time, limit int) ([]history.Outcome, error) {
	out, err := list[history.Outcome](ctx, j.db, `SELECT body FROM bridge_outcomes WHERE ended >= ? ORDER BY ended DESC LIMIT ?`, since.UnixMilli(), limit)
	if err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	return out, nil
}
