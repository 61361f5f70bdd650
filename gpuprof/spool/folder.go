package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	// reported: the log says that the folder takes nothing, since the time said.
	reported bool
	said     time.Time
	// write is a field for tests.
	write func(path string, body []byte) error
}

// file is a record that waits or was set aside.
type file struct {
	in   *folder
	name string
	size int64
}

func (it *file) path() string { return filepath.Join(it.in.dir, it.name) }
func (it *file) waits() bool  { return strings.HasSuffix(it.name, waits) }

// open makes the folder. What was being written when the agent was killed is removed: it was not
// taken yet.
func (f *folder) open() error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	// The agent signs what it finds there.
	info, err := os.Stat(f.dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int64(st.Uid) != int64(os.Geteuid()) ||
		info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is writable by other users: chown it to the agent's user and chmod 700", f.dir)
	}
	halves, err := filepath.Glob(filepath.Join(f.dir, ".*"+waits+"*"))
	for _, half := range halves {
		_ = os.Remove(half)
	}
	return err
}

// list returns the folder's files by name, and the size of all of them.
func (f *folder) list() (files []file, size int64) {
	entries, _ := os.ReadDir(f.dir) // a folder that can't be read takes nothing either
	for _, e := range entries {
		name := e.Name()
		known := strings.HasSuffix(name, waits) || strings.HasSuffix(name, unreadable) || strings.HasSuffix(name, refused)
		info, err := e.Info()
		if err == nil && known && info.Mode().IsRegular() && !strings.HasPrefix(name, ".") {
			files = append(files, file{f, name, info.Size()})
			size += info.Size()
		}
	}
	return files, size
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

// errHalf is a file that is no record.
var errHalf = errors.New("half a record")

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
