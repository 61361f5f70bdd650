// Package spool keeps records on a node until the controller has them.
//
// A record is a file, written whole and named after its job's end, so that the
// oldest come first. They lie on disk; while the disk takes none (it is full,
// read-only, broken) they lie in a small folder in memory, from where they move
// when it does again. Where there is too little space, series go before records.
// The folders are all the state there is.
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
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// Spool is what waits on this node. Add and Run may be called at the same time.
type Spool struct {
	Dir string
	// Spare is a folder in memory for when Dir takes nothing, "" = none. It should
	// outlive the agent, as one under /run does.
	Spare string
	// Limit is the size of Dir from which on series are dropped, oldest first, and
	// only then whole records; SpareLimit that of Spare, bytes. Defaults 256 MiB,
	// 16 MiB.
	Limit, SpareLimit int64
	// Send delivers one record; see recordhttp.Sender.
	Send    func(ctx context.Context, r *gpuprof.Record) error
	Log     *slog.Logger
	Metrics *Metrics // nil = not exported
	// Retry is the first pause after a failure; it grows to RetryMax. Each pause is
	// drawn from half to one and a half of that, so that nodes don't come together.
	// Defaults 500 ms and 1 min.
	Retry, RetryMax time.Duration

	wake    chan struct{}
	mu      sync.Mutex      // guards the folders' files and what follows
	folders []*folder       // best first
	cut     map[string]bool // records that are known to have no series
}

// errFull says that a record is larger than all the space there may be.
var errFull = errors.New("no space is left")

// Open finds what waits from before.
func (s *Spool) Open() error {
	s.Limit, s.SpareLimit = cmp.Or(s.Limit, 256<<20), cmp.Or(s.SpareLimit, 16<<20)
	s.Retry, s.RetryMax = cmp.Or(s.Retry, 500*time.Millisecond), cmp.Or(s.RetryMax, time.Minute)
	if s.Metrics == nil {
		s.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	s.wake, s.cut = make(chan struct{}, 1), map[string]bool{}
	s.folders = []*folder{{place: disk, dir: s.Dir, limit: s.Limit, write: writeFile}}
	if s.Spare != "" {
		s.folders = append(s.folders, &folder{place: memory, dir: s.Spare, limit: s.SpareLimit, write: writeFile})
	}
	for _, f := range s.folders {
		err := f.open()
		if err != nil && !(sick(err) && len(s.folders) > 1) {
			return fmt.Errorf("open spool: %w", err)
		}
		if err != nil {
			s.failed(f, err)
		}
	}
	s.Metrics.folders.Store(&s.folders)
	return nil
}

// sick distinguishes a file system that takes nothing from a wrong setting.
func sick(err error) bool {
	return slices.ContainsFunc([]error{
		syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO, syscall.ESTALE,
		syscall.EUCLEAN,
	},
		func(target error) bool { return errors.Is(err, target) })
}

// Add takes a record that is closed and has it sent. On an error it wasn't taken.
// A record that waits already is not replaced by a poorer one, as an agent makes
// that was killed before it could forget the job.
func (s *Spool) Add(r *gpuprof.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprintf("%020d-%d-%d%s", r.End.UnixNano(), r.JobID, r.Restart, waits)
	if was := s.find(name); was != nil {
		switch have, err := read(was.path()); {
		case err != nil:
			s.remove(was)
		case have.Cut && !r.Cut:
			s.better(was, r)
			return nil
		default:
			return nil
		}
	}
	// Whole in memory is better than half on disk, half on disk than in memory.
	short := *r
	short.DropSeries()
	var errs []error
	for _, one := range []*gpuprof.Record{r, &short} {
		for _, f := range s.folders {
			err := s.lay(f, name, one)
			if err == nil {
				if s.cut[name] && !r.Cut {
					s.Metrics.series.Inc()
				}
				s.stir()
				return nil
			}
			errs = append(errs, err)
		}
	}
	return fmt.Errorf("spool record of job %s: %w", r.Ref(), errors.Join(errs...))
}

// better puts a record in the place of a poorer one of the same run, if there is room
// for it and the folder takes it. If not, the poorer one stays.
func (s *Spool) better(was *file, r *gpuprof.Record) {
	body, err := json.Marshal(r)
	_, used := was.in.list()
	if err == nil && used-was.size+int64(len(body)) <= was.in.limit && s.write(was.in, was.name, body) == nil {
		delete(s.cut, was.name)
	}
}

// lay writes a record to a folder, with room made for it: its series goes before the summaries of
// other records.
func (s *Spool) lay(f *folder, name string, r *gpuprof.Record) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	cut := r.Cut
	if !cut && !s.room(f, int64(len(body)), false) {
		short := *r
		short.DropSeries()
		if body, err = json.Marshal(&short); err != nil {
			return err
		}
		cut = true
	}
	if !s.room(f, int64(len(body)), true) {
		return fmt.Errorf("%s: %w", f.dir, errFull)
	}
	if err := s.write(f, name, body); err != nil {
		return err
	}
	delete(s.cut, name)
	if cut {
		s.cut[name] = true
	}
	return nil
}

// room makes room for need bytes in a folder: files that were set aside go first, then series, oldest
// first, then, if records may be lost, whole records. It reports whether it was enough.
func (s *Spool) room(f *folder, need int64, records bool) bool {
	files, used := f.list()
	fits := func() bool { return used+need <= f.limit }
	if fits() || need > f.limit {
		return fits()
	}
	for i := range files {
		if it := &files[i]; !it.waits() && !fits() && s.unlink(it) {
			used -= it.size
		}
	}
	for i := range files {
		if it := &files[i]; it.waits() && !s.cut[it.name] && !fits() {
			size, ok := s.shorten(it)
			if used += size - it.size; !ok {
				break
			}
			it.size = size
		}
	}
	lost := 0
	for i := range files {
		if it := &files[i]; records && it.waits() && !fits() && s.remove(it) {
			used -= it.size
			lost++
		}
	}
	if lost > 0 {
		s.Metrics.dropped.WithLabelValues("full").Add(float64(lost))
		s.Log.Error("the spool is full: the oldest records are lost; is the controller there?", "folder", f.dir, "lost", lost)
	}
	return fits()
}

// shorten drops the series of a record that waits, and returns its file's size then. It returns false
// where the folder can't be read or written.
func (s *Spool) shorten(it *file) (size int64, ok bool) {
	r, err := read(it.path())
	if err != nil {
		_ = s.unreadable(it, err) // it keeps its size where it can't be read
		return it.size, true
	}
	size = it.size
	if !r.Cut || len(r.Series) > 0 {
		r.DropSeries()
		body, err := json.Marshal(r)
		if err != nil || s.write(it.in, it.name, body) != nil {
			return size, false
		}
		s.Metrics.series.Inc()
		size = int64(len(body))
	}
	s.cut[it.name] = true
	return size, true
}

// write writes a file, whole or not at all.
func (s *Spool) write(f *folder, name string, body []byte) error {
	if err := f.write(filepath.Join(f.dir, name), body); err != nil {
		s.failed(f, err)
		return err
	}
	if f.reported {
		f.reported = false
		s.Log.Info("the spool takes records again", "folder", f.dir)
	}
	return nil
}

// failed notes that a folder takes nothing. That is logged once, however many
// records it doesn't take.
func (s *Spool) failed(f *folder, err error) {
	s.Metrics.writeErrors.WithLabelValues(f.place).Inc()
	if time.Since(f.said) < sayAgain {
		return
	}
	f.reported, f.said = true, time.Now()
	s.Log.Error("the spool takes no records: make space, or see to the file system; until then they wait in memory, up "+
		"to its bound", "folder", f.dir, "err", err)
}

// find returns the file of that name in the best folder that has it; nil = there is none.
func (s *Spool) find(name string) *file {
	for _, f := range s.folders {
		it := &file{in: f, name: name}
		if info, err := os.Lstat(it.path()); err == nil {
			it.size = info.Size()
			return it
		}
	}
	return nil
}

// unlink removes a file, and reports whether it is gone. A record whose file can't be removed is
// delivered again, and known there.
func (s *Spool) unlink(it *file) bool {
	err := os.Remove(it.path())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("a record's file can't be removed", "err", err)
		return false
	}
	return true
}

func (s *Spool) remove(it *file) bool {
	delete(s.cut, it.name)
	return s.unlink(it)
}

// setAside keeps a record's file until space is needed. A run that is set aside again takes the place
// of its first file.
func (s *Spool) setAside(it *file, suffix string) {
	delete(s.cut, it.name)
	if err := os.Rename(it.path(), it.path()+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("a record can't be set aside", "err", err)
	}
}

// errUnread is the disk's trouble with a record, which may be over later. The others go on.
var errUnread = errors.New("read spool")

// unreadable sees to a record that could not be read. It returns an error, errUnread, where
// that is the disk's trouble.
func (s *Spool) unreadable(it *file, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errHalf):
		s.Log.Error("a record can't be read; set aside", "file", it.path(), "err", err)
		s.setAside(it, unreadable)
		s.Metrics.dropped.WithLabelValues("unreadable").Inc()
		return nil
	}
	return fmt.Errorf("%w: %w", errUnread, err)
}

// names are the records that wait, oldest first.
func (s *Spool) names() (out []string) {
	for _, f := range s.folders {
		files, _ := f.list()
		for i := range files {
			if files[i].waits() {
				out = append(out, files[i].name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Waiting counts the records that wait.
func (s *Spool) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names())
}

func (s *Spool) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
