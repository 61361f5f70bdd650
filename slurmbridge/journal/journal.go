// Package journal keeps the bridge's groups, changes and notes in SQLite, so
// that a restart picks up where it was and people can ask later what was done to
// a job and why.
package journal

import (
	"context"
	"database/sql"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

//go:embed schema.sql
var schema string

// ErrNotFound says that the journal holds nothing about the job.
var ErrNotFound = errors.New("not in the journal")

// Journal implements slurmbridge.Journal on tables of its own in a database that
// somebody else opened.
type Journal struct {
	db *sql.DB
	// groups and book hold what was last written, so that what hasn't changed is
	// not written again.
	groups map[int64]string
	book   string
}

// New makes the journal's tables where they are missing.
func New(ctx context.Context, db *sql.DB) (*Journal, error) {
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, fmt.Errorf("make journal tables: %w", err)
	}
	return &Journal{db: db, groups: map[int64]string{}}, nil
}

// rest is what of a Book is not groups.
type rest struct {
	Waits    map[string]*loop.Wait     `json:"waits"`
	HandsOff map[string]string         `json:"hands_off"`
	Done     map[string]*loop.Progress `json:"done"`
	Endings  map[string]*loop.Ended    `json:"endings"`
}

// Load returns the groups that were not done when they were last written, and
// the rest of the book.
func (j *Journal) Load(ctx context.Context) (*loop.Tracker, error) {
	b := loop.NewTracker()
	var last sql.NullInt64
	if err := j.db.QueryRowContext(ctx, `SELECT max(id) FROM bridge_groups`).Scan(&last); err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	b.NextID = last.Int64 + 1
	rows, err := j.db.QueryContext(ctx, `SELECT id, body FROM bridge_groups WHERE state <> ?`, job.Done)
	if err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var body string
		if err := rows.Scan(&id, &body); err != nil {
			return nil, fmt.Errorf("read groups: %w", err)
		}
		var g job.Group
		if err := json.Unmarshal([]byte(body), &g); err != nil {
			return nil, fmt.Errorf("read group %d: %w", id, err)
		}
		b.Groups[id] = &g
		j.groups[id] = body
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	var body string
	err = j.db.QueryRowContext(ctx, `SELECT body FROM bridge_book WHERE id = 1`).Scan(&body)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return b, nil
	case err != nil:
		return nil, fmt.Errorf("read book: %w", err)
	}
	var r rest
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		return nil, fmt.Errorf("read book: %w", err)
	}
	for k, v := range r.Waits {
		b.Waits[k] = v
	}
	for k, v := range r.HandsOff {
		b.Unmanaged[k] = v
	}
	for k, v := range r.Done {
		b.Done[k] = v
	}
	for k, v := range r.Endings {
		b.Endings[k] = v
	}
	return b, nil
}

// SaveGroup writes a group down, unless it stands there as it is.
func (j *Journal) SaveGroup(ctx context.Context, g *job.Group) error {
	body, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("write group %d: %w", g.ID, err)
	}
	if j.groups[g.ID] == string(body) {
		return nil
	}
	tx, err := j.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write group %d: %w", g.ID, err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	if _, err := tx.ExecContext(ctx, `INSERT INTO bridge_groups (id, state, decided, body) VALUES (?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET state = excluded.state, body = excluded.body`,
		g.ID, g.State, g.Decided.UnixMilli(), string(body)); err != nil {
		return fmt.Errorf("write group %d: %w", g.ID, err)
	}
	for i := range g.Members {
		if _, err := tx.ExecContext(ctx, `INSERT OR IGNORE INTO bridge_members (group_id, ref) VALUES (?, ?)`,
			g.ID, g.Members[i].Ref); err != nil {
			return fmt.Errorf("write group %d: %w", g.ID, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("write group %d: %w", g.ID, err)
	}
	j.groups[g.ID] = string(body)
	if g.State == job.Done {
		delete(j.groups, g.ID)
	}
	return nil
}

// SaveBook writes down what of the book is not groups.
func (j *Journal) SaveTracker(ctx context.Context, b *loop.Tracker) error {
	r := rest{Waits: map[string]*loop.Wait{}, HandsOff: b.Unmanaged, Done: b.Done, Endings: b.Endings}
	for ref, w := range b.Waits {
		if *w != (loop.Wait{}) {
			r.Waits[ref] = w
		}
	}
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write book: %w", err)
	}
	if j.book == string(body) {
		return nil
	}
	if _, err := j.db.ExecContext(ctx, `INSERT INTO bridge_book (id, body) VALUES (1, ?)
		ON CONFLICT (id) DO UPDATE SET body = excluded.body`, string(body)); err != nil {
		return fmt.Errorf("write book: %w", err)
	}
	j.book = string(body)
	return nil
}

// Log records one change with the values it replaced, and what Slurm said to it.
func (j *Journal) Log(ctx context.Context, at time.Time, mode job.Mode, group int64, c *job.Change, outcome error) error {
	result := "ok"
	if outcome != nil {
		result = outcome.Error()
	}
	tx, err := j.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write change: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	for _, ref := range c.Update.Jobs {
		one := *c
		one.Update.Jobs = []string{ref}
		if _, err := tx.ExecContext(ctx, `INSERT INTO bridge_changes (at, mode, group_id, ref, step, change, was, result)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			at.UnixMilli(), mode, group, ref, c.Step, one.Text(), c.Was[ref], result); err != nil {
			return fmt.Errorf("write change: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("write change: %w", err)
	}
	return nil
}

// SaveNotes keeps the newest note of each job.
func (j *Journal) SaveExplanations(ctx context.Context, notes map[string]*job.Explanation) error {
	if len(notes) == 0 {
		return nil
	}
	tx, err := j.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write notes: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	for ref, n := range notes {
		body, err := json.Marshal(n)
		if err != nil {
			return fmt.Errorf("write note of job %s: %w", ref, err)
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO bridge_notes (ref, at, body) VALUES (?, ?, ?)
			ON CONFLICT (ref) DO UPDATE SET at = excluded.at, body = excluded.body`,
			ref, n.At.UnixMilli(), string(body)); err != nil {
			return fmt.Errorf("write note of job %s: %w", ref, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("write notes: %w", err)
	}
	return nil
}

// Entry is one change as it was recorded.
type Entry struct {
	At     time.Time `json:"at"`
	Mode   job.Mode  `json:"mode"`
	Group  int64     `json:"group,omitempty"`
	Ref    string    `json:"ref"`
	Step   string    `json:"step"`
	Change string    `json:"change"`
	Was    string    `json:"was"`
	Result string    `json:"result"`
}

// Story is everything the journal knows of one job.
type Story struct {
	// Waits is where the job stands in the queue, of those that wait for a decision.
	// The journal doesn't keep it: the daemon knows it from its last look.
	Waits   *loop.QueuePosition `json:"waits,omitempty"`
	Note    *job.Explanation    `json:"note,omitempty"`
	Groups  []job.Group         `json:"groups,omitempty"`
	Changes []Entry             `json:"changes,omitempty"`
	// Outcomes are what came of its runs.
	Outcomes []history.Outcome `json:"outcomes,omitempty"`
}

// Story returns what is known of a job. Returns ErrNotFound if that is nothing.
func (j *Journal) Story(ctx context.Context, ref string) (*Story, error) {
	var s Story
	var body string
	err := j.db.QueryRowContext(ctx, `SELECT body FROM bridge_notes WHERE ref = ?`, ref).Scan(&body)
	switch {
	case err == nil:
		if err := json.Unmarshal([]byte(body), &s.Note); err != nil {
			return nil, fmt.Errorf("read note of job %s: %w", ref, err)
		}
	case !errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("read note of job %s: %w", ref, err)
	}
	rows, err := j.db.QueryContext(ctx, `SELECT g.body FROM bridge_groups g JOIN bridge_members m ON m.group_id = g.id
		WHERE m.ref = ? ORDER BY g.id`, ref)
	if err != nil {
		return nil, fmt.Errorf("read groups of job %s: %w", ref, err)
	}
	defer rows.Close()
	for rows.Next() {
		var g job.Group
		if err := rows.Scan(&body); err != nil {
			return nil, fmt.Errorf("read groups of job %s: %w", ref, err)
		}
		if err := json.Unmarshal([]byte(body), &g); err != nil {
			return nil, fmt.Errorf("read groups of job %s: %w", ref, err)
		}
		s.Groups = append(s.Groups, g)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read groups of job %s: %w", ref, err)
	}
	if s.Changes, err = j.changes(ctx, ref); err != nil {
		return nil, err
	}
	if s.Outcomes, err = j.outcomes(ctx, `SELECT body FROM bridge_outcomes WHERE ref = ? ORDER BY run`, ref); err != nil {
		return nil, err
	}
	if s.Note == nil && len(s.Groups) == 0 && len(s.Changes) == 0 && len(s.Outcomes) == 0 {
		return nil, fmt.Errorf("job %s: %w", ref, ErrNotFound)
	}
	return &s, nil
}

func (j *Journal) changes(ctx context.Context, ref string) ([]Entry, error) {
	rows, err := j.db.QueryContext(ctx, `SELECT at, mode, group_id, ref, step, change, was, result
		FROM bridge_changes WHERE ref = ? ORDER BY id`, ref)
	if err != nil {
		return nil, fmt.Errorf("read changes of job %s: %w", ref, err)
	}
	defer rows.Close()
	var out []Entry
	for rows.Next() {
		var e Entry
		var at int64
		if err := rows.Scan(&at, &e.Mode, &e.Group, &e.Ref, &e.Step, &e.Change, &e.Was, &e.Result); err != nil {
			return nil, fmt.Errorf("read changes of job %s: %w", ref, err)
		}
		e.At = time.UnixMilli(at)
		out = append(out, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read changes of job %s: %w", ref, err)
	}
	return out, nil
}

// Started notes when a job really started, as its node recorded it. It returns
// the job's last group with the time between the group's first and last start,
// and whether every member's start is known by now. Returns ErrNotFound if the
// job was in no group.
func (j *Journal) Started(ctx context.Context, ref string, at time.Time) (g *job.Group, skew time.Duration, complete bool, err error) {
	var id int64
	var body string
	err = j.db.QueryRowContext(ctx, `SELECT g.id, g.body FROM bridge_groups g JOIN bridge_members m ON m.group_id = g.id
		WHERE m.ref = ? ORDER BY g.id DESC LIMIT 1`, ref).Scan(&id, &body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, 0, false, fmt.Errorf("job %s: %w", ref, ErrNotFound)
	}
	if err != nil {
		return nil, 0, false, fmt.Errorf("note start of job %s: %w", ref, err)
	}
	if _, err := j.db.ExecContext(ctx, `UPDATE bridge_members SET started = ? WHERE group_id = ? AND ref = ?`,
		at.UnixNano(), id, ref); err != nil {
		return nil, 0, false, fmt.Errorf("note start of job %s: %w", ref, err)
	}
	g = new(job.Group)
	if err := json.Unmarshal([]byte(body), g); err != nil {
		return nil, 0, false, fmt.Errorf("read group %d: %w", id, err)
	}
	skew, complete, err = j.skew(ctx, id)
	return g, skew, complete, err
}

// skew is the time between the first and the last known start of a group.
func (j *Journal) skew(ctx context.Context, id int64) (skew time.Duration, complete bool, err error) {
	var first, last sql.NullInt64
	var missing, n int
	if err := j.db.QueryRowContext(ctx, `SELECT min(started), max(started), count(*) - count(started), count(*)
		FROM bridge_members WHERE group_id = ?`, id).Scan(&first, &last, &missing, &n); err != nil {
		return 0, false, fmt.Errorf("read starts of group %d: %w", id, err)
	}
	return time.Duration(last.Int64 - first.Int64), missing == 0 && n > 0, nil
}

// Grouped is a group with what its nodes recorded.
type Grouped struct {
	job.Group
	// SkewS is the time between its first and last start, s; complete only once
	// every member's record is there.
	SkewS    float64 `json:"skew_s"`
	Complete bool    `json:"complete"`
}

// Groups returns the groups decided since the given time, in order.
func (j *Journal) Groups(ctx context.Context, since time.Time) ([]Grouped, error) {
	rows, err := j.db.QueryContext(ctx, `SELECT body FROM bridge_groups WHERE decided >= ? ORDER BY id`, since.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	defer rows.Close()
	out := []Grouped{}
	for rows.Next() {
		var body string
		if err := rows.Scan(&body); err != nil {
			return nil, fmt.Errorf("read groups: %w", err)
		}
		var g Grouped
		if err := json.Unmarshal([]byte(body), &g.Group); err != nil {
			return nil, fmt.Errorf("read groups: %w", err)
		}
		out = append(out, g)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	if err := rows.Close(); err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	for i := range out {
		skew, complete, err := j.skew(ctx, out[i].ID)
		if err != nil {
			return nil, err
		}
		out[i].SkewS, out[i].Complete = skew.Seconds(), complete
	}
	return out, nil
}

// Forget removes what is older than the given time. Open groups stay.
func (j *Journal) Forget(ctx context.Context, before time.Time) error {
	for _, q := range []string{
		`DELETE FROM bridge_changes WHERE at < ?1`,
		`DELETE FROM bridge_notes WHERE at < ?1`,
		`DELETE FROM bridge_tasks WHERE at < ?1`,
		`DELETE FROM bridge_outcomes WHERE ended < ?1`,
		`DELETE FROM bridge_members WHERE group_id IN (SELECT id FROM bridge_groups WHERE decided < ?1 AND state = 'done')`,
		`DELETE FROM bridge_groups WHERE decided < ?1 AND state = 'done'
			AND id < (SELECT max(id) FROM bridge_groups)`, // the highest number must not be given out again
	} {
		if _, err := j.db.ExecContext(ctx, q, before.UnixMilli()); err != nil {
			return fmt.Errorf("forget old entries: %w", err)
		}
	}
	return nil
}
