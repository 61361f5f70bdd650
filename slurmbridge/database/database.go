// Package database opens the controller's SQLite file and brings it to the format that this release reads.
// The profile store, the journal and the register of models keep their tables in it.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver
)

// Open opens the database at path and upgrades it; a missing one is made, with mode 0600. A corrupt file is
// renamed, and an empty database takes its place. A file that a newer release wrote is an error.
func Open(ctx context.Context, path string, log *slog.Logger) (*sql.DB, error) {
	db, err := open(ctx, path, log)
	if err == nil || !corrupt(err) {
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
	return open(ctx, path, log)
}

// The primary result codes of SQLite that are distinguished.
const (
	sqliteBusy     = 5
	sqliteReadOnly = 8
	sqliteIO       = 10
	sqliteCorrupt  = 11
	sqliteCantOpen = 14
	sqliteNotADB   = 26
)

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
	return code == sqliteCorrupt || code == sqliteNotADB
}

// busyFor is how long other processes may keep a file locked that is opened.
const busyFor = 5 * time.Second

// whileBusy calls f until no other process keeps the file locked. SQLite's own wait, its
// busy_timeout, doesn't cover the change of the journal mode.
func whileBusy(ctx context.Context, f func() error) error {
	for began := time.Now(); ; {
		err := f()
		if result(err) != sqliteBusy || time.Since(began) > busyFor {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func open(ctx context.Context, path string, log *slog.Logger) (*sql.DB, error) {
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
	if err := whileBusy(ctx, func() error { return prepare(ctx, db, path, log) }); err != nil {
		db.Close()
		if code := result(err); code == sqliteReadOnly || code == sqliteCantOpen || code == sqliteIO {
			err = fmt.Errorf("%w: it, %[2]s-wal and %[2]s-shm must be files that this user may read and write, in a folder where it may make them: ls -la %[3]s",
				err, filepath.Base(path), filepath.Dir(path))
		}
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	return db, nil
}

// prepare checks the file and upgrades it.
func prepare(ctx context.Context, db *sql.DB, path string, log *slog.Logger) error {
	if _, err := format(ctx, db); err != nil {
		return err
	}
	var found string
	if err := db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&found); err != nil {
		return err
	}
	if found != "ok" {
		return fmt.Errorf("%w: %s", errDamaged, strings.Join(strings.Fields(found), " "))
	}
	return upgrade(ctx, db, path, log)
}

// asideSuffix follows a damaged file's name, before the time.
const asideSuffix = ".corrupt-"

// Replaced reports whether a database took the place of a damaged one, with numbers that may still
// be in use.
func Replaced(ctx context.Context, db *sql.DB) bool {
	var path string
	if err := db.QueryRowContext(ctx, `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&path); err != nil || path == "" {
		return false
	}
	names, err := os.ReadDir(filepath.Dir(path))
	return err == nil && slices.ContainsFunc(names, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), filepath.Base(path)+asideSuffix) })
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
