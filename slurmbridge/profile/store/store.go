// Package store keeps records of runs, and profiles, in SQLite.
package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
)

// ErrNotFound means that there is no profile.
var ErrNotFound = errors.New("no profile")

// Store reads and writes the tables of profiles. Several goroutines may use it.
type Store struct {
	db  *sql.DB
	now func() time.Time
	// AssumedUse is the assumed use of the GPU by runs whose use can't be read; 0 = learn nothing from such runs.
	AssumedUse float64
}

// Open opens the database at path; see database.Open.
func Open(ctx context.Context, path string) (*Store, error) {
	return of(database.Open(ctx, path))
}

// OpenOrReplace is Open for the daemon; see database.OpenOrReplace.
func OpenOrReplace(ctx context.Context, path string, log *slog.Logger) (*Store, error) {
	return of(database.OpenOrReplace(ctx, path, log))
}

func of(db *sql.DB, err error) (*Store, error) {
	if err != nil {
		return nil, err
	}
	return &Store{db: db, now: time.Now}, nil
}

// DB returns the database, for the journal.
func (s *Store) DB() *sql.DB { return s.db }

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// SetApp stores the application of a job, recognised while the job waited.
func (s *Store) SetApp(ctx context.Context, ref, user, app string) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO jobs (ref, user, app, seen) VALUES (?, ?, ?, ?)
		ON CONFLICT (ref) DO UPDATE SET user = excluded.user, app = excluded.app, seen = excluded.seen`,
		ref, user, app, s.now().UnixNano())
	return database.Wrap(err, "write application of job %s", ref)
}

// AppOf returns the stored application of a user's job, "" = none, or another user's job had the number.
func (s *Store) AppOf(ctx context.Context, ref, user string) (app string, err error) {
	owner, app, err := s.job(ctx, ref)
	if owner != user {
		return "", err
	}
	return app, err
}

// OwnerOf returns the user of the last job with that number, "" = unknown.
func (s *Store) OwnerOf(ctx context.Context, ref string) (user string, err error) {
	user, _, err = s.job(ctx, ref)
	return user, err
}

func (s *Store) job(ctx context.Context, ref string) (user, app string, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT user, app FROM jobs WHERE ref = ?`, ref).Scan(&user, &app)
	if errors.Is(err, sql.ErrNoRows) {
		return "", "", nil
	}
	return user, app, database.Wrap(err, "find application of job %s", ref)
}

// AddRecord stores the record of a run of app ("" = not recognised), and reports whether the record is new. It learns
// nothing yet, since a record doesn't say whether its run was complete; see Learn.
func (s *Store) AddRecord(ctx context.Context, r *gpuprof.Record, app string) (isNew bool, err error) {
	err = database.Tx(ctx, s.db, func(tx *sql.Tx) error {
		if err := noteCards(ctx, tx, r); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx,
			`INSERT OR IGNORE INTO record (job_id, restart, node, started, ended, app, body) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			r.JobID, r.Restart, r.Node, r.Start.UnixNano(), r.ControllerTime(r.End).UnixNano(), app, database.JSON(r))
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		isNew = n > 0
		return err
	})
	return isNew, database.Wrap(err, "write record of job %s", r.Ref())
}

// own returns a user's own profiles of an application, by card; user "" = the site's.
func own(ctx context.Context, q database.Querier, user, app string) (map[string]*rlcore.Profile, error) {
	all, err := database.Intact(ctx, q, func(p *rlcore.Profile) []any { return []any{&p.Model, database.JSON(p)} },
		`SELECT card, body FROM profiles WHERE user = ? AND app = ?`, user, app)
	out := map[string]*rlcore.Profile{}
	for i := range all {
		out[all[i].Model] = &all[i]
	}
	return out, database.Wrap(err, "read profile of %s", app)
}

func put(ctx context.Context, q database.Querier, user string, p *rlcore.Profile, now time.Time) error {
	body := *p
	body.Owner = "" // column user has it
	if _, err := q.ExecContext(ctx, `INSERT INTO profiles (user, app, card, updated, body) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (user, app, card) DO UPDATE SET updated = excluded.updated, body = excluded.body`,
		user, p.App, p.Model, now.UnixNano(), database.JSON(&body)); err != nil {
		return fmt.Errorf("write profile of %s: %w", p.App, err)
	}
	return nil
}

// Lookup returns the profile of a user's application on a card, or with card "" on its fastest card: the user's own
// profile, else the site's. One user's runs never affect another's jobs. The error is ErrNotFound if there is none, or
// if the application has run on other cards only and how these compare is unknown.
func (s *Store) Lookup(ctx context.Context, user, app, card string) (*rlcore.Profile, error) {
	for _, owner := range slices.Compact([]string{user, ""}) {
		of, err := own(ctx, s.db, owner, app)
		if err != nil {
			return nil, err
		}
		p, err := choose(ctx, s.db, of, user, card)
		if err != nil {
			return nil, fmt.Errorf("read profile of %s: %w", app, err)
		}
		if p != nil {
			p.Owner = user
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w of %s", ErrNotFound, app)
}

// Known is Lookup that returns nil in place of ErrNotFound, and for app "".
func (s *Store) Known(ctx context.Context, user, app, card string) (*rlcore.Profile, error) {
	if app == "" {
		return nil, nil
	}
	p, err := s.Lookup(ctx, user, app, card)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return p, err
}

// Listed is a user's profile, or with User "" the site's, with the family and sizes of its application.
type Listed struct {
	User    string          `json:"user"`
	Updated time.Time       `json:"updated"`
	Profile *rlcore.Profile `json:"profile"`
	Family  string          `json:"family,omitempty"`
	Sizes   []appid.Size    `json:"sizes,omitempty"`
}

// Listing returns all profiles, or a user's own and the site's, by application and user.
func (s *Store) Listing(ctx context.Context, user string, all bool) ([]Listed, error) {
	columns := func(l *Listed) []any {
		l.Profile = new(rlcore.Profile)
		return []any{&l.User, database.Millis(&l.Updated), database.JSON(l.Profile)}
	}
	list, err := database.Intact(ctx, s.db, columns, `SELECT user, updated / 1000000, body FROM profiles
		WHERE ?1 OR user IN (?2, '') ORDER BY app, user, card`, all, user)
	for i := range list {
		l := &list[i]
		a, err := s.Family(ctx, l.User, l.Profile.App)
		if err != nil {
			return nil, err
		}
		l.Family = a.Family
		l.Sizes = a.Sizes
	}
	return list, database.Wrap(err, "list profiles")
}

// Forget deletes an application's profiles of a user, "*" = of all users, and returns their number. Records stay.
func (s *Store) Forget(ctx context.Context, user, app string) (int64, error) {
	res, err := s.db.ExecContext(ctx, `DELETE FROM profiles WHERE app = ?1 AND (?2 = '*' OR user = ?2)`, app, user)
	if err != nil {
		return 0, fmt.Errorf("forget %s: %w", app, err)
	}
	return res.RowsAffected()
}

// Tidy deletes what was last seen before the given time: jobs, applications without a profile, and what co-runs taught.
func (s *Store) Tidy(ctx context.Context, before time.Time) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM jobs WHERE seen < ?1; DELETE FROM cells WHERE seen < ?1;
		DELETE FROM applications WHERE seen < ?1 AND NOT EXISTS
		(SELECT 1 FROM profiles p WHERE p.user = applications.user AND p.app = applications.app)`, before.UnixNano())
	return database.Wrap(err, "remove old jobs and applications")
}

// Learn merges a run into its user's profile of the application, and reports whether it could: it needs a solo run on
// one GPU with a stored series. limitS is the run's time limit, s (0 = none). cut: the run was ended early. Such a run
// counts only until the application has a complete one.
func (s *Store) Learn(ctx context.Context, q database.Querier, app string, r *gpuprof.Record, limitS float64, cut bool,
) (bool, error) {
	if app == "" || !r.Solo() || len(r.GPUs) != 1 || r.Cut {
		return false, nil
	}
	run, err := gpuprof.ProfileOf(app, r)
	if errors.Is(err, gpuprof.ErrPartial) && s.AssumedUse > 0 {
		run, err = gpuprof.ProfileOf(app, assuming(r, s.AssumedUse))
	}
	if err != nil {
		return false, nil // the record is too incomplete
	}
	run.Past = []rlcore.Past{{SoloS: run.DurationS, LimitS: limitS}}
	if cut {
		run = cutShort(run, limitS)
	}
	run.Model = r.Model()
	of, err := own(ctx, q, r.User, app)
	if err != nil {
		return false, err
	}
	if old := of[run.Model]; cut && old != nil && (old.Runs > 0 || old.DurationS > run.DurationS) {
		return true, nil
	}
	merged := gpuprof.Merge(of[run.Model], run, r.GPUs[0].MemMiB)
	merged.Model = run.Model
	return true, put(ctx, q, r.User, merged, s.now())
}

// cutShort extrapolates the profile of a run that was ended early, with its mean use and peak memory, to the duration
// assumed for an unknown job with this limit. Like an imported profile it counts no runs.
func cutShort(run *rlcore.Profile, limitS float64) *rlcore.Profile {
	assumed := job.AskedProfile("", run.App, limitS, 0)
	rest := run.Mean()
	rest.MemMiB = run.Peak().MemMiB
	q := *run
	q.Series = append(slices.Clone(run.Series), rest)
	q.DurationS = max(run.DurationS, assumed.DurationS)
	q.DurationSD = assumed.DurationSD
	q.Runs = 0
	q.Past = nil
	q.Source += ", which was ended before its end"
	return &q
}

// assuming returns the record with the given use in place of an unknown use of the GPU.
func assuming(r *gpuprof.Record, use float64) *gpuprof.Record {
	out := *r
	gpu := gpuprof.Recorded[gpuprof.FigGPU].Name
	core := gpuprof.Recorded[gpuprof.FigCore].Name
	out.Series = slices.Clone(r.Series)
	for i := range out.Series {
		if slices.Contains(r.Unknown, gpu) {
			out.Series[i].GPU = use
		}
		if slices.Contains(r.Unknown, core) {
			out.Series[i].Core = use
		}
	}
	out.Unknown = slices.DeleteFunc(slices.Clone(r.Unknown), func(s string) bool { return s == gpu })
	return &out
}

// Ran adds a run's length to the user's own profile of an application on a card, if there is one. It changes nothing
// else, since a sharer's own use of the GPU is unknown.
func (s *Store) Ran(ctx context.Context, q database.Querier, user, app, card string, x rlcore.Past) error {
	of, err := own(ctx, q, user, app)
	if err != nil || of[card] == nil {
		return err
	}
	p := of[card]
	p.AddPast(x)
	return put(ctx, q, user, p, s.now())
}

// ReadProfiles reads profiles from a file: JSON (an array of profiles, with series) or CSV (app, duration_s, gpu_util,
// mem_util, mem_mib, sm_util, pcie_mbps, step_ms: one constant use for each application).
func ReadProfiles(path string) ([]*rlcore.Profile, error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if strings.HasSuffix(path, ".csv") {
		return ParseCSV(f, path)
	}
	out, err := ParseJSON(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// ParseJSON reads profiles from JSON.
func ParseJSON(r io.Reader) ([]*rlcore.Profile, error) {
	dec := json.NewDecoder(io.LimitReader(r, 256<<20))
	dec.DisallowUnknownFields()
	var out []*rlcore.Profile
	if err := dec.Decode(&out); err != nil {
		return nil, fmt.Errorf("not a list of profiles: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the list of profiles: a file has one list")
	}
	if len(out) == 0 {
		return nil, errors.New("the list of profiles is empty")
	}
	type key struct{ app, card string }
	seen := map[key]bool{}
	for i, p := range out {
		if p == nil || p.App == "" {
			return nil, fmt.Errorf("profile %d has no app", i+1)
		}
		of := key{p.App, p.Model}
		if seen[of] {
			return nil, fmt.Errorf("profile %d: %q %w", i+1, p.App, table.ErrTwice)
		}
		seen[of] = true
		if err := p.Validate(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ParseCSV reads profiles with table.ReadProfiles. mem_mib must not be empty: without it the guard would let any job
// share the GPU. An empty gpu_util counts as 100 %, an empty sm_util as gpu_util.
func ParseCSV(r io.Reader, name string) ([]*rlcore.Profile, error) {
	return table.ReadProfiles(r, name, &table.ProfileRules{
		Columns: []string{"app", "duration_s", "gpu_util", "mem_mib"}, Values: []string{"duration_s", "mem_mib"},
		GPUPercent: 100, CoreShare: 1, Source: "imported",
	})
}
