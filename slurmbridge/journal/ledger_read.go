package journal

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Ran is one run of a job as the looks showed it.
type Ran struct {
	Ref, User, Account, Partition, App string
	Submit                             time.Time
	// Ready is since when nothing but its turn kept the job waiting.
	Ready time.Time
	// Start is zero for a job that came and went between two looks; End for one that
	// ran at the last. End is when a look first showed it gone.
	Start, End time.Time
	Node       string
	GPUs       []int // indexes on the node, as gres.conf orders them
	Shares     int   // of 100; 0 = whole GPUs
	Count      int   // whole GPUs
	Group      int64 // 0 = of no group
	Mode       job.Mode
}

const ranColumns = `ref, start, submit, ready, ended, user, account, partition, app, node, gpus, shares, count, group_id, mode`

// Ran returns up to limit runs that were on their GPUs in [from, to), the longest
// running and the latest first.
func (j *Journal) Ran(ctx context.Context, from, to time.Time, limit int) ([]Ran, error) {
	return j.ran(ctx, `SELECT `+ranColumns+` FROM bridge_ran
		WHERE start > 0 AND start < ?2 AND (ended IS NULL OR ended >= ?1) ORDER BY ended IS NULL DESC, ended DESC, ref LIMIT ?3`,
		from.UnixMilli(), to.UnixMilli(), limit)
}

// Over returns up to limit runs that ended in [from, to), the latest first, with
// those that no look saw running.
func (j *Journal) Over(ctx context.Context, from, to time.Time, limit int) ([]Ran, error) {
	return j.ran(ctx, `SELECT `+ranColumns+` FROM bridge_ran WHERE ended >= ? AND ended < ? ORDER BY ended DESC, ref LIMIT ?`,
		from.UnixMilli(), to.UnixMilli(), limit)
}

func (j *Journal) ran(ctx context.Context, query string, args ...any) ([]Ran, error) {
	columns := func(r *Ran) []any {
		return []any{
			&r.Ref, database.Millis(&r.Start), database.Millis(&r.Submit), database.Millis(&r.Ready), database.Millis(&r.End),
			&r.User, &r.Account, &r.Partition, &r.App, &r.Node, (*indexList)(&r.GPUs), &r.Shares, &r.Count, &r.Group, &r.Mode,
		}
	}
	out, err := database.List(ctx, j.db, columns, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	return out, nil
}

// Intended returns what shadow would have done in [from, to), the last word on each
// job: the groups by ref.
func (j *Journal) Intended(ctx context.Context, from, to time.Time) (map[string]Intended, error) {
	out := map[string]Intended{}
	err := database.Each(ctx, j.db, func(rows *sql.Rows) error {
		var ref string
		var in Intended
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

// Refused is how often the guard gave one reason.
type Refused struct {
	Reason string `json:"reason"`
	Jobs   int    `json:"jobs"`
	Looks  int    `json:"looks"` // summed over the jobs, each look counted once a job
}

// Refused returns the guard's reasons in [from, to), the most frequent first. A
// refusal counts whole where its first or its last look is within.
func (j *Journal) Refused(ctx context.Context, from, to time.Time) ([]Refused, error) {
	columns := func(r *Refused) []any { return []any{&r.Reason, &r.Jobs, &r.Looks} }
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
