// Package spool keeps records on a node until the controller has them.
//
// A record is a file, written whole and named after its job's end, so that the
// oldest come first. They lie on disk; while the disk takes none (it is full,
// read-only, broken) they lie in a small folder in memory, from where they move
// when it does again. Where there is too little space, series go before records.
package spool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// The places where records wait.
const (
	disk   = "disk"
	memory = "memory"
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
	mu      sync.Mutex // guards what follows
	folders []*folder  // best first
	items   []*item    // what waits, oldest first
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
	s.wake = make(chan struct{}, 1)
	s.folders = []*folder{{place: disk, dir: s.Dir, limit: s.Limit, write: writeFile}}
	if s.Spare != "" {
		s.folders = append(s.folders, &folder{place: memory, dir: s.Spare, limit: s.SpareLimit, write: writeFile})
	}
	for _, f := range s.folders {
		items, err := f.open()
		if err != nil && !(sick(err) && len(s.folders) > 1) {
			return fmt.Errorf("open spool: %w", err)
		}
		if err != nil {
			s.failed(f, err)
		}
		for _, it := range items {
			if _, found := s.find(it.name); !found {
				s.list(it)
			} else if err := os.Remove(it.path()); err == nil {
				f.used -= it.size // it was just moving, and has arrived
			}
		}
	}
	s.show()
	return nil
}

// Add takes a record that is closed and has it sent. On an error it wasn't taken.
// A record that waits already is not replaced by a poorer one, as an agent makes
// that was killed before it could forget the job.
func (s *Spool) Add(r *gpuprof.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.show()
	name := fmt.Sprintf("%020d-%d-%d%s", r.End.UnixNano(), r.JobID, r.Restart, waits)
	at, found := s.find(name)
	if found {
		have, err := read(s.items[at].path())
		if err == nil {
			if have.Cut && !r.Cut {
				s.better(s.items[at], r)
			}
			return nil
		}
		s.remove(s.items[at])
	}
	// Whole in memory is better than half on disk, half on disk than in memory.
	short, wasCut := *r, r.Cut
	short.DropSeries()
	var errs []error
	for _, r := range []*gpuprof.Record{r, &short} {
		for _, f := range s.folders {
			it, err := s.lay(f, name, r)
			if err == nil {
				s.list(it)
				if it.cut && !wasCut {
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
func (s *Spool) better(it *item, r *gpuprof.Record) {
	body, err := json.Marshal(r)
	size := int64(len(body))
	if err != nil || it.in.used-it.size+size > it.in.limit || s.write(it.in, it.name, body) != nil {
		return
	}
	it.in.used += size - it.size
	it.size, it.cut = size, false
}

// lay writes a record to a folder, with room made for it.
func (s *Spool) lay(f *folder, name string, r *gpuprof.Record) (*item, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	cut := r.Cut
	if !cut && !s.cutOthers(f, int64(len(body))) {
		// Its series goes before the summaries of other records.
		short := *r
		short.DropSeries()
		if body, err = json.Marshal(&short); err != nil {
			return nil, err
		}
		cut = true
	}
	size := int64(len(body))
	if !s.dropOldest(f, size) {
		return nil, fmt.Errorf("%s: %w", f.dir, errFull)
	}
	if err := s.write(f, name, body); err != nil {
		return nil, err
	}
	f.used += size
	return &item{file: file{name, size}, in: f, cut: cut}, nil
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
	s.Log.Error("the spool takes no records: make space, or see to the file system; until then they wait in memory, up to its bound", "folder", f.dir, "err", err)
}

// list puts an item where it belongs; no item of its name may be there.
func (s *Spool) list(it *item) {
	at, _ := s.find(it.name)
	s.items = slices.Insert(s.items, at, it)
	it.in.n++
}

// unlist takes an item off the list, and reports whether it was there.
func (s *Spool) unlist(it *item) bool {
	at, ok := s.waiting(it)
	if ok {
		s.items = slices.Delete(s.items, at, at+1)
		it.in.n--
	}
	return ok
}

// find returns where a name is among the items, or belongs.
func (s *Spool) find(name string) (at int, found bool) {
	return slices.BinarySearchFunc(s.items, name, func(it *item, name string) int { return strings.Compare(it.name, name) })
}

// waiting reports whether the very item still waits.
func (s *Spool) waiting(it *item) (at int, ok bool) {
	at, found := s.find(it.name)
	return at, found && s.items[at] == it
}

// Waiting counts the records that wait.
func (s *Spool) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.items)
}

// stir has Run look.
func (s *Spool) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Spool) show() { s.Metrics.show(s.folders) }
