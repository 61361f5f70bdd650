package database

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// written is a database with a journal and records, of many pages.
func written(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "slurmbridge.db")
	db := must.Get(Open(t.Context(), path))(t)
	defer db.Close()
	for i := range 30 {
		must.Get(db.Exec(`INSERT INTO record (job_id, restart, node, started, ended, app, body) VALUES (?1, 0, 'n1', ?1, ?1, 'md', ?2)`,
			i, fmt.Sprintf(`{"filler": %q}`, strings.Repeat("x", 3000))))(t)
		must.Get(db.Exec(`INSERT INTO bridge_groups (id, state, decided, body) VALUES (?1, 'done', ?1, '{}')`, i))(t)
	}
	return path
}

// tables are a file's.
func tables(t *testing.T, path string) []string {
	t.Helper()
	db := must.Get(sql.Open("sqlite", path))(t)
	defer db.Close()
	name := func(s *string) []any { return []any{s} }
	return must.Get(List(t.Context(), db, name, `SELECT name FROM sqlite_master WHERE type = 'table'`))(t)
}

// opened opens and closes a database as a command does, and returns what it logged.
func opened(t *testing.T, path string) string {
	t.Helper()
	var log bytes.Buffer
	db := must.Get(OpenOrReplace(t.Context(), path, slog.New(slog.NewTextHandler(&log, nil))))(t)
	must.OK(t, db.Close())
	return log.String()
}

// A file that is opened again holds what it held, and nothing is written next to it.
func TestAFileStaysAsItIs(t *testing.T) {
	path := written(t)
	before := must.Get(os.ReadFile(path))(t)
	must.Equal(t, opened(t, path), "", "logged")
	must.Equal(t, bytes.Equal(must.Get(os.ReadFile(path))(t), before), true, "it is as it was")
	must.Equal(t, len(must.Get(filepath.Glob(path+"*"))(t)), 1, "files")
}

// Daemon and commands may meet at an empty file: one of them makes its tables.
func TestManyProcessesMakeTheTablesOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slurmbridge.db")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { must.Equal(t, opened(t, path), "", "logged") })
	}
	wg.Wait()
	if got := tables(t, path); !slices.Contains(got, "record") || !slices.Contains(got, "bridge_used") {
		t.Errorf("tables: %v", got)
	}
}

// A file of another format, older or newer, is refused in one sentence and left as it is.
func TestAFileOfAnotherReleaseIsRefused(t *testing.T) {
	for _, other := range []int{1, format - 1, format + 1} {
		path := written(t)
		db := must.Get(Open(t.Context(), path))(t)
		must.Get(db.Exec(fmt.Sprintf(`PRAGMA user_version = %d`, other)))(t)
		db.Close()
		before := must.Get(os.ReadFile(path))(t)
		_, err := OpenOrReplace(t.Context(), path, slog.New(slog.DiscardHandler))
		if !errors.Is(err, errFormat) || !strings.Contains(err.Error(), "install that release again") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("format %d: %v", other, err)
		}
		must.Equal(t, bytes.Equal(must.Get(os.ReadFile(path))(t), before), true, "format %d: it is as it was", other)
	}
}

// Where making the tables fails the file stays empty, and the next try makes all of them.
func TestTablesAreMadeWholly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slurmbridge.db")
	db := must.Get(sql.Open("sqlite", path))(t)
	must.Get(db.Exec(`CREATE TABLE bridge_used (x)`))(t) // the last of them
	must.Fail(t, must.Err(Open(t.Context(), path)), "")
	must.Equal(t, tables(t, path), []string{"bridge_used"}, "tables")
	must.Get(db.Exec(`DROP TABLE bridge_used`))(t)
	db.Close()
	must.Equal(t, opened(t, path), "", "logged")
}

// A database that a command of root's makes is the folder's owner's: the daemon is not root.
func TestRootMakesNoFilesOfItsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
	const nobody = 65534
	dir := t.TempDir()
	must.OK(t, os.Chown(dir, nobody, nobody))
	db := must.Get(Open(t.Context(), filepath.Join(dir, "s.db")))(t)
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
	must.Fail(t, must.Err(Open(t.Context(), filepath.Join(dir, "link.db"))), "",
		"a link that leads nowhere isn't followed")
	must.Is(t, must.Err(os.Stat(target)), os.ErrNotExist, "what a link leads to isn't made")
}

// A file that is no database, or of which a page in the middle is lost, as after a power cut or on a failing disk: a
// command leaves it to the daemon, which may be writing to it; the daemon sets it aside as it is, and begins anew.
func TestDamagedFilesAreSetAside(t *testing.T) {
	lost := written(t)
	opened(t, lost)
	text := must.Get(os.ReadFile(lost))(t)
	db := must.Get(sql.Open("sqlite", lost))(t)
	var root, page int
	const where = `SELECT rootpage, page_size FROM sqlite_master, pragma_page_size WHERE name = 'record'`
	must.OK(t, db.QueryRow(where).Scan(&root, &page))
	db.Close()
	clear(text[(root-1)*page : root*page])
	for name, text := range map[string][]byte{
		"a page is lost": text, "no database": bytes.Repeat([]byte("this is no database "), 500),
	} {
		path := filepath.Join(t.TempDir(), "slurmbridge.db")
		must.OK(t, os.WriteFile(path, text, 0o600))
		aside := func() []string { return must.Get(filepath.Glob(path + ".corrupt-*"))(t) }
		if _, err := Open(t.Context(), path); err == nil || !strings.Contains(err.Error(), "systemctl restart slurmbridge") ||
			len(aside()) != 0 {
			t.Errorf("%s: %v; set aside: %v", name, err, aside())
		}
		log := opened(t, path)
		if !strings.Contains(log, "set aside") || name != "no database" && !strings.Contains(log, "the file is damaged") {
			t.Errorf("%s: logged %q", name, log)
		}
		if kept := aside(); len(kept) != 1 || !bytes.Equal(must.Get(os.ReadFile(kept[0]))(t), text) {
			t.Fatalf("%s: set aside: %v", name, kept)
		}
		must.Equal(t, opened(t, path), "", "the next start logs")
		db := must.Get(Open(t.Context(), path))(t)
		defer db.Close()
		if n, err := Size(t.Context(), db); err != nil || n < int64(page) || !Replaced(t.Context(), db) {
			t.Errorf("%s: it holds %d bytes, %v; replaced: %v", name, n, err, Replaced(t.Context(), db))
		}
	}
	must.Fail(t, must.Err(Open(t.Context(), filepath.Join(t.TempDir(), "none", "s.db"))), "", "a folder that isn't there")
}

// Where a row's JSON can't be read, Intact and Rows leave the row out and say so once; List, which restores jobs, fails.
func TestADamagedRow(t *testing.T) {
	db := must.Get(Open(t.Context(), written(t)))(t)
	defer db.Close()
	var log bytes.Buffer
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	const query = `SELECT body FROM bridge_groups`
	columns := func(body *map[string]any) []any { return []any{JSON(body)} }
	must.Get(db.Exec(`UPDATE bridge_groups SET body = '{"id": ' WHERE id = 7`))(t)
	for range 2 {
		must.Equal(t, len(must.Get(Intact(t.Context(), db, columns, query))(t)), 29, "rows")
	}
	must.Equal(t, strings.Count(log.String(), "a row is left out"), 1, log.String())
	must.Is(t, must.Err(List(t.Context(), db, columns, query)), errDamagedRow, "List")
}
