// Package store keeps runs and profiles in SQLite.
package store

import (
	"context"
	"database/sql"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

//go:embed schema.sql
var schema string

// schemaVersion is kept in the file; a file of a later version is not touched.
const schemaVersion = 1

// ErrNotFound says that there is no such profile.
var ErrNotFound = errors.New("no profile")

// Store is an open database. It may be used by several goroutines.
type Store struct {
	db  *sql.DB
	now func() time.Time
}

// Open opens the database at path, made with mode 0600 where it is missing. One
// that is corrupt is set aside beside it, and an empty one takes its place.
func Open(ctx context.Context, path string, log *slog.Logger) (*Store, error) {
	s, err := open(ctx, path)
	if err == nil || !corrupt(err) {
		return s, err
	}
	aside := fmt.Sprintf("%s.corrupt-%s", path, time.Now().UTC().Format("20060102T150405"))
	if rerr := os.Rename(path, aside); rerr != nil {
		return nil, fmt.Errorf("%w; and it can't be set aside: %w", err, rerr)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		_ = os.Rename(path+suffix, aside+suffix) // where there is one
	}
	log.Error("database is corrupt: set aside, starting with an empty one", "file", aside, "err", err)
	return open(ctx, path)
}

// corrupt tells a file that is no sound database from one that can't be reached.
func corrupt(err error) bool {
	var coded interface{ Code() int }
	if !errors.As(err, &coded) {
		return false
	}
	switch coded.Code() & 0xff {
	case 11, 26: // SQLITE_CORRUPT, SQLITE_NOTADB
		return true
	}
	return false
}

func open(ctx context.Context, path string) (*Store, error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	f.Close()
	dsn := (&url.URL{
		Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(),
		RawQuery: "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate",
	}).String()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	fail := func(err error) (*Store, error) {
		db.Close()
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	var version int
	if err := db.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&version); err != nil {
		return fail(err)
	}
	if version > schemaVersion {
		return fail(fmt.Errorf("it was written by a later release (its format is %d, this one knows %d)", version, schemaVersion))
	}
	var sound string
	if err := db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&sound); err != nil {
		return fail(err)
	}
	if _, err := db.ExecContext(ctx, schema+fmt.Sprintf("PRAGMA user_version = %d;", schemaVersion)); err != nil {
		return fail(err)
	}
	return &Store{db: db, now: time.Now}, nil
}

// DB is the database, for others' tables in the same file.
func (s *Store) DB() *sql.DB { return s.db }

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// SetApp remembers which application a job runs, as it was recognised while the
// job waited.
func (s *Store) SetApp(ctx context.Context, ref, user, app string) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO jobs (ref, user, app, seen) VALUES (?, ?, ?, ?)
		ON CONFLICT (ref) DO UPDATE SET user = excluded.user, app = excluded.app, seen = excluded.seen`,
		ref, user, app, s.now().UnixNano())
	if err != nil {
		return fmt.Errorf("remember application of job %s: %w", ref, err)
	}
	return nil
}

// AppOf returns the application remembered for a job, "" = none.
func (s *Store) AppOf(ctx context.Context, ref string) (user, app string, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT user, app FROM jobs WHERE ref = ?`, ref).Scan(&user, &app)
	if errors.Is(err, sql.ErrNoRows) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("find application of job %s: %w", ref, err)
	}
	return user, app, nil
}

// Added says what a record led to.
type Added struct {
	New bool // false: it was there already
	// Slowdown is the job's run time over its profile's, 0 = no profile.
	Slowdown float64
}

// AddRecord keeps a record of a run of app ("" = not recognised). The same record
// twice is no error. Nothing is learned of it yet: whether the run was whole is
// not in its record; see Learn.
func (s *Store) AddRecord(ctx context.Context, r *gpuprof.Record, app string) (Added, error) {
	var out Added
	body, err := json.Marshal(r)
	if err != nil {
		return out, fmt.Errorf("keep record of job %s: %w", r.Ref(), err)
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return out, fmt.Errorf("keep record of job %s: %w", r.Ref(), err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	known, err := lookup(ctx, tx, r.User, app)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return out, err
	}
	var slow sql.NullFloat64
	if known != nil && known.DurationS > 0 {
		slow = sql.NullFloat64{Float64: r.DurationS() / known.DurationS, Valid: true}
		out.Slowdown = slow.Float64
	}
	res, err := tx.ExecContext(ctx, `INSERT OR IGNORE INTO runs (job_id, restart, node, ref, user, app, started, ended, solo, slowdown, body)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.JobID, r.Restart, r.Node, r.Ref(), r.User, app, r.Start.UnixNano(), r.End.UnixNano(), r.Solo(), slow, string(body))
	if err != nil {
		return out, fmt.Errorf("keep record of job %s: %w", r.Ref(), err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return Added{}, err
	}
	out.New = true
	if err := tx.Commit(); err != nil {
		return out, fmt.Errorf("keep record of job %s: %w", r.Ref(), err)
	}
	return out, nil
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func own(ctx context.Context, q querier, user, app string) (*rlcore.Profile, error) {
	var body string
	err := q.QueryRowContext(ctx, `SELECT body FROM profiles WHERE user = ? AND app = ?`, user, app).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w of %s", ErrNotFound, app)
	}
	if err != nil {
		return nil, fmt.Errorf("read profile of %s: %w", app, err)
	}
	p := new(rlcore.Profile)
	if err := json.Unmarshal([]byte(body), p); err != nil {
		return nil, fmt.Errorf("read profile of %s: %w", app, err)
	}
	return p, nil
}

func lookup(ctx context.Context, q querier, user, app string) (*rlcore.Profile, error) {
	p, err := own(ctx, q, user, app)
	if errors.Is(err, ErrNotFound) && user != "" {
		return own(ctx, q, "", app)
	}
	return p, err
}

func put(ctx context.Context, q querier, user string, p *rlcore.Profile, now time.Time) error {
	body, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write profile of %s: %w", p.App, err)
	}
	if _, err := q.ExecContext(ctx, `INSERT INTO profiles (user, app, updated, body) VALUES (?, ?, ?, ?)
		ON CONFLICT (user, app) DO UPDATE SET updated = excluded.updated, body = excluded.body`,
		user, p.App, now.UnixNano(), string(body)); err != nil {
		return fmt.Errorf("write profile of %s: %w", p.App, err)
	}
	return nil
}

// Lookup returns the profile of a user's application: the user's own where there
// is one, else the site's. Nobody's runs change what another user's jobs are held
// to be. Returns ErrNotFound.
func (s *Store) Lookup(ctx context.Context, user, app string) (*rlcore.Profile, error) {
	return lookup(ctx, s.db, user, app)
}

// Import makes profiles known to the whole site, in place of those with the same
// names. All are taken, or none.
func (s *Store) Import(ctx context.Context, profiles []*rlcore.Profile) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("import profiles: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	for _, p := range profiles {
		if err := p.Validate(); err != nil {
			return fmt.Errorf("import profiles: %w", err)
		}
		if err := put(ctx, tx, "", p, s.now()); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("import profiles: %w", err)
	}
	return nil
}

// Entry is a profile and whose it is; User "" = the whole site's.
type Entry struct {
	User    string          `json:"user"`
	Updated time.Time       `json:"updated"`
	Profile *rlcore.Profile `json:"profile"`
}

// List returns all profiles, by application and user.
func (s *Store) List(ctx context.Context) ([]Entry, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT user, updated, body FROM profiles ORDER BY app, user`)
	if err != nil {
		return nil, fmt.Errorf("list profiles: %w", err)
	}
	defer rows.Close()
	out := []Entry{}
	for rows.Next() {
		var e Entry
		var at int64
		var body string
		if err := rows.Scan(&e.User, &at, &body); err != nil {
			return nil, fmt.Errorf("list profiles: %w", err)
		}
		e.Updated = time.Unix(0, at)
		if err := json.Unmarshal([]byte(body), &e.Profile); err != nil {
			return nil, fmt.Errorf("list profiles: %w", err)
		}
		out = append(out, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list profiles: %w", err)
	}
	return out, nil
}

// Forget removes an application's profiles: one user's, or with user "*" all. It
// returns how many there were; the runs stay.
func (s *Store) Forget(ctx context.Context, user, app string) (int64, error) {
	res, err := s.db.ExecContext(ctx, `DELETE FROM profiles WHERE app = ?1 AND (?2 = '*' OR user = ?2)`, app, user)
	if err != nil {
		return 0, fmt.Errorf("forget %s: %w", app, err)
	}
	return res.RowsAffected()
}

// Tidy removes runs that ended, and jobs that were last seen, before the given
// time.
func (s *Store) Tidy(ctx context.Context, before time.Time) error {
	for _, q := range []string{`DELETE FROM runs WHERE ended < ?`, `DELETE FROM jobs WHERE seen < ?`} {
		if _, err := s.db.ExecContext(ctx, q, before.UnixNano()); err != nil {
			return fmt.Errorf("remove old runs: %w", err)
		}
	}
	return nil
}
