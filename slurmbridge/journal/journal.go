// Package journal stores the controller's groups, changes and explanations in SQLite, and when each job waited and ran.
// The daemon resumes from it after a restart, and `why` shows from it what was done to a job and why.
package journal

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// ErrNotFound means that the journal has nothing about a job.
var ErrNotFound = errors.New("not in the journal")

// Journal implements loop.Journal with its own tables in the controller's database.
type Journal struct {
	db *sql.DB
	// groups and tracker are the JSON last written, to skip writes that change nothing.
	groups  map[int64]string
	tracker string
	ledger  ledger
}

// New returns the journal of a database that package database opened.
func New(db *sql.DB) *Journal {
	return &Journal{db: db, groups: map[int64]string{}, ledger: ledger{nodes: map[string]string{}}}
}

// Load returns the tracker with the groups that are not done. On an error it returns what it could read. NextID is
// always higher than all numbers of groups so far.
func (j *Journal) Load(ctx context.Context) (*tracker.Tracker, error) {
	t := tracker.New()
	var last sql.NullInt64
	lerr := j.db.QueryRowContext(ctx, `SELECT max(id) FROM bridge_groups`).Scan(&last)
	t.NextID = last.Int64 + 1
	if lerr != nil || !last.Valid && database.Replaced(ctx, j.db) {
		t.NextID = tracker.FreshID(time.Now())
	}
	if lerr != nil {
		return t, fmt.Errorf("read journal: %w", lerr)
	}
	var bad error
	err := database.Each(ctx, j.db, func(rows *sql.Rows) error {
		var id int64
		var body string
		if err := rows.Scan(&id, &body); err != nil {
			return err
		}
		g := new(job.Group)
		if err := json.Unmarshal([]byte(body), g); err != nil {
			bad = errors.Join(bad, fmt.Errorf("group %d: %w", id, err))
			return nil
		}
		t.Groups[id] = g
		j.groups[id] = body
		return nil
	}, `SELECT id, body FROM bridge_groups WHERE state <> ?`, job.Done)
	if err != nil {
		return t, fmt.Errorf("read groups: %w", err)
	}
	err = j.db.QueryRowContext(ctx, `SELECT body FROM bridge_book WHERE id = 1`).Scan(database.JSON(t))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return t, errors.Join(bad, fmt.Errorf("read tracker: %w", err))
	}
	return t, bad
}

// SaveGroup writes a group, unless it is unchanged.
func (j *Journal) SaveGroup(ctx context.Context, g *job.Group) error {
	body, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("write group %d: %w", g.ID, err)
	}
	if j.groups[g.ID] == string(body) {
		return nil
	}
	err = j.tx(ctx, fmt.Sprintf("write group %d", g.ID), func(exec func(string, ...any) error) error {
		err := exec(`INSERT INTO bridge_groups (id, state, decided, body) VALUES (?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET state = excluded.state, body = excluded.body`,
			g.ID, g.State, g.Decided.UnixMilli(), string(body))
		for i := 0; err == nil && i < len(g.Members); i++ {
			err = exec(`INSERT OR IGNORE INTO bridge_members (group_id, ref) VALUES (?, ?)`, g.ID, g.Members[i].Ref)
		}
		return err
	})
	if err != nil {
		return err
	}
	j.groups[g.ID] = string(body)
	if g.State == job.Done {
		delete(j.groups, g.ID)
	}
	return nil
}

// SaveTracker writes the tracker without its groups, unless it is unchanged.
func (j *Journal) SaveTracker(ctx context.Context, t *tracker.Tracker) error {
	saved := *t
	saved.Waits = maps.Clone(t.Waits)
	maps.DeleteFunc(saved.Waits, func(_ string, w *tracker.Wait) bool { return *w == tracker.Wait{} })
	body, err := json.Marshal(&saved)
	if err != nil {
		return fmt.Errorf("write tracker: %w", err)
	}
	if j.tracker == string(body) {
		return nil
	}
	_, err = j.db.ExecContext(ctx, `INSERT OR REPLACE INTO bridge_book (id, body) VALUES (1, ?)`, string(body))
	if err == nil {
		j.tracker = string(body)
	}
	return database.Wrap(err, "write tracker")
}

// Log records a change, a row for each job, with the values that it replaced and its outcome (nil = success).
func (j *Journal) Log(ctx context.Context, at time.Time, mode job.Mode, groups map[string]int64, c *job.Change,
	outcome error,
) error {
	result := "ok"
	if outcome != nil {
		result = outcome.Error()
	}
	return j.tx(ctx, "write change", func(exec func(string, ...any) error) (err error) {
		for _, ref := range c.Update.Jobs {
			one := *c
			one.Update.Jobs = []string{ref}
			err = cmp.Or(err, exec(`INSERT INTO bridge_changes (at, mode, group_id, ref, step, change, was, result)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, at.UnixMilli(), mode, groups[ref], ref, c.Step, one.Text(), c.Was[ref], result))
		}
		return err
	})
}

// SaveExplanations replaces the explanations of jobs.
func (j *Journal) SaveExplanations(ctx context.Context, all map[string]*job.Explanation) error {
	if len(all) == 0 {
		return nil
	}
	return j.tx(ctx, "write explanations", func(exec func(string, ...any) error) (err error) {
		for ref, e := range all {
			err = cmp.Or(err, exec(`INSERT OR REPLACE INTO bridge_notes (ref, at, body) VALUES (?, ?, ?)`,
				ref, e.At.UnixMilli(), database.JSON(e)))
		}
		return err
	})
}

// Entry is a recorded change of a job.
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

// Story is the history of a job, and its present state. The journal stores the history; the daemon fills in Ref, Waits,
// Unmanaged, State and On from its last poll.
type Story struct {
	Ref       string             `json:"job"`                 // of an array task 120_4, even if it was asked for by its own number
	Waits     *job.QueuePosition `json:"waits,omitempty"`     // among the jobs that wait for a decision
	Unmanaged string             `json:"unmanaged,omitempty"` // why the bridge leaves the job to Slurm
	State     job.JobState       `json:"state,omitempty"`     // "" = the job has ended: Slurm no longer shows it
	On        *job.Place         `json:"on,omitempty"`        // where the job runs
	Note      *job.Explanation   `json:"note,omitempty"`
	Groups    []job.Group        `json:"groups,omitempty"`
	Changes   []Entry            `json:"changes,omitempty"`
	Runs      []history.Run      `json:"runs,omitempty"` // those that were judged
}

// mostTold bounds the groups, changes and runs in a Story to the last ones: a user may requeue a job every few seconds.
const mostTold = 200

// Story returns the history of a job, or ErrNotFound if there is none.
func (j *Journal) Story(ctx context.Context, ref string) (*Story, error) {
	var s Story
	err := j.db.QueryRowContext(ctx, `SELECT body FROM bridge_notes WHERE ref = ?`, ref).Scan(database.JSON(&s.Note))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("read explanation of job %s: %w", ref, err)
	}
	if s.Groups, err = j.groupsOf(ctx, ref, mostTold); err != nil {
		return nil, err
	}
	columns := func(e *Entry) []any {
		return []any{database.Millis(&e.At), &e.Mode, &e.Group, &e.Ref, &e.Step, &e.Change, &e.Was, &e.Result}
	}
	if s.Changes, err = database.List(ctx, j.db, columns, `SELECT at, mode, group_id, ref, step, change, was, result
		FROM bridge_changes WHERE ref = ? ORDER BY id DESC LIMIT ?`, ref, mostTold); err != nil {
		return nil, fmt.Errorf("read changes of job %s: %w", ref, err)
	}
	for r, err := range (&history.History{DB: j.db}).Runs(ctx, history.Filter{Ref: ref, Judged: true, Latest: mostTold}) {
		if err != nil {
			return nil, err
		}
		s.Runs = append(s.Runs, r)
	}
	slices.Reverse(s.Groups)
	slices.Reverse(s.Changes)
	slices.Reverse(s.Runs)
	if s.Note == nil && len(s.Groups) == 0 && len(s.Changes) == 0 && len(s.Runs) == 0 {
		return nil, fmt.Errorf("job %s: %w", ref, ErrNotFound)
	}
	return &s, nil
}

// MemberOf returns the job's member in its last group; nil = it was in none.
func (j *Journal) MemberOf(ctx context.Context, ref string) (*job.Member, error) {
	groups, err := j.groupsOf(ctx, ref, 1)
	for i := range groups {
		for k := range groups[i].Members {
			m := &groups[i].Members[k]
			if m.Ref == ref {
				return m, nil
			}
		}
	}
	return nil, err
}

// groupsOf returns the last groups of a job, newest first.
func (j *Journal) groupsOf(ctx context.Context, ref string, most int) ([]job.Group, error) {
	groups, err := database.List(ctx, j.db, func(g *job.Group) []any { return []any{database.JSON(g)} },
		`SELECT g.body FROM bridge_groups g JOIN bridge_members m ON m.group_id = g.id WHERE m.ref = ?
		ORDER BY g.id DESC LIMIT ?`, ref, most)
	return groups, database.Wrap(err, "read groups of job %s", ref)
}

// tx runs statements in one transaction; what names the operation in an error.
func (j *Journal) tx(ctx context.Context, what string, f func(exec func(query string, args ...any) error) error) error {
	return database.Wrap(database.Tx(ctx, j.db, func(tx *sql.Tx) error {
		return f(func(query string, args ...any) error {
			_, err := tx.ExecContext(ctx, query, args...)
			return err
		})
	}), "%s", what)
}

// Started stores a member's start, as its node recorded it, and returns the time between the group's first and last
// start, and whether all members' starts are known. The error is ErrNotFound for a job without a group.
func (j *Journal) Started(ctx context.Context, ref string, at time.Time) (skew time.Duration, complete bool,
	err error,
) {
	var group int64
	err = j.db.QueryRowContext(ctx, `UPDATE bridge_members SET started = ?1 WHERE ref = ?2
		AND group_id = (SELECT max(group_id) FROM bridge_members WHERE ref = ?2) RETURNING group_id`,
		at.UnixNano(), ref).Scan(&group)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, fmt.Errorf("job %s: %w", ref, ErrNotFound)
	}
	if err != nil {
		return 0, false, fmt.Errorf("write start of job %s: %w", ref, err)
	}
	var first, last sql.NullInt64
	if err := j.db.QueryRowContext(ctx,
		`SELECT min(started), max(started), count(*) = count(started) FROM bridge_members WHERE group_id = ?`,
		group).Scan(&first, &last, &complete); err != nil {
		return 0, false, fmt.Errorf("read starts of group %d: %w", group, err)
	}
	return time.Duration(last.Int64 - first.Int64), complete, nil
}

// Grouped is a group with the starts that nodes recorded.
type Grouped struct {
	job.Group
	SkewS    float64 `json:"skew_s"`   // between the first and the last start, s
	Complete bool    `json:"complete"` // the starts of all members are known
}

// Groups returns the groups decided since the given time, oldest first, at most limit.
func (j *Journal) Groups(ctx context.Context, since time.Time, limit int) ([]Grouped, error) {
	columns := func(g *Grouped) []any { return []any{database.JSON(&g.Group), &g.SkewS, &g.Complete} }
	groups, err := database.List(ctx, j.db, columns, `SELECT g.body, coalesce(max(m.started) - min(m.started), 0) / 1e9,
		count(m.ref) > 0 AND count(m.ref) = count(m.started)
		FROM (SELECT id, decided, body FROM bridge_groups WHERE decided >= ? ORDER BY decided, id LIMIT ?) g
		LEFT JOIN bridge_members m ON m.group_id = g.id GROUP BY g.id ORDER BY g.decided, g.id`, since.UnixMilli(), limit)
	return groups, database.Wrap(err, "read groups")
}

// Forget deletes entries older than the given time, but no open groups.
func (j *Journal) Forget(ctx context.Context, before time.Time) error {
	for _, q := range []string{
		`DELETE FROM bridge_changes WHERE at < ?1`,
		`DELETE FROM bridge_notes WHERE at < ?1`,
		`DELETE FROM bridge_members WHERE group_id IN (SELECT id FROM bridge_groups WHERE decided < ?1 AND state = 'done')`,
		`DELETE FROM bridge_groups WHERE decided < ?1 AND state = 'done'
			AND id < (SELECT max(id) FROM bridge_groups)`, // the highest number must not be given out again
		`DELETE FROM bridge_refusals WHERE last < ?1`,
		`DELETE FROM bridge_nodes WHERE seen < ?1`,
	} {
		if _, err := j.db.ExecContext(ctx, q, before.UnixMilli()); err != nil {
			return fmt.Errorf("forget old entries: %w", err)
		}
	}
	return nil
}
