package database

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// Step N takes a file of format N-1 to format N. A step that was released is never changed.
//
//go:embed steps/*.sql
var steps embed.FS

// latest is the format that this release writes, the number of its last step.
var latest = func() int {
	list, err := steps.ReadDir("steps")
	if err != nil {
		panic(err)
	}
	return len(list)
}()

// format returns the format of a file, 0 for a new one. That of a newer release is an error.
func format(ctx context.Context, q Querier) (int, error) {
	var v int
	if err := q.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&v); err != nil {
		return 0, err
	}
	if v > latest {
		return 0, fmt.Errorf("a newer slurmbridge wrote it, in format %d, and this release reads formats up to %d: install the newer one "+
			"again, or put the copy that it made before the upgrade (the database's name with .format-N) in its place", v, latest)
	}
	return v, nil
}

// upgrade applies the steps that the file lacks, each in a transaction of its own, which keeps other
// processes from upgrading at the same time. A file that an older release could still read is copied first.
func upgrade(ctx context.Context, db *sql.DB, path string, log *slog.Logger) error {
	for first := true; ; first = false {
		done := false
		err := Tx(ctx, db, func(tx *sql.Tx) error {
			from, err := format(ctx, tx)
			if done = from == latest; err != nil || done {
				return err
			}
			if first && from > 0 {
				file := fmt.Sprintf("%s.format-%d", path, from)
				if err := copyTo(ctx, db, file); err != nil {
					return fmt.Errorf("copy the file first: %w", err)
				}
				log.Info("database is upgraded", "from", from, "to", latest, "copy", file)
			}
			text, err := step(from + 1)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, text+fmt.Sprintf("\nPRAGMA user_version = %d;", from+1))
			return err
		})
		if err != nil || done {
			return err
		}
	}
}

// step returns the SQL of one step.
func step(n int) (string, error) {
	list, err := steps.ReadDir("steps")
	if err != nil {
		return "", err
	}
	text, err := steps.ReadFile("steps/" + list[n-1].Name())
	return string(text), err
}

// copyTo writes the database as it was last committed to a file of mode 0600, in place of an older copy.
func copyTo(ctx context.Context, db *sql.DB, path string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // unless it was renamed
	if err := tmp.Close(); err != nil {
		return err
	}
	if _, err = db.ExecContext(ctx, `VACUUM INTO ?`, tmp.Name()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
