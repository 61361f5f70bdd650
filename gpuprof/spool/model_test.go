package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
)

// Whatever disk, controller and agent do: a record that was taken arrives, or is
// counted as lost for want of space, or was refused. What is said of the folders is
// what is in them, and no limit is passed.
func TestAnyHistory(t *testing.T) {
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(root, fmt.Sprint(n))
		defer os.RemoveAll(dir)
		arrived, refusedJobs, taken := map[int64]int{}, map[int64]bool{}, map[int64]bool{}
		var sick [2]bool
		var answers []error
		m := NewMetrics(prometheus.NewRegistry())
		send := func(_ context.Context, r *gpuprof.Record) error {
			var err error
			if len(answers) > 0 {
				err, answers = answers[0], answers[1:]
			}
			switch {
			case errors.Is(err, recordhttp.ErrRefused):
				refusedJobs[r.JobID] = true
			case err == nil || errors.Is(err, errLate):
				arrived[r.JobID]++
			}
			return err
		}
		var s *Spool
		start := func() {
			s = &Spool{
				Dir: filepath.Join(dir, "disk"), Spare: filepath.Join(dir, "memory"), Limit: 12 << 10, SpareLimit: 6 << 10,
				Send: send, Log: slog.New(slog.DiscardHandler), Metrics: m,
			}
			if err := s.Open(); err != nil {
				t.Fatal(err)
			}
			for i, f := range s.folders {
				f.write = func(path string, body []byte) error {
					if sick[i] {
						return syscall.ENOSPC
					}
					return os.WriteFile(path, body, 0o600) // as whole, and faster
				}
			}
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		start()
		lost := func() int { return int(testutil.ToFloat64(m.dropped.WithLabelValues("full"))) }
		actions := map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				r := record(rapid.Int64Range(1, 60).Draw(t, "job"), rapid.SampledFrom([]int{0, 2, 60, 300}).Draw(t, "points"))
				if err := s.Add(r); err == nil {
					taken[r.JobID] = true
				} else if !sick[0] && !sick[1] {
					t.Errorf("a sound disk takes nothing: %v", err)
				}
			},
			"deliver": func(t *rapid.T) {
				answers = rapid.SliceOfN(rapid.SampledFrom([]error{
					nil, nil, errors.New("no route"), errLate, recordhttp.ErrRefused, &recordhttp.AnswerError{Status: 503}, &recordhttp.AnswerError{Status: 401},
				}), 0, 6).Draw(t, "answers")
				_, _ = s.flush(context.Background())
			},
			"settle":  func(*rapid.T) { s.settle() },
			"restart": func(*rapid.T) { start() },
			"sick": func(t *rapid.T) {
				sick[rapid.IntRange(0, 1).Draw(t, "place")] = rapid.Bool().Draw(t, "sick")
			},
			"": func(t *rapid.T) {
				waiting := 0
				for _, f := range s.folders {
					var used int64
					left := 0
					_ = filepath.WalkDir(f.dir, func(path string, d fs.DirEntry, _ error) error {
						if info, err := d.Info(); err == nil && !d.IsDir() {
							used += info.Size()
							if strings.HasSuffix(path, waits) {
								left++
							}
						}
						return nil
					})
					if used != f.used || left != f.n || used > f.limit {
						t.Fatalf("%s: %d records in %d bytes, and says %d in %d of %d", f.place, left, used, f.n, f.used, f.limit)
					}
					waiting += f.n
				}
				if waiting != len(s.items) {
					t.Fatalf("%d files for %d records", waiting, len(s.items))
				}
			},
		}
		t.Repeat(actions)
		sick, answers = [2]bool{}, nil
		s.settle()
		if _, err := s.flush(context.Background()); err != nil || s.Waiting() != 0 {
			t.Fatalf("%d wait for a controller that takes all: %v", s.Waiting(), err)
		}
		missing := 0
		for job := range taken {
			if arrived[job] == 0 && !refusedJobs[job] {
				missing++
			}
		}
		if missing > lost() {
			t.Fatalf("%d records are missing, %d are counted as lost", missing, lost())
		}
	})
}

// errLate: the controller took a record, and couldn't say so.
var errLate = errors.New("connection reset")
