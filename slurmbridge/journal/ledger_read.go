package journal

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

const runColumns = `ref, start, submit, ready, ended, user, account, partition, app, node, gpus, shares, count, group_id, mode`

// Running returns up to limit runs that polls showed on their GPUs in [from, to), the longest running and the
// latest first.
func (j *Journal) Running(ctx context.Context, from, to time.Time, limit int) ([]history.Run, error) {
	return j.runs(ctx, `SELECT `+runColumns+` FROM bridge_ran
		WHERE start > 0 AND start < ?2 AND (ended IS NULL OR ended >= ?1) ORDER BY ended IS NULL DESC, ended DESC, ref LIMIT ?3`,
		from.UnixMilli(), to.UnixMilli(), limit)
}

// Ended returns up to limit runs that, by polls, ended in [from, to), the latest first, including
// runs that no poll showed running.
func (j *Journal) Ended(ctx context.Context, from, to time.Time, limit int) ([]history.Run, error) {
	return j.runs(ctx, `SELECT `+runColumns+` FROM bridge_ran WHERE ended >= ? AND ended < ? ORDER BY ended DESC, ref LIMIT ?`,
		from.UnixMilli(), to.UnixMilli(), limit)
}

func (j *Journal) runs(ctx context.Context, query string, args ...any) ([]history.Run, error) {
	columns := func(r *history.Run) []any {
		return []any{
			&r.Ref, database.Millis(&r.Start), database.Millis(&r.Submit), database.Millis(&r.Ready), database.Millis(&r.End),
			&r.User, &r.Account, &r.Partition, &r.App, &r.Node, (*indexList)(&r.GPUs), &r.Shares, &r.WholeGPUs, &r.Group, &r.Mode,
		}
	}
	out, err := database.List(ctx, j.db, columns, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	return out, nil
}

// Intended returns what shadow mode would have done in [from, to): the group last intended for each job, by
// ref.
func (j *Journal) Intended(ctx context.Context, from, to time.Time) (map[string]history.Intended, error) {
	out := map[string]history.Intended{}
	err := database.Each(ctx, j.db, func(rows *sql.Rows) error {
		var ref string
		var in history.Intended
		if err := rows.Scan(&ref, database.JSON(&in)); err != nil {
			return err
		}
		out[ref] = in
		return nil
	}, `SELECT ref, body FROM bridge_intended WHERE at >= ? AND at < ?`, from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read intended groups: %w", err)
	}
	return out, nil
}

// Refused returns the guard's reasons in [from, to), the most frequent first. A
// refusal counts whole where the first or the last poll with it is within.
func (j *Journal) Refused(ctx context.Context, from, to time.Time) ([]history.Refused, error) {
	columns := func(r *history.Refused) []any { return []any{&r.Reason, &r.Jobs, &r.Looks} }
	out, err := database.List(ctx, j.db, columns, `SELECT reason, count(*), sum(looks) FROM bridge_refusals
		WHERE last >= ? AND first < ? GROUP BY reason ORDER BY 2 DESC, 1`, from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read refusals: %w", err)
	}
	return out, nil
}

// Nodes returns the nodes with GPUs that were in service since the given time.
func (j *Journal) Nodes(ctx context.Context, since time.Time) ([]job.Node, error) {
	var out []job.Node
	err := database.Each(ctx, j.db, func(rows *sql.Rows) error {
		n := job.Node{Up: true}
		var partitions string
		if err := rows.Scan(&n.Name, &n.GPUs, &n.GPUType, &partitions); err != nil {
			return err
		}
		if partitions != "" {
			n.Partitions = strings.Split(partitions, ",")
		}
		out = append(out, n)
		return nil
	}, `SELECT node, gpus, type, partitions FROM bridge_nodes WHERE seen >= ? ORDER BY node`, since.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
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

// indexList is a column of GPU indexes, separated by commas.
type indexList []int

// Scan implements sql.Scanner.
func (l *indexList) Scan(src any) error {
	text, _ := src.(string)
	*l = nil
	for f := range strings.SplitSeq(text, ",") {
		if g, err := strconv.Atoi(f); err == nil {
			*l = append(*l, g)
		}
	}
	return nil
}
