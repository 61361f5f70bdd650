package journal

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// ledger is what the journal remembers of the poll before, to write only what has
// changed since: a quiet queue costs nothing. It belongs to the controller's loop.
type ledger struct {
	tracks map[string]*track // the jobs of the last poll, by ref; nil = not read yet
	meant  map[string]string // the intention that was written of a job, in shadow
	nodes  map[string]string
	hour   int64 // when the nodes were last written
}

// track is what is known of a job that is in the queue.
type track struct {
	submit, ready time.Time
	start         time.Time // zero while it is pending
	ended         bool
	job           *job.Job // as the last look showed it
}

// Enter writes down what a poll showed of jobs and GPUs and led to: since when each job
// waits, where and how long it ran, what shadow would have grouped, and what the guard
// refused. The receipt and the status page are made from it. What couldn't be written is
// tried again with the next poll.
func (j *Journal) Enter(ctx context.Context, st *job.Status) error {
	if st == nil || st.Snap == nil {
		return nil
	}
	e := &entry{ledger: &j.ledger, ctx: ctx, st: st, at: st.Snap.At}
	err := database.Tx(ctx, j.db, func(tx *sql.Tx) error {
		e.tx = tx
		return e.write()
	})
	if err != nil {
		return fmt.Errorf("write ledger: %w", err)
	}
	j.ledger.tracks = e.tracks
	for _, keep := range e.kept {
		keep()
	}
	return nil
}

// entry is one Enter call.
type entry struct {
	*ledger
	ctx    context.Context
	tx     *sql.Tx
	st     *job.Status
	at     time.Time
	groups map[string]int64 // of those that run, by ref
	tracks map[string]*track
	kept   []func() // what is remembered once it is written
}

func (e *entry) exec(query string, args ...any) error {
	_, err := e.tx.ExecContext(e.ctx, query, args...)
	return err
}

func (e *entry) write() error {
	before := e.ledger.tracks
	if before == nil {
		var err error
		if before, err = e.open(); err != nil {
			return err
		}
	}
	e.groups = map[string]int64{}
	for i := range e.st.Groups {
		for _, ref := range e.st.Groups[i].Refs() {
			e.groups[ref] = e.st.Groups[i].ID
		}
	}
	e.tracks = make(map[string]*track, len(e.st.Snap.Jobs))
	for i := range e.st.Snap.Jobs {
		if err := e.job(&e.st.Snap.Jobs[i], before); err != nil {
			return err
		}
	}
	for ref, t := range before {
		if e.tracks[ref] != nil {
			continue
		}
		if err := e.gone(ref, t); err != nil {
			return err
		}
	}
	if err := e.refusals(); err != nil {
		return err
	}
	if err := e.intentions(); err != nil {
		return err
	}
	return e.cards()
}

// open reads the runs that were not over when the last daemon wrote.
func (e *entry) open() (map[string]*track, error) {
	out := map[string]*track{}
	err := database.Each(e.ctx, e.tx, func(rows *sql.Rows) error {
		var ref string
		var t track
		if err := rows.Scan(&ref, database.Millis(&t.start), database.Millis(&t.submit), database.Millis(&t.ready)); err != nil {
			return err
		}
		out[ref] = &t
		return nil
	}, `SELECT ref, start, submit, ready FROM bridge_ran WHERE ended IS NULL`)
	return out, err
}

// job takes one job of the look over.
func (e *entry) job(j *job.Job, before map[string]*track) error {
	old := before[j.Ref]
	pending := j.State == job.Pending
	var t track
	first := true
	switch {
	case old == nil:
	case !old.start.IsZero() && (pending || !old.start.Equal(j.Start)):
		// It ran, and was requeued: this is another run.
		if err := e.over(j.Ref, old); err != nil {
			return err
		}
		first = false
	default:
		t, first = *old, false
	}
	if t.job != nil && !t.start.IsZero() && len(t.job.GPUs) == 0 && len(j.GPUs) > 0 {
		if err := e.exec(`UPDATE bridge_ran SET gpus = ? WHERE ref = ? AND start = ?`, indexes(j), j.Ref, t.start.UnixMilli()); err != nil {
			return err
		}
	}
	t.submit, t.job = j.Submit, j
	if pending {
		if t.ready.IsZero() && e.ready(j) {
			t.ready = e.at
			if first {
				t.ready = j.Submit
			}
		}
		e.tracks[j.Ref] = &t
		return nil
	}
	if t.ready.IsZero() {
		// It was never seen waiting for its turn. What kept it, if anything, is over
		// since it may start.
		t.ready = j.Submit
		if j.Eligible.After(t.ready) && !j.Eligible.After(j.Start) {
			t.ready = j.Eligible
		}
	}
	if t.start.IsZero() && !j.Start.IsZero() {
		t.start = j.Start
		if err := e.row(j, &t, nil); err != nil {
			return err
		}
	}
	if j.State == job.Completing && !t.ended {
		t.ended = true
		if err := e.over(j.Ref, &t); err != nil {
			return err
		}
	}
	e.tracks[j.Ref] = &t
	return nil
}

// ready reports whether a pending job waits for nothing but its turn.
func (e *entry) ready(j *job.Job) bool {
	if j.Priority == 0 || j.Reason == "BeginTime" || j.Eligible.After(e.at) {
		return false
	}
	if e.groups[j.Ref] != 0 {
		return true
	}
	return !slices.ContainsFunc(j.Dependency.List, func(d job.Dependency) bool {
		return d.Type != "after" || !slices.ContainsFunc(e.st.Snap.Gates, func(g job.GateState) bool { return g.ID == d.Job })
	})
}

// gone takes leave of a job that the look doesn't show any more.
func (e *entry) gone(ref string, t *track) error {
	switch {
	case t.ended:
		return nil
	case !t.start.IsZero():
		return e.over(ref, t)
	case t.job == nil || t.ready.IsZero():
		return nil // it waited for something else, and never had its turn
	}
	// Cancelled, or too quick for two looks: its node's record tells which.
	at := e.at
	return e.row(t.job, t, &at)
}

func (e *entry) over(ref string, t *track) error {
	return e.exec(`UPDATE bridge_ran SET ended = ? WHERE ref = ? AND start = ? AND ended IS NULL`, e.at.UnixMilli(), ref, t.start.UnixMilli())
}

func (e *entry) row(j *job.Job, t *track, ended *time.Time) error {
	var start int64
	var end any
	if ended != nil {
		end = ended.UnixMilli()
	}
	if !t.start.IsZero() {
		start = t.start.UnixMilli()
	}
	shares, count := 0, 0
	switch j.Request.Kind {
	case job.Shares:
		shares = j.Request.Count
	case job.WholeGPU:
		count = j.Request.Count
	}
	return e.exec(`INSERT OR REPLACE INTO bridge_ran (ref, start, submit, ready, ended, user, account, partition, app, node, gpus, shares, count, group_id, mode)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		j.Ref, start, t.submit.UnixMilli(), t.ready.UnixMilli(), end, j.User, j.Account, j.Partition, e.st.Apps[j.Ref].Key,
		j.Nodes, indexes(j), shares, count, e.groups[j.Ref], e.st.Mode)
}

// indexes lists a job's GPUs on its node, by commas.
func indexes(j *job.Job) string {
	out := make([]string, len(j.GPUs))
	for i, g := range j.GPUs {
		out[i] = strconv.Itoa(g)
	}
	return strings.Join(out, ",")
}

// refusals counts the guard's reasons, each once per job and look.
func (e *entry) refusals() error {
	for ref, n := range e.st.Explanations {
		var reasons []rlcore.Refusal
		for i := range n.Refused {
			if reason := n.Refused[i].Reason; !slices.Contains(reasons, reason) {
				reasons = append(reasons, reason)
			}
		}
		for _, reason := range reasons {
			if err := e.exec(`INSERT INTO bridge_refusals (ref, reason, first, last, looks) VALUES (?, ?, ?, ?, 1)
				ON CONFLICT (ref, reason) DO UPDATE SET last = excluded.last, looks = looks + 1`,
				ref, reason.String(), e.at.UnixMilli(), e.at.UnixMilli()); err != nil {
				return err
			}
		}
	}
	return nil
}

// intentions keeps what shadow would have done with each job, the latest it says
// before the job starts: of all its plans that one is nearest to what it would have
// come to.
func (e *entry) intentions() error {
	if e.st.Mode != job.Shadow || e.st.Plan == nil {
		return nil
	}
	for i := range e.st.Plan.Groups {
		in := history.Intended{At: e.at, Group: e.st.Plan.Groups[i].Group}
		if in.Kind == job.Join {
			for k := range e.st.Snap.Jobs {
				j := &e.st.Snap.Jobs[k]
				if j.State != job.Pending && j.Nodes == in.Node && slices.Contains(j.GPUs, in.GPU) {
					in.Running = append(in.Running, j.Ref)
				}
			}
		}
		key := fmt.Sprint(in.Kind, in.Refs(), in.Running)
		var body []byte
		for _, ref := range in.Refs() {
			if e.meant[ref] == key {
				continue
			}
			if body == nil {
				var err error
				if body, err = json.Marshal(in); err != nil {
					return err
				}
			}
			if err := e.exec(`INSERT INTO bridge_intended (ref, at, body) VALUES (?, ?, ?)
				ON CONFLICT (ref) DO UPDATE SET at = excluded.at, body = excluded.body`, ref, e.at.UnixMilli(), string(body)); err != nil {
				return err
			}
			e.kept = append(e.kept, func() { e.meant[ref] = key })
		}
	}
	for ref := range e.meant {
		if e.tracks[ref] == nil {
			delete(e.meant, ref)
		}
	}
	return nil
}

// cards keeps which GPUs there are: written when they change, and once an hour.
func (e *entry) cards() error {
	hour := e.at.Unix() / 3600
	for i := range e.st.Snap.Nodes {
		n := &e.st.Snap.Nodes[i]
		partitions := strings.Join(n.Partitions, ",")
		text := fmt.Sprint(n.GPUs, n.GPUType, partitions)
		if e.hour == hour && e.nodes[n.Name] == text || !n.Up {
			continue
		}
		if err := e.exec(`INSERT INTO bridge_nodes (node, gpus, type, partitions, seen) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (node) DO UPDATE SET gpus = excluded.gpus, type = excluded.type, partitions = excluded.partitions, seen = excluded.seen`,
			n.Name, n.GPUs, n.GPUType, partitions, e.at.UnixMilli()); err != nil {
			return err
		}
		e.kept = append(e.kept, func() { e.nodes[n.Name] = text })
	}
	e.kept = append(e.kept, func() { e.hour = hour })
	return nil
}
