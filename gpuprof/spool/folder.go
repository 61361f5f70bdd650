package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// A file's name ends in one of these.
const (
	waits      = ".json"
	unreadable = ".bad"     // half a record
	refused    = ".refused" // one that the controller will never take
)

// folder is one of the places where records wait.
type folder struct {
	place string // disk or memory, for people and metrics
	dir   string
	limit int64 // bytes
	used  int64 // by all that is in it
	n     int   // records that wait in it
	// aside are files that will not be sent; they go first.
	aside []file
	// reported: the log says that the folder takes nothing, since the time said.
	reported bool
	said     time.Time
	// write is a field for tests.
	write func(path string, body []byte) error
}

type file struct {
	name string
	size int64
}

// item is a record that waits.
type item struct {
	file
	in  *folder
	cut bool // it is known to have no series
}

func (it *item) path() string { return filepath.Join(it.in.dir, it.name) }

// open makes the folder and returns the records that are in it. What was being
// written when the agent was killed is removed: it was not taken yet.
func (f *folder) open() ([]*item, error) {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, err
	}
	if err := private(f.dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	var items []*item
	for _, e := range entries {
		name := e.Name()
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		switch it := (file{name, info.Size()}); {
		case strings.HasPrefix(name, "."):
			if strings.Contains(name, waits) {
				_ = os.Remove(filepath.Join(f.dir, name))
			}
		case strings.HasSuffix(name, waits):
			f.used += it.size
			items = append(items, &item{file: it, in: f})
		case strings.HasSuffix(name, unreadable), strings.HasSuffix(name, refused):
			f.used += it.size
			f.aside = append(f.aside, it)
		}
	}
	return items, nil
}

// private refuses a folder in which other users could put records: the agent signs what it finds
// there.
func private(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && int64(st.Uid) != int64(os.Geteuid()) || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is writable by other users: chown it to the agent's user and chmod 700", dir)
	}
	return nil
}

// writeFile survives the power's loss once it returns.
func writeFile(path string, body []byte) error {
	dir := filepath.Dir(path)
	if err := renameio.WriteFile(path, body, 0o600, renameio.WithTempDir(dir)); err != nil {
		return err
	}
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// sick distinguishes a file system that takes nothing from a wrong setting.
func sick(err error) bool {
	return slices.ContainsFunc([]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO, syscall.ESTALE, syscall.EUCLEAN},
		func(target error) bool { return errors.Is(err, target) })
}

func read(path string) (*gpuprof.Record, error) {
	body, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	r := new(gpuprof.Record)
	if err := json.Unmarshal(body, r); err != nil {
		return nil, fmt.Errorf("%w: %w", errHalf, err)
	}
	return r, nil
}

// errHalf is a file that is no record.
var errHalf = errors.New("half a record")

// gone reports whether the file was removed.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }
