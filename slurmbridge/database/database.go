// Package database opens the controller's SQLite file. The profile store, the journal and the usage reports keep their
// tables in it (schema.sql).
package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed" // schema.sql
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	_ "modernc.org/sqlite" // the driver
	sqlite3 "modernc.org/sqlite/lib"
)

// Open opens the database at path; a missing one is made, with mode 0600, and is its folder's owner's. A corrupt file
// is an error, and so is one that another release wrote.
func Open(ctx context.Context, path string) (*sql.DB, error) {
	db, err := open(ctx, path)
	if corrupt(err) {
		err = fmt.Errorf("%w: the daemon sets it aside when it starts: systemctl restart slurmbridge", err)
	}
	return db, err
}

// OpenOrReplace is Open for the daemon, which owns the database: it renames a corrupt file and makes an empty database.
// A command that did so would take the file away from a daemon that is writing to it.
func OpenOrReplace(ctx context.Context, path string, log *slog.Logger) (*sql.DB, error) {
	db, err := open(ctx, path)
	if !corrupt(err) {
		return db, err
	}
	aside := path + asideSuffix + time.Now().UTC().Format("20060102T150405")
	if rerr := os.Rename(path, aside); rerr != nil {
		return nil, fmt.Errorf("%w; and it can't be set aside: %w", err, rerr)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		_ = os.Rename(path+suffix, aside+suffix) // where there is one
	}
	log.Error("database is corrupt: set aside, starting with an empty one", "file", aside, "err", err)
	return open(ctx, path)
}

// result is SQLite's primary result code of an error, 0 = it is none of SQLite's.
func result(err error) int {
	var coded interface{ Code() int }
	if !errors.As(err, &coded) {
		return 0
	}
	return coded.Code() & 0xff // the rest is the extended code
}

// errDamaged is what SQLite's own check found.
var errDamaged = errors.New("the file is damaged")

// corrupt distinguishes a damaged file from one that can't be reached.
func corrupt(err error) bool {
	if errors.Is(err, errDamaged) {
		return true
	}
	code := result(err)
	return code == sqlite3.SQLITE_CORRUPT || code == sqlite3.SQLITE_NOTADB
}

// busyFor is how long other processes may keep a file locked that is opened.
const busyFor = 5 * time.Second

// whileBusy calls f until no other process keeps the file locked. SQLite's own wait, its
// busy_timeout, doesn't cover the change of the journal mode.
func whileBusy(ctx context.Context, f func() error) error {
	for began := time.Now(); ; {
		err := f()
		if result(err) != sqlite3.SQLITE_BUSY || time.Since(began) > busyFor {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func open(ctx context.Context, path string) (*sql.DB, error) {
	if err := create(filepath.Clean(path)); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	dsn := (&url.URL{
		Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(),
		RawQuery: "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate",
	}).String()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	if err := whileBusy(ctx, func() error { return prepare(ctx, db) }); err != nil {
		db.Close()
		switch result(err) {
		case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR:
			err = fmt.Errorf("%w: it, %[2]s-wal and %[2]s-shm must be files that this user may read and write, in a folder "+
				"where it may make them: ls -la %[3]s",
				err, filepath.Base(path), filepath.Dir(path))
		}
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	return db, nil
}

// create makes the file where it isn't there. What root makes is the folder's owner's; no link is followed to it, since
// that owner would get what it leads to.
func create(path string) error {
	flags := os.O_RDWR | os.O_CREATE
	if os.Geteuid() == 0 {
		flags |= os.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, os.ErrExist) {
		_, err = os.Stat(path)
		return err
	}
	if err != nil {
		return err
	}
	defer f.Close()
	folder, err := os.Stat(filepath.Dir(path))
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	if owner, ok := folder.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 {
		return f.Chown(int(owner.Uid), int(owner.Gid))
	}
	return nil
}

// asideSuffix follows a damaged file's name, before the time.
const asideSuffix = ".corrupt-"

// Replaced reports whether a database took the place of a damaged one, with numbers that may still be in use.
func Replaced(ctx context.Context, db *sql.DB) bool {
	var path string
	if err := db.QueryRowContext(ctx,
		`SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&path); err != nil || path == "" {
		return false
	}
	names, err := os.ReadDir(filepath.Dir(path))
	return err == nil && slices.ContainsFunc(names,
		func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), filepath.Base(path)+asideSuffix) })
}

// Size is how much of the file holds data, bytes: what was deleted is used again.
func Size(ctx context.Context, db *sql.DB) (int64, error) {
	var n int64
	err := db.QueryRowContext(ctx, `SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("size of the database: %w", err)
	}
	return n, nil
}

//go:embed schema.sql
var schema string

// format is the number of the schema that this release reads and writes. A file says its own as its user_version.
const format = 21

// errFormat: another release wrote the file.
var errFormat = errors.New("another release of slurmbridge wrote it")

// prepare checks a file and makes the tables of an empty one, in a transaction that keeps other processes from doing
// the same. A file of another format is an error.
func prepare(ctx context.Context, db *sql.DB) error {
	var found string
	if err := db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&found); err != nil {
		return err
	}
	if found != "ok" {
		return fmt.Errorf("%w: %s", errDamaged, strings.Join(strings.Fields(found), " "))
	}
	return Tx(ctx, db, func(tx *sql.Tx) error {
		var v int
		if err := tx.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&v); err != nil || v == format {
			return err
		}
		if v != 0 {
			return fmt.Errorf("%w, in format %d, and this one reads format %d: install that release again, or move the file "+
				"away to start with an empty one", errFormat, v, format)
		}
		_, err := tx.ExecContext(ctx, schema+fmt.Sprintf("\nPRAGMA user_version = %d;", format))
		return err
	})
}

// Querier is a database or a transaction.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Wrap adds to an error what failed, as fmt.Sprintf puts it; nil stays nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// Each calls row for each row of a query's result.
func Each(ctx context.Context, q Querier, row func(*sql.Rows) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// errDamagedRow is JSON in a row that can't be read.
var errDamagedRow = errors.New("the row is damaged")

// said holds the damaged rows that were logged: the daemon reads most rows at each poll.
var said sync.Map

// Rows are the rows of a query's result, as they are read; columns says where one row's columns go. An error is the
// last. A damaged row is logged once and left out, so that it costs no more than itself; it stays in the file.
func Rows[T any](ctx context.Context, q Querier, columns func(*T) []any, query string, args ...any) iter.Seq2[T,
	error] {
	return func(yield func(T, error) bool) {
		errEnough := errors.New("enough")
		err := Each(ctx, q, func(rows *sql.Rows) error {
			var one T
			err := rows.Scan(columns(&one)...)
			switch {
			case errors.Is(err, errDamagedRow):
				if _, known := said.LoadOrStore(err.Error()+query, true); !known {
					slog.Error("database: a row is left out", "err", err, "query", query, "args", args)
				}
				return nil
			case err != nil:
				return err
			case !yield(one, nil):
				return errEnough
			}
			return nil
		}, query, args...)
		if err != nil && !errors.Is(err, errEnough) {
			yield(*new(T), err)
		}
	}
}

// Intact returns the rows of a query's result that can be read, never nil: see Rows.
func Intact[T any](ctx context.Context, q Querier, columns func(*T) []any, query string, args ...any) ([]T, error) {
	out := []T{}
	for one, err := range Rows(ctx, q, columns, query, args...) {
		if err != nil {
			return out, err
		}
		out = append(out, one)
	}
	return out, nil
}

// List returns all rows of a query's result, never nil. A damaged row is an error.
func List[T any](ctx context.Context, q Querier, columns func(*T) []any, query string, args ...any) ([]T, error) {
	out := []T{}
	err := Each(ctx, q, func(rows *sql.Rows) error {
		var one T
		err := rows.Scan(columns(&one)...)
		if err == nil {
			out = append(out, one)
		}
		return err
	}, query, args...)
	return out, err
}

// Tx runs f in a transaction and commits it, unless f fails.
func Tx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	if err := f(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Read runs f on one state of the database, also while another connection writes.
func Read(ctx context.Context, db *sql.DB, f func(Querier) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}) // it blocks no writer
	if err != nil {
		return fmt.Errorf("read the database: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	return f(tx)
}

// JSON is a column that holds *v as JSON; NULL leaves *v as it is.
func JSON(v any) Column {
	return Column{
		scan: func(src any) error {
			text, ok := src.(string)
			if src == nil {
				return nil
			}
			if !ok {
				return fmt.Errorf("%w: JSON in a column of %T", errDamagedRow, src)
			}
			if err := json.Unmarshal([]byte(text), v); err != nil {
				return fmt.Errorf("%w: %w", errDamagedRow, err)
			}
			return nil
		},
		value: func() (driver.Value, error) {
			text, err := json.Marshal(v)
			return string(text), err
		},
	}
}

// Millis is a column that holds *t in ms since 1970; NULL and 0 are the zero time.
func Millis(t *time.Time) Column {
	return Column{
		scan: func(src any) error {
			ms, _ := src.(int64)
			*t = time.Time{}
			if ms != 0 {
				*t = time.UnixMilli(ms)
			}
			return nil
		},
		value: func() (driver.Value, error) { return t.UnixMilli(), nil },
	}
}

// Column converts between a column and a Go value.
type Column struct {
	scan  func(src any) error
	value func() (driver.Value, error)
}

// Scan implements sql.Scanner.
func (c Column) Scan(src any) error { return c.scan(src) }

// Value implements driver.Valuer.
func (c Column) Value() (driver.Value, error) { return c.value() }
