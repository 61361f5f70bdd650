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

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// ledger is the state of the last poll, so that RecordPoll writes only changes. Only the controller's loop uses it.
type ledger struct {
	tracks map[string]*track // the jobs of the last poll, by ref; nil = not read yet
	left   []tracker.Left    // ended runs with ends yet to write
	nodes  map[string]string // the JSON last written, by node
	hour   int64             // in which the nodes were last written
	lastAt time.Time         // of the last poll
}

// track follows a job through the queue.
type track struct {
	submit  time.Time // changes when Slurm requeues the job
	ready   time.Time
	start   time.Time // zero while the job is pending
	app     string    // of its run, as it was written
	ended   bool
	decided history.Decision
	job     *job.Job // of the last poll; nil = read from the database after a restart
}

// RecordRuns writes what a poll showed of runs: since when each job waits, where it runs, and how the runs ended
// that are over. The status has the poll, and the groups and applications that were known before it; in mode shadow the
// plan of the poll before. After an error the next poll writes what is missing.
func (j *Journal) RecordRuns(ctx context.Context, st *job.Status, left []tracker.Left) error {
	l := &j.ledger
	l.left = append(l.left, left...)
	p := &pollWriter{ledger: l, ctx: ctx, st: st, at: st.Snap.At}
	if err := database.Tx(ctx, j.db, func(tx *sql.Tx) error {
		p.tx = tx
		return p.runs()
	}); err != nil {
		return fmt.Errorf("write runs: %w", err)
	}
	l.tracks, l.left = p.tracks, nil
	return nil
}

// RecordPoll writes the guard's refusals at a poll, and which GPUs there are.
func (j *Journal) RecordPoll(ctx context.Context, st *job.Status) error {
	l := &j.ledger
	p := &pollWriter{ledger: l, ctx: ctx, st: st, at: st.Snap.At}
	if err := database.Tx(ctx, j.db, func(tx *sql.Tx) error {
		p.tx = tx
		return errors.Join(p.refusals(), p.gpus())
	}); err != nil {
		return fmt.Errorf("write poll: %w", err)
	}
	l.nodes, l.hour, l.lastAt = p.seen, p.hourOf(), p.at
	return nil
}

type pollWriter struct {
	*ledger // of the previous poll
	ctx     context.Context
	tx      *sql.Tx
	st      *job.Status
	at      time.Time
	decided map[string]history.Decision // about jobs in groups, by ref
	tracks  map[string]*track
	endings map[string]*history.Ending // of the runs that are over, by ref
	seen    map[string]string          // becomes ledger.nodes
}

func (p *pollWriter) exec(query string, args ...any) error {
	_, err := p.tx.ExecContext(p.ctx, query, args...)
	return err
}

func (p *pollWriter) runs() error {
	before := p.ledger.tracks
	if before == nil {
		var err error
		if before, err = p.unfinished(); err != nil {
			return err
		}
	}
	p.decided, p.endings = p.decisions(), map[string]*history.Ending{}
	for i := range p.left {
		l := &p.left[i]
		p.endings[l.Ref] = &l.Ending
		if l.Ending.Start.IsZero() {
			continue
		}
		if err := history.Close(p.ctx, p.tx, l.Ref, l.Ending.Start, p.at, &l.Ending); err != nil {
			return err
		}
	}
	p.tracks = make(map[string]*track, len(p.st.Snap.Jobs))
	for i := range p.st.Snap.Jobs {
		if err := p.follow(&p.st.Snap.Jobs[i], before); err != nil {
			return err
		}
	}
	for ref, t := range before {
		if p.tracks[ref] == nil {
			if err := p.disappeared(ref, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// decisions returns the decisions about jobs in groups, by ref, in mode shadow with the plan's groups included.
func (p *pollWriter) decisions() map[string]history.Decision {
	groups := slices.Clone(p.st.Groups)
	if p.st.Plan != nil && p.st.Mode == job.Shadow {
		for i := range p.st.Plan.Groups {
			groups = append(groups, p.st.Plan.Groups[i].Group)
		}
	}
	out := map[string]history.Decision{}
	for i := range groups {
		g := &groups[i]
		members := 0
		for k := range g.Members {
			m := &g.Members[k]
			if m.Ran() || m.State == "" || m.State.Pending() {
				members++
			}
		}
		onSameGPU := func(j job.Job) bool {
			gpus, _ := j.GPUsOn(g.Node)
			return j.State != job.Pending && slices.Contains(gpus, g.GPU) && !slices.Contains(g.Refs(), j.Ref)
		}
		beside := members > 1 || g.Kind == job.Join && slices.ContainsFunc(p.st.Snap.Jobs, onSameGPU)
		for k := range g.Members {
			m := &g.Members[k]
			out[m.Ref] = history.Decision{Group: g.ID, Policy: g.Policy, Rule: m.Rule, Predicted: m.Predicted, Beside: beside}
		}
	}
	return out
}

// unfinished reads the runs that had not ended when the last daemon wrote.
func (p *pollWriter) unfinished() (map[string]*track, error) {
	open, err := history.Open(p.ctx, p.tx)
	out := map[string]*track{}
	for i := range open {
		r := &open[i]
		out[r.Ref] = &track{submit: r.Submit, start: r.Allotted, ready: r.Ready, app: r.App}
	}
	return out, err
}

// follow writes what has changed about a job since the previous poll.
func (p *pollWriter) follow(j *job.Job, before map[string]*track) error {
	t := &track{submit: j.Submit}
	old := before[j.Ref]
	pending := j.State == job.Pending
	switch {
	case old == nil:
	case !old.submit.Equal(j.Submit) || !old.start.IsZero() && pending:
		// The job was requeued, or another job has its number now: slurmctld may restart its numbers from the first.
		if err := p.disappeared(j.Ref, old); err != nil {
			return err
		}
		old = nil
	default:
		*t = *old
	}
	if !t.start.IsZero() && !j.Start.IsZero() &&
		(!t.start.Equal(j.Start) || t.job != nil && len(t.job.GPUs) == 0 && len(j.GPUs) > 0) {
		// Slurm resets a run's start when its node has powered up (job_config_fini in job_mgr.c).
		if err := history.Change(p.ctx, p.tx, j.Ref, t.start, func(r *history.Run) {
			if r.End.IsZero() {
				r.Start, r.Allotted, r.GPUs = j.Start, j.Start, j.GPUs
			}
		}); err != nil {
			return err
		}
		t.start = j.Start
	}
	if app := p.st.Apps[j.Ref].Key; !t.start.IsZero() && t.app == "" && app != "" {
		t.app = app
		set := func(r *history.Run) { r.App = cmp.Or(r.App, app) }
		if err := history.Change(p.ctx, p.tx, j.Ref, t.start, set); err != nil {
			return err
		}
	}
	t.job = j
	p.tracks[j.Ref] = t
	if d, ok := p.decided[j.Ref]; ok || p.st.Mode != job.Shadow {
		t.decided = d
	}
	switch {
	case !t.ready.IsZero():
	case !pending:
		// No poll showed the job ready. All obstacles but its turn were over when it became eligible.
		t.ready = eligible(j, j.Start)
	case !p.ready(j):
	case old == nil:
		t.ready = eligible(j, p.at)
	default:
		t.ready = p.at
	}
	if !pending && t.start.IsZero() && !j.Start.IsZero() {
		t.start, t.app = j.Start, p.st.Apps[j.Ref].Key
		if err := p.insert(j, t, time.Time{}); err != nil {
			return err
		}
	}
	if j.State == job.Completing && !t.ended { // the job has ended, its epilog has not
		t.ended = true
		return p.ended(j.Ref, t)
	}
	return nil
}

// eligible returns since when a job that was ready when first seen has been ready.
func eligible(j *job.Job, at time.Time) time.Time {
	if j.Eligible.After(j.Submit) && !j.Eligible.After(at) {
		return j.Eligible
	}
	return j.Submit
}

// ready reports whether a pending job waits only for its turn.
func (p *pollWriter) ready(j *job.Job) bool {
	if j.Priority == 0 || j.Reason == "BeginTime" || j.Eligible.After(p.at) {
		return false
	}
	if p.decided[j.Ref].Group != 0 {
		return true
	}
	gate := func(d job.Dependency) bool {
		return d.Type == "after" && slices.ContainsFunc(p.st.Snap.Gates, func(g job.GateState) bool { return g.ID == d.Job })
	}
	return !slices.ContainsFunc(j.Dependency.List, func(d job.Dependency) bool { return !gate(d) })
}

// disappeared writes the end of a job that Slurm no longer shows.
func (p *pollWriter) disappeared(ref string, t *track) error {
	e := p.endings[ref]
	switch {
	case t.ended, !t.start.IsZero() && e != nil && e.Start.Equal(t.start):
		return nil // it has been closed
	case !t.start.IsZero():
		return p.ended(ref, t)
	case t.job == nil || t.ready.IsZero():
		return nil // the job was never ready
	}
	// The job was cancelled, or ran between two polls; then a record follows.
	return p.insert(t.job, t, p.at)
}

func (p *pollWriter) ended(ref string, t *track) error {
	return history.Close(p.ctx, p.tx, ref, t.start, p.at, &history.Ending{})
}

func (p *pollWriter) insert(j *job.Job, t *track, ended time.Time) error {
	r := history.Run{
		Ref: j.Ref, User: j.User, Account: j.Account, Partition: j.Partition, App: p.st.Apps[j.Ref].Key, Mode: p.st.Mode,
		QOS: j.QOS, Reservation: j.Reservation, Deadline: j.Deadline, Submit: j.Submit, Ready: t.ready, Start: t.start,
		End: ended, Node: j.Nodes, GPUs: j.GPUs, Decided: t.decided,
	}
	if e := p.endings[j.Ref]; e != nil && !ended.IsZero() {
		r.Ending = *e
	}
	switch j.Request.Kind {
	case job.Shares:
		r.Shares = j.Request.Count
	case job.WholeGPU:
		r.WholeGPUs = j.Request.Count
	}
	if j.ArrayID != 0 && !t.start.IsZero() {
		r.Task = j.ID
	}
	return history.Show(p.ctx, p.tx, &r)
}

// mostBetween bounds the time between two polls that counts as waiting: while the daemon was down nothing was refused.
const mostBetween = 10 * time.Minute

// refusals counts the guard's reasons, each once per job and poll, and the time that they alone kept jobs waiting.
func (p *pollWriter) refusals() error {
	since := time.Duration(0)
	if !p.lastAt.IsZero() {
		since = max(0, min(p.at.Sub(p.lastAt), mostBetween))
	}
	for ref, e := range p.st.Explanations {
		waits := map[rlcore.Veto]time.Duration{}
		for i := range e.Vetoes {
			waits[e.Vetoes[i].Reason] = 0
		}
		for _, reason := range e.SoleVetoes { // Vetoes may be incomplete: it has the first ones only
			waits[reason] = since
		}
		for reason, waited := range waits {
			if err := p.exec(`INSERT INTO bridge_refusals (ref, reason, first, last, looks, waited) VALUES (?, ?, ?, ?, 1, ?)
				ON CONFLICT (ref, reason) DO UPDATE SET last = excluded.last, looks = looks + 1, waited = waited + excluded.waited`,
				ref, reason.String(), p.at.UnixMilli(), p.at.UnixMilli(), waited.Milliseconds()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pollWriter) hourOf() int64 { return p.at.Unix() / 3600 }

// gpus writes the nodes' GPUs, once an hour and when they change.
func (p *pollWriter) gpus() error {
	p.seen = maps.Clone(p.nodes)
	for i := range p.st.Snap.Nodes {
		n := &p.st.Snap.Nodes[i]
		body, err := json.Marshal(&job.Node{
			Name: n.Name, Up: true, GPUs: n.GPUs, GPUType: n.GPUType, ByIndex: n.ByIndex, Partitions: n.Partitions,
		})
		if p.hour == p.hourOf() && p.nodes[n.Name] == string(body) || !n.Up {
			continue
		}
		if err = cmp.Or(err, p.exec(`INSERT INTO bridge_nodes (node, body, seen) VALUES (?, ?, ?)
			ON CONFLICT (node) DO UPDATE SET body = excluded.body, seen = excluded.seen`,
			n.Name, string(body), p.at.UnixMilli())); err != nil {
			return err
		}
		p.seen[n.Name] = string(body)
	}
	return nil
}

// VetoCounts returns the guard's reasons in [from, to), by hours of waiting, then by number of jobs, descending. A
// reason counts in full if the time between its first and last poll overlaps this period.
func (j *Journal) VetoCounts(ctx context.Context, from, to time.Time) ([]history.VetoCount, error) {
	columns := func(r *history.VetoCount) []any { return []any{&r.Reason, &r.Jobs, &r.Looks, &r.WaitH} }
	all, err := database.List(ctx, j.db, columns, `SELECT reason, count(*), sum(looks), sum(waited) / 3.6e6
		FROM bridge_refusals
		WHERE last >= ? AND first < ? GROUP BY reason ORDER BY 4 DESC, 2 DESC, 1`, from.UnixMilli(), to.UnixMilli())
	return all, database.Wrap(err, "read refusals")
}

// Nodes returns the nodes with GPUs that were in service since the given time.
func (j *Journal) Nodes(ctx context.Context, since time.Time) ([]job.Node, error) {
	nodes, err := database.List(ctx, j.db, func(n *job.Node) []any { return []any{database.JSON(n)} },
		`SELECT body FROM bridge_nodes WHERE seen >= ? ORDER BY node`, since.UnixMilli())
	return nodes, database.Wrap(err, "read nodes")
}

// LastPoll returns when a poll last showed a node, at most an hour too early; zero = never.
func (j *Journal) LastPoll(ctx context.Context) (time.Time, error) {
	var at time.Time
	err := j.db.QueryRowContext(ctx, `SELECT max(seen) FROM bridge_nodes`).Scan(database.Millis(&at))
	return at, database.Wrap(err, "read nodes")
}
