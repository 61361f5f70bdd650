// Package spool keeps records on a node's disk until the controller has them.
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
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/renameio/v2"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
)

// Spool is a folder of records.
type Spool struct {
	Dir string
	// Limit is the size from which on series are dropped, oldest first, and only
	// then whole records, bytes. Default 256 MiB.
	Limit int64
	// Send delivers one record; see recordhttp.Sender.
	Send func(ctx context.Context, r *gpuprof.Record) error
	Log  *slog.Logger
	// Retry is the first pause after a failure; it grows to RetryMax. Defaults
	// 500 ms and 1 min.
	Retry, RetryMax time.Duration

	wake chan struct{}
}

// Open makes the folder.
func (s *Spool) Open() error {
	if s.Limit == 0 {
		s.Limit = 256 << 20
	}
	s.Retry, s.RetryMax = cmp.Or(s.Retry, 500*time.Millisecond), cmp.Or(s.RetryMax, time.Minute)
	s.wake = make(chan struct{}, 1)
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("make spool: %w", err)
	}
	return nil
}

// Add keeps a record and has it sent.
func (s *Spool) Add(r *gpuprof.Record) error {
	if err := s.makeRoom(); err != nil {
		s.Log.Warn("spool", "err", err)
	}
	if err := s.write(s.name(r), r); err != nil {
		return err
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

func (s *Spool) name(r *gpuprof.Record) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%020d-%d-%d.json", r.End.UnixNano(), r.JobID, r.Restart))
}

func (s *Spool) write(path string, r *gpuprof.Record) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("spool record of job %s: %w", r.Ref(), err)
	}
	if err := renameio.WriteFile(path, body, 0o600); err != nil {
		return fmt.Errorf("spool record of job %s: %w", r.Ref(), err)
	}
	return nil
}

// files lists what waits, oldest first, with its size in all.
func (s *Spool) files() (paths []string, size int64, err error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
		paths = append(paths, filepath.Join(s.Dir, e.Name()))
	}
	slices.Sort(paths)
	return paths, size, nil
}

// Waiting counts the records that wait.
func (s *Spool) Waiting() int {
	paths, _, err := s.files()
	if err != nil {
		return 0
	}
	return len(paths)
}

// makeRoom drops the oldest series first: a summary is worth more than nothing.
func (s *Spool) makeRoom() error {
	paths, size, err := s.files()
	for _, cut := range []bool{true, false} {
		for _, p := range paths {
			if err != nil || size < s.Limit {
				return err
			}
			info, serr := os.Stat(p)
			if serr != nil {
				continue
			}
			size -= info.Size()
			if !cut {
				s.Log.Error("spool is full: a record is lost", "file", p)
				err = os.Remove(p)
				continue
			}
			r, rerr := read(p)
			if rerr != nil || r.Cut {
				size += info.Size()
				continue
			}
			r.Series, r.Cut = nil, true
			err = s.write(p, r)
			if info, serr = os.Stat(p); serr == nil {
				size += info.Size()
			}
		}
	}
	return err
}

func read(path string) (*gpuprof.Record, error) {
	body, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	r := new(gpuprof.Record)
	if err := json.Unmarshal(body, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Run sends what waits until ctx ends, oldest first, with growing pauses while
// the controller doesn't take it.
func (s *Spool) Run(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval, pause.RandomizationFactor = s.Retry, s.RetryMax, 0.5
	for {
		err := s.flush(ctx)
		wait := time.Minute // in case an event was missed
		if err != nil && ctx.Err() == nil {
			wait = pause.NextBackOff()
			s.Log.Warn("records wait for the controller", "waiting", s.Waiting(), "err", err, "again_in", wait.Round(time.Millisecond))
		} else {
			pause.Reset()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		case <-s.woken(err):
			timer.Stop()
		}
	}
}

// woken lets a new record cut a pause short only where nothing failed.
func (s *Spool) woken(err error) <-chan struct{} {
	if err != nil {
		return nil
	}
	return s.wake
}

// flush sends all that waits.
func (s *Spool) flush(ctx context.Context) error {
	paths, _, err := s.files()
	if err != nil {
		return err
	}
	for _, p := range paths {
		r, err := read(p)
		if err != nil {
			// Half a record, from a disk that was full: set aside.
			s.Log.Error("a record can't be read; set aside", "file", p, "err", err)
			_ = os.Rename(p, p+".bad")
			continue
		}
		err = s.Send(ctx, r)
		if errors.Is(err, recordhttp.ErrRefused) {
			s.Log.Error("a record was refused; set aside", "file", p, "err", err)
			_ = os.Rename(p, p+".refused")
			continue
		}
		if err != nil {
			return err
		}
		if err := os.Remove(p); err != nil {
			return err
		}
	}
	return nil
}
