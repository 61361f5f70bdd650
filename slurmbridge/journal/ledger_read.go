package journal

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

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
func (l *Ledger) Ran(ctx context.Context, from, to time.Time, limit int) ([]Ran, error) {
	return l.ran(ctx, `SELECT `+ranColumns+` FROM bridge_ran
		WHERE start > 0 AND start < ?2 AND (ended IS NULL OR ended >= ?1) ORDER BY ended IS NULL DESC, ended DESC, ref LIMIT ?3`,
		from.UnixMilli(), to.UnixMilli(), limit)
}

// Over returns up to limit runs that ended in [from, to), the latest first, with
// those that no look saw running.
func (l *Ledger) Over(ctx context.Context, from, to time.Time, limit int) ([]Ran, error) {
	return l.ran(ctx, `SELECT `+ranColumns+` FROM bridge_ran WHERE ended >= ? AND ended < ? ORDER BY ended DESC, ref LIMIT ?`,
		from.UnixMilli(), to.UnixMilli(), limit)
}

func (l *Ledger) ran(ctx context.Context, query string, args ...any) ([]Ran, error) {
	rows, err := l.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	defer rows.Close()
	var out []Ran
	for rows.Next() {
		var r Ran
		var start, submit, ready int64
		var ended sql.NullInt64
		var gpus string
		if err := rows.Scan(&r.Ref, &start, &submit, &ready, &ended, &r.User, &r.Account, &r.Partition, &r.App, &r.Node, &gpus,
			&r.Shares, &r.Count, &r.Group, &r.Mode); err != nil {
			return nil, fmt.Errorf("read ledger: %w", err)
		}
		r.Submit, r.Ready = time.UnixMilli(submit), time.UnixMilli(ready)
		if start > 0 {
			r.Start = time.UnixMilli(start)
		}
		if ended.Valid {
			r.End = time.UnixMilli(ended.Int64)
		}
		for f := range strings.SplitSeq(gpus, ",") {
			if g, err := strconv.Atoi(f); err == nil {
				r.GPUs = append(r.GPUs, g)
			}
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	return out, nil
}

// Intended returns what shadow would have done in [from, to), the last word on each
// job: the groups by ref.
func (l *Ledger) Intended(ctx context.Context, from, to time.Time) (map[string]Intended, error) {
	rows, err := l.db.QueryContext(ctx, `SELECT ref, body FROM bridge_intended WHERE at >= ? AND at < ?`, from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read intended groups: %w", err)
	}
	defer rows.Close()
	out := map[string]Intended{}
	for rows.Next() {
		var ref, body string
		var in Intended
		if err := rows.Scan(&ref, &body); err != nil {
			return nil, fmt.Errorf("read intended groups: %w", err)
		}
		if err := json.Unmarshal([]byte(body), &in); err != nil {
			return nil, fmt.Errorf("read intended group of job %s: %w", ref, err)
		}
		out[ref] = in
	}
	if err := rows.Err(); err != nil {
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
func (l *Ledger) Refused(ctx context.Context, from, to time.Time) ([]Refused, error) {
	rows, err := l.db.QueryContext(ctx, `SELECT reason, count(*), sum(looks) FROM bridge_refusals
		WHERE last >= ? AND first < ? GROUP BY reason ORDER BY 2 DESC, 1`, from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read refusals: %w", err)
	}
	defer rows.Close()
	var out []Refused
	for rows.Next() {
		var r Refused
		if err := rows.Scan(&r.Reason, &r.Jobs, &r.Looks); err != nil {
			return nil, fmt.Errorf("read refusals: %w", err)
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read refusals: %w", err)
	}
	return out, nil
}

// Nodes returns the nodes with GPUs that were in service since the given time.
func (l *Ledger) Nodes(ctx context.Context, since time.Time) ([]job.Node, error) {
	rows, err := l.db.QueryContext(ctx, `SELECT node, gpus, type, partitions FROM bridge_nodes WHERE seen >= ? ORDER BY node`, since.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	defer rows.Close()
	var out []job.Node
	for rows.Next() {
		n := job.Node{Up: true}
		var partitions string
		if err := rows.Scan(&n.Name, &n.GPUs, &n.GPUType, &partitions); err != nil {
			return nil, fmt.Errorf("read nodes: %w", err)
		}
		if partitions != "" {
			n.Partitions = strings.Split(partitions, ",")
		}
		out = append(out, n)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	return out, nil
}

// Forget removes what is older than the given time.
func (l *Ledger) Forget(ctx context.Context, before time.Time) error {
	for _, q := range []string{
		`DELETE FROM bridge_ran WHERE ended < ?`,
		`DELETE FROM bridge_intended WHERE at < ?`,
		`DELETE FROM bridge_refusals WHERE last < ?`,
		`DELETE FROM bridge_nodes WHERE seen < ?`,
	} {
		if _, err := l.db.ExecContext(ctx, q, before.UnixMilli()); err != nil {
			return fmt.Errorf("forget old entries: %w", err)
		}
	}
	return nil
}
