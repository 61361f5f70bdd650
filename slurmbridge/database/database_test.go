package database

import (
	"bytes"
	"compress/gzip"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// written unpacks a database that a demo left behind with commit 2c3873f, format 1.
func written(t *testing.T) string {
	t.Helper()
	f := must.Get(os.Open("testdata/2c3873f.db.gz"))(t)
	defer f.Close()
	z := must.Get(gzip.NewReader(f))(t)
	text := must.Get(io.ReadAll(z))(t)
	path := filepath.Join(t.TempDir(), "slurmbridge.db")
	must.OK(t, os.WriteFile(path, text, 0o600))
	return path
}

// contents returns every row of every table, as text, by table.
func contents(t *testing.T, path string) map[string][]string {
	t.Helper()
	db := must.Get(sql.Open("sqlite", path))(t)
	defer db.Close()
	out := map[string][]string{}
	name := func(s *string) []any { return []any{s} }
	tables := must.Get(List(t.Context(), db, name, `SELECT name FROM sqlite_master WHERE type = 'table'`))(t)
	for _, table := range tables {
		out[table] = []string{}
		err := Each(t.Context(), db, func(rows *sql.Rows) error {
			columns, err := rows.Columns()
			if err != nil {
				return err
			}
			values := make([]any, len(columns))
			for i := range values {
				values[i] = new(any)
			}
			if err := rows.Scan(values...); err != nil {
				return err
			}
			var row strings.Builder
			for i, c := range columns {
				fmt.Fprintf(&row, "%s=%v ", c, *values[i].(*any))
			}
			out[table] = append(out[table], row.String())
			return nil
		}, `SELECT * FROM `+table)
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// opened opens and closes a database as a command does, and returns what it logged.
func opened(t *testing.T, path string) string {
	t.Helper()
	var log bytes.Buffer
	db := must.Get(OpenOrReplace(t.Context(), path, slog.New(slog.NewTextHandler(&log, nil))))(t)
	must.OK(t, db.Close())
	return log.String()
}

// upgraded is the fixture after an upgrade.
func upgraded(t *testing.T) string {
	t.Helper()
	path := written(t)
	opened(t, path)
	return path
}

func TestUpgradeLosesNothing(t *testing.T) {
	path := written(t)
	before := contents(t, path)
	if n := len(before["runs"]); n != 30 {
		t.Fatalf("%d runs in the fixture", n)
	}
	opened(t, path)
	after := contents(t, path)
	for table, want := range before {
		got := after[table]
		for i := range got { // columns that came later
			switch table {
			case "runs":
				got[i], _, _ = strings.Cut(got[i], "ended_at=")
			case "bridge_ran":
				got[i], _, _ = strings.Cut(got[i], "qos=")
			case "profiles":
				got[i] = strings.Replace(got[i], "card= ", "", 1)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("table %s: %d rows, and there were %d", table, len(got), len(want))
		}
	}
	if !maps.EqualFunc(contents(t, path+".format-1"), before, slices.Equal) {
		t.Error("the copy differs")
	}
	if i, err := os.Stat(path + ".format-1"); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("the copy: %v %v", i.Mode(), err)
	}
}

func TestUpgradeHappensOnce(t *testing.T) {
	path := written(t)
	if log := opened(t, path); !strings.Contains(log, "database is upgraded") {
		t.Errorf("logged %q", log)
	}
	must.OK(t, os.Remove(path+".format-1"))
	if log := opened(t, path); log != "" {
		t.Errorf("logged %q at the second opening", log)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 1 {
		t.Errorf("files: %v", left)
	}
}

func TestANewFileNeedsNoUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slurmbridge.db")
	must.Equal(t, opened(t, path), "", "logged")
	if left, _ := filepath.Glob(path + "*"); len(left) != 1 {
		t.Errorf("files: %v", left)
	}
	if got, want := contents(t, path), contents(t, upgraded(t)); !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
		t.Errorf("its tables are %v, those of an upgraded file %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

func TestUpgradeByManyProcessesAtOnce(t *testing.T) {
	path := written(t)
	before := contents(t, path)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { opened(t, path) })
	}
	wg.Wait()
	if got := contents(t, path); len(got["runs"]) != 30 || len(got["bridge_groups"]) != len(before["bridge_groups"]) {
		t.Errorf("%d runs, %d groups", len(got["runs"]), len(got["bridge_groups"]))
	}
	if !maps.EqualFunc(contents(t, path+".format-1"), before, slices.Equal) {
		t.Error("the copy differs")
	}
}

// A release before the journal's first use left none of its tables.
func TestUpgradeOfAFileWithProfilesAlone(t *testing.T) {
	path := written(t)
	db := must.Get(sql.Open("sqlite", path))(t)
	for table := range contents(t, path) {
		if strings.HasPrefix(table, "bridge_") {
			must.Get(db.Exec(`DROP TABLE ` + table))(t)
		}
	}
	db.Close()
	opened(t, path)
	if got := contents(t, path); len(got["runs"]) != 30 || got["bridge_groups"] == nil || got["bridge_models"] == nil {
		t.Errorf("tables: %v", slices.Sorted(maps.Keys(got)))
	}
}

func TestAFailedStepLeavesTheFileAsItWas(t *testing.T) {
	path := written(t)
	db := must.Get(sql.Open("sqlite", path))(t)
	// The index that the last step drops after its other changes.
	must.Get(db.Exec(`DROP INDEX runs_ended`))(t)
	db.Close()
	if _, err := Open(t.Context(), path, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("opened")
	}
	if runs := contents(t, path)["runs"]; len(runs) != 30 || strings.Contains(runs[0], "ended_at") {
		t.Errorf("%d runs, %.60s", len(runs), runs)
	}
}

func TestAFileOfANewerReleaseIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slurmbridge.db")
	db, err := Open(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	must.Get(db.Exec(fmt.Sprintf(`PRAGMA user_version = %d`, latest+1)))(t)
	db.Close()
	_, err = Open(t.Context(), path, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "a newer slurmbridge wrote it") || !strings.Contains(err.Error(), "install the newer one") {
		t.Errorf("error %v", err)
	}
}

func TestCorruptFileIsSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "slurmbridge.db")
	must.OK(t, os.WriteFile(path, bytes.Repeat([]byte("this is no database "), 500), 0o600))
	// A command leaves it to the daemon, which may be writing to it.
	if _, err := Open(t.Context(), path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "systemctl restart slurmbridge") {
		t.Errorf("error %v", err)
	}
	if left, _ := filepath.Glob(path + ".corrupt-*"); len(left) != 0 {
		t.Errorf("files: %v", left)
	}
	if log := opened(t, path); !strings.Contains(log, "set aside") {
		t.Errorf("logged %q", log)
	}
	if left, _ := filepath.Glob(path + ".corrupt-*"); len(left) != 1 {
		t.Errorf("files: %v", left)
	}
	if got := contents(t, path); got["runs"] == nil {
		t.Errorf("the file in its place has the tables %v", slices.Sorted(maps.Keys(got)))
	}
	if _, err := Open(t.Context(), filepath.Join(dir, "none", "s.db"), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a folder that isn't there: no error")
	}
}

// A database that a command of root's makes is the folder's owner's: the daemon is not root.
func TestRootMakesNoFilesOfItsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
	const nobody = 65534
	dir := t.TempDir()
	must.OK(t, os.Chown(dir, nobody, nobody))
	db := must.Get(Open(t.Context(), filepath.Join(dir, "s.db"), slog.New(slog.DiscardHandler)))(t)
	defer db.Close()
	files := must.Get(filepath.Glob(filepath.Join(dir, "*")))(t)
	for _, f := range files {
		info := must.Get(os.Stat(f))(t)
		if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != nobody {
			t.Errorf("%s is of user %d", f, owner.Uid)
		}
	}
	if len(files) == 0 {
		t.Error("no files")
	}
	target := filepath.Join(t.TempDir(), "roots")
	must.OK(t, os.Symlink(target, filepath.Join(dir, "link.db")))
	if _, err := Open(t.Context(), filepath.Join(dir, "link.db"), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a link that leads nowhere was followed")
	}
	if _, err := os.Stat(target); !os.IsNotExist(err) {
		t.Errorf("what a link leads to was made: %v", err)
	}
}

// TestDamagedPagesAreSetAside: a page in the middle of a file is lost, as after a power cut
// or on a failing disk. It opens, and SQLite's check finds it.
func TestDamagedPagesAreSetAside(t *testing.T) {
	path := written(t)
	opened(t, path)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	var root, page int
	must.OK(t, db.QueryRow(`SELECT rootpage, page_size FROM sqlite_master, pragma_page_size WHERE name = 'runs'`).Scan(&root, &page))
	db.Close()
	clear(text[(root-1)*page : root*page])
	must.OK(t, os.WriteFile(path, text, 0o600))
	log := opened(t, path)
	if !strings.Contains(log, "set aside") || !strings.Contains(log, "the file is damaged") {
		t.Errorf("logged %q", log)
	}
	kept, _ := filepath.Glob(path + ".corrupt-*")
	if len(kept) == 0 {
		t.Fatal("the damaged file is gone")
	}
	if was, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(was, text) {
		t.Errorf("the damaged file was changed: %v", err)
	}
	must.Equal(t, opened(t, path), "", "the next start logs")
	db, err = Open(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if !Replaced(t.Context(), db) {
		t.Error("nobody knows that it was replaced")
	}
	if n, err := Size(t.Context(), db); err != nil || n < int64(page) {
		t.Errorf("it holds %d bytes, %v", n, err)
	}
}
