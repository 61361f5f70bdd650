// Package spool keeps records on a node until the controller has them.
//
// A record is a file, written whole and named after its job's end, so that the oldest come first. Where the folder is
// full the oldest records go. The folder is all the state there is. A record that can't be written stays with the
// agent, which offers it again.
package spool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// Spool is what waits on this node. Add and Run may be called at the same time.
type Spool struct {
	Dir string
	// Limit is the size of Dir from which on files are removed, bytes.
	Limit int64
	// Send delivers one record; see recordhttp.Sender.
	Send    func(ctx context.Context, r *gpuprof.Record) error
	Log     *slog.Logger
	Metrics *Metrics
	// Retry is the first pause after a failure; it grows to RetryMax. Each pause is drawn from half to one and a half of
	// that, so that nodes don't come together. Defaults 500 ms and 1 min.
	Retry, RetryMax time.Duration

	wake  chan struct{}
	mu    sync.Mutex // guards the folder's files
	write func(path string, body []byte) error
}

// A file's name ends in one of these.
const (
	waits      = ".json"
	unreadable = ".bad"     // half a record
	refused    = ".refused" // one that the controller will never take
)

// file is a record that waits or was set aside.
type file struct {
	path string
	size int64
}

func (f *file) waits() bool { return strings.HasSuffix(f.path, waits) }

// Open finds what waits from before. What was being written when the agent was killed is removed: it was not taken yet.
func (s *Spool) Open() error {
	s.Retry, s.RetryMax = cmp.Or(s.Retry, 500*time.Millisecond), cmp.Or(s.RetryMax, time.Minute)
	s.wake = make(chan struct{}, 1)
	s.write = writeFile
	s.Metrics.spool.Store(s)
	// The agent signs what it finds there.
	err := os.MkdirAll(s.Dir, 0o700)
	if sick(err) {
		s.Log.Error("the spool takes no records: make space, or see to the file system; until then the agent keeps them",
			"folder", s.Dir, "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("open spool: %w", err)
	}
	info, err := os.Stat(s.Dir)
	if err != nil {
		return fmt.Errorf("open spool: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int64(st.Uid) != int64(os.Geteuid()) ||
		info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("open spool: %s is writable by other users: chown it to the agent's user and chmod 700", s.Dir)
	}
	halves, err := filepath.Glob(filepath.Join(s.Dir, ".*"+waits+"*"))
	for _, half := range halves {
		_ = os.Remove(half)
	}
	return err
}

// sick distinguishes a file system that takes nothing from a wrong setting.
func sick(err error) bool {
	return slices.ContainsFunc([]error{
		syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO, syscall.ESTALE, syscall.EUCLEAN,
	}, func(target error) bool { return errors.Is(err, target) })
}

// list returns the folder's files, oldest jobs first, and their total size.
func (s *Spool) list() (files []file, size int64) {
	entries, _ := os.ReadDir(s.Dir) // a folder that can't be read takes nothing either
	for _, e := range entries {
		name := e.Name()
		known := strings.HasSuffix(name, waits) || strings.HasSuffix(name, unreadable) || strings.HasSuffix(name, refused)
		info, err := e.Info()
		if err == nil && known && info.Mode().IsRegular() && !strings.HasPrefix(name, ".") {
			files = append(files, file{filepath.Join(s.Dir, name), info.Size()})
			size += info.Size()
		}
	}
	return files, size
}

// waiting are the files of the records that wait, oldest first.
func (s *Spool) waiting() (paths []string) {
	files, _ := s.list()
	for i := range files {
		if files[i].waits() {
			paths = append(paths, files[i].path)
		}
	}
	return paths
}

// Waiting counts the records that wait.
func (s *Spool) Waiting() int { return len(s.waiting()) }

// Add takes a record that is closed and has it sent. On an error it wasn't taken. A record that waits already is not
// replaced by one without a series, as an agent makes that was killed before it could forget the job.
func (s *Spool) Add(r *gpuprof.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := filepath.Join(s.Dir, fmt.Sprintf("%020d-%d-%d%s", r.End.UnixNano(), r.JobID, r.Restart, waits))
	if _, err := read(path); err == nil && r.Cut {
		return nil
	}
	body, err := json.Marshal(r)
	if err == nil {
		err = s.room(int64(len(body)))
	}
	if err == nil {
		err = errors.Join(os.MkdirAll(s.Dir, 0o700), s.write(path, body))
	}
	if err != nil {
		return fmt.Errorf("spool record of job %s: %w", r.Ref(), err)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// errFull says that a record is larger than all the space there may be.
var errFull = errors.New("no space is left")

// room makes room for need bytes: files that were set aside go first, then the oldest records.
func (s *Spool) room(need int64) error {
	if need > s.Limit {
		return fmt.Errorf("%s: %w", s.Dir, errFull)
	}
	files, used := s.list()
	lost := 0
	for _, records := range []bool{false, true} {
		for i := range files {
			if f := &files[i]; used+need > s.Limit && f.waits() == records && s.remove(f.path) {
				used -= f.size
				if records {
					lost++
				}
			}
		}
	}
	if lost > 0 {
		s.Metrics.dropped.WithLabelValues("full").Add(float64(lost))
		s.Log.Error("the spool is full: the oldest records are lost; is the controller there?", "folder", s.Dir, "lost", lost)
	}
	if used+need > s.Limit {
		return fmt.Errorf("%s: %w", s.Dir, errFull)
	}
	return nil
}

// remove removes a file and reports whether it is gone. If a record's file can't be removed, the record is delivered
// again, and the controller recognises it.
func (s *Spool) remove(path string) bool {
	err := os.Remove(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("a record's file can't be removed", "err", err)
		return false
	}
	return true
}

// setAside keeps a record's file until space is needed. A run that is set aside again takes the place
// of its first file.
func (s *Spool) setAside(path, suffix string) {
	if err := os.Rename(path, path+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("a record can't be set aside", "err", err)
	}
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
