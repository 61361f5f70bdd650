package spool

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

func record(job int64) *gpuprof.Record {
	return &gpuprof.Record{
		JobID: job, Node: "n1", User: "ann", Start: time.Unix(1, 0), End: time.Unix(9, 0), PeriodS: 1,
		Series: []rlcore.Use{{GPU: 0.5, MemMiB: 100}},
	}
}

// Records that the controller doesn't take wait on disk, over a restart of the
// agent, and arrive.
func TestSpoolUntilTheControllerIsBack(t *testing.T) {
	dir := t.TempDir()
	var up atomic.Bool
	var got atomic.Int64
	send := func(context.Context, *gpuprof.Record) error {
		if !up.Load() {
			return errors.New("connection refused")
		}
		got.Add(1)
		return nil
	}
	open := func() (*Spool, context.CancelFunc) {
		s := &Spool{Dir: dir, Send: send, Log: slog.New(slog.DiscardHandler), Retry: 10 * time.Millisecond, RetryMax: 50 * time.Millisecond}
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _ = s.Run(ctx) }()
		return s, cancel
	}
	s, stop := open()
	for i := range int64(5) {
		if err := s.Add(record(i + 1)); err != nil {
			t.Fatal(err)
		}
	}
	// Half a record, as a full disk leaves it, holds nobody up.
	if err := os.WriteFile(filepath.Join(dir, "0000-1-1.json"), []byte(`{"job_id": 1, "no`), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	stop()
	s, stop = open()
	defer stop()
	if n := s.Waiting(); n < 5 {
		t.Errorf("%d records wait after a restart, want 5", n)
	}
	up.Store(true)
	for range 300 {
		if got.Load() == 5 && s.Waiting() == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d of 5 records arrived, %d wait", got.Load(), s.Waiting())
}

// A spool that is full gives up series before it gives up records.
func TestFullSpoolKeepsSummaries(t *testing.T) {
	s := &Spool{Dir: t.TempDir(), Limit: 60 << 10, Log: slog.New(slog.DiscardHandler)}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	for i := range int64(12) {
		r := record(i + 1)
		r.End = r.End.Add(time.Duration(i) * time.Second)
		r.Series = make([]rlcore.Use, gpuprof.MaxPoints)
		if err := s.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Waiting(); n != 12 {
		t.Errorf("%d of 12 records are left", n)
	}
}
