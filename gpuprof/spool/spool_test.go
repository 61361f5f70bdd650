package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// record is job's, which ended job seconds after 1970; points make it large.
func record(job int64, points int) *gpuprof.Record {
	r := &gpuprof.Record{JobID: job, Node: "n1", User: "ann", Start: time.Unix(0, 0), End: time.Unix(job, 0), PeriodS: 1}
	for range points {
		r.Series = append(r.Series, rlcore.Use{GPU: 0.5, MemMiB: 100})
	}
	return r
}

// head is a controller.
type head struct {
	mu   sync.Mutex
	got  []int64 // jobs, in the order they came
	cut  int     // how many of them had lost their series
	down error
	bad  map[int64]error // what is said of some jobs' records
}

func (h *head) send(_ context.Context, r *gpuprof.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down != nil {
		return h.down
	}
	if err := h.bad[r.JobID]; err != nil {
		return err
	}
	h.got = append(h.got, r.JobID)
	if r.Cut {
		h.cut++
	}
	return nil
}

func open(t *testing.T, s *Spool) *Spool {
	t.Helper()
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	return s
}

func add(t *testing.T, s *Spool, r *gpuprof.Record) {
	t.Helper()
	if err := s.Add(r); err != nil {
		t.Fatal(err)
	}
}

// Records that the controller doesn't take wait on disk, over a restart of the
// agent, and arrive in their order.
func TestSpoolUntilTheControllerIsBack(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir, h := t.TempDir(), &head{down: errors.New("connection refused")}
	start := func() (s *Spool, stop func()) {
		s = open(t, &Spool{Dir: dir, Send: h.send, Retry: 5 * time.Millisecond, RetryMax: 20 * time.Millisecond})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx) }()
		return s, func() { cancel(); <-done }
	}
	s, stop := start()
	for _, i := range []int64{3, 1, 5, 2, 4} {
		add(t, s, record(i, 3))
	}
	time.Sleep(30 * time.Millisecond)
	stop()
	// What a kill or a full disk leaves behind holds nobody up.
	for name, text := range map[string]string{"0000-1-1.json": `{"job_id": 1, "no`, ".0001-1-1.json8231": `{"jo`, "0002-1-1.json": "", "notes.txt": "an admin's"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, stop = start()
	defer stop()
	if n := s.Waiting(); n < 5 || n > 7 {
		t.Errorf("%d records wait after a restart, want 5 and two halves", n)
	}
	h.mu.Lock()
	h.down = nil
	h.mu.Unlock()
	for range 500 {
		if s.Waiting() == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if fmt.Sprint(h.got) != "[1 2 3 4 5]" {
		t.Errorf("arrived: %v", h.got)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 3 {
		t.Error(left, err)
	}
	if hidden, _ := filepath.Glob(filepath.Join(dir, ".*")); len(hidden) > 0 {
		t.Error(hidden)
	}
}

// A spool that is full gives up series, oldest first, before it gives up records,
// and those oldest first.
func TestFullSpoolKeepsSummaries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	h := &head{}
	s := open(t, &Spool{Dir: t.TempDir(), Limit: 20 << 10, Send: h.send, Metrics: NewMetrics(reg)})
	for i := range int64(12) {
		add(t, s, record(i+1, 100))
	}
	if n := s.Waiting(); n != 12 || s.folders[0].used > s.Limit {
		t.Errorf("%d of 12 records are left, in %d bytes", n, s.folders[0].used)
	}
	for i, it := range s.items {
		r, err := read(it.path())
		if err != nil || r.Cut != (len(r.Series) == 0) || r.Cut != it.cut || i > 0 && r.Cut && !s.items[i-1].cut {
			t.Errorf("record %d: cut %v, %d points, %v", i, r.Cut, len(r.Series), err)
		}
	}
	whole := 0
	for _, it := range s.items {
		if !it.cut {
			whole++
		}
	}
	if whole == 0 || whole == 12 {
		t.Fatalf("%d of 12 have their series", whole)
	}
	// Summaries alone fill it, too.
	n := int64(12)
	for ; testutil.ToFloat64(s.Metrics.dropped.WithLabelValues("full")) < 3; n++ {
		add(t, s, record(n+1, 100))
	}
	if _, err := s.flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if h.got[0] != 4 || h.got[len(h.got)-1] != n || int64(len(h.got)) != n-3 {
		t.Errorf("%d of %d arrived, from job %d on", len(h.got), n, h.got[0])
	}
	if cut := testutil.ToFloat64(s.Metrics.series); int(cut) < h.cut || h.cut == 0 {
		t.Errorf("%d arrived without their series, %v are counted", h.cut, cut)
	}
	if s.folders[0].used != 0 || s.folders[0].n != 0 {
		t.Errorf("an empty spool has %d records in %d bytes", s.folders[0].n, s.folders[0].used)
	}
}

// While the disk takes nothing records wait in memory, summaries first; when it
// does again they move there.
func TestDiskThatTakesNothing(t *testing.T) {
	var log bytes.Buffer
	reg := prometheus.NewPedanticRegistry()
	h := &head{}
	s := &Spool{
		Dir: t.TempDir(), Spare: filepath.Join(t.TempDir(), "spool"), SpareLimit: 60 << 10, Send: h.send,
		Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: NewMetrics(reg),
	}
	open(t, s)
	full := func(string, []byte) error { return syscall.ENOSPC }
	s.folders[0].write = full
	for i := range int64(10) {
		add(t, s, record(i+1, gpuprof.MaxPoints))
	}
	if n := s.folders[1].n; n != 10 || s.folders[1].used > s.SpareLimit {
		t.Errorf("%d of 10 wait in memory, in %d bytes", n, s.folders[1].used)
	}
	s.settle()
	if s.folders[1].n != 10 {
		t.Error("they moved to a disk that is full")
	}
	// The agent restarts meanwhile, and finds them.
	s = &Spool{Dir: s.Dir, Spare: s.Spare, SpareLimit: s.SpareLimit, Send: h.send, Log: s.Log, Metrics: s.Metrics}
	open(t, s)
	if s.Waiting() != 10 {
		t.Errorf("%d of 10 are there after a restart", s.Waiting())
	}
	s.settle()
	if s.folders[0].n != 10 || s.folders[1].n != 0 || s.folders[1].used != 0 {
		t.Errorf("the disk works again: %d on it, %d in memory", s.folders[0].n, s.folders[1].n)
	}
	// Neither takes anything: the agent is told, and keeps the job.
	for _, f := range s.folders {
		f.write = full
	}
	for range 5 {
		if err := s.Add(record(99, 1)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("nowhere to put it: %v", err)
		}
	}
	for _, f := range s.folders {
		f.write = writeFile
	}
	add(t, s, record(99, 1))
	if _, err := s.flush(context.Background()); err != nil || len(h.got) != 11 {
		t.Errorf("%d of 11 arrived: %v", len(h.got), err)
	}
	// Logged once a time, not once a record.
	if n := strings.Count(log.String(), "level=ERROR"); n != 3 {
		t.Errorf("%d errors are logged:\n%s", n, &log)
	}
}

// One record that the controller can't keep, or never will, holds nobody up.
func TestPoison(t *testing.T) {
	no := func(status int) error { return &recordhttp.AnswerError{Status: status} }
	h := &head{bad: map[int64]error{1: no(http.StatusServiceUnavailable), 2: recordhttp.ErrRefused, 4: no(http.StatusServiceUnavailable)}}
	s := open(t, &Spool{Dir: t.TempDir(), Send: h.send, Metrics: NewMetrics(prometheus.NewRegistry())})
	for i := range int64(5) {
		add(t, s, record(i+1, 1))
	}
	if _, err := s.flush(context.Background()); err == nil || fmt.Sprint(h.got) != "[3 5]" || s.Waiting() != 2 {
		t.Errorf("%v arrived, %d wait: %v", h.got, s.Waiting(), err)
	}
	// What is wrong with all is not asked of each.
	for status, most := range map[int]float64{http.StatusServiceUnavailable: patience, http.StatusUnauthorized: 1} {
		h.down = no(status)
		before := testutil.ToFloat64(s.Metrics.tries.WithLabelValues("error"))
		for i := range int64(9) {
			add(t, s, record(i+10, 1))
		}
		_, err := s.flush(context.Background())
		if n := testutil.ToFloat64(s.Metrics.tries.WithLabelValues("error")) - before; err == nil || n != most {
			t.Errorf("status %d: %v tries, %v", status, n, err)
		}
	}
}

// The file of a record that is refused a second time is counted once.
func TestRefusedTwice(t *testing.T) {
	h := &head{bad: map[int64]error{2: recordhttp.ErrRefused}}
	s := open(t, &Spool{Dir: t.TempDir(), Send: h.send})
	for range 2 {
		add(t, s, record(2, 1))
		if _, err := s.flush(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(s.Dir, "*"+refused))
	if err != nil || len(left) != 1 {
		t.Fatalf("%v, %v", left, err)
	}
	info, err := os.Stat(left[0])
	if f := s.folders[0]; err != nil || f.used != info.Size() || len(f.aside) != 1 {
		t.Errorf("%d bytes in %v count as %d: %v", info.Size(), f.aside, f.used, err)
	}
}

// An agent that was killed before it forgot a job closes its record again, without
// what it had sampled: that one doesn't take the first one's place.
func TestPoorerRecordIsNotTaken(t *testing.T) {
	s := open(t, &Spool{Dir: t.TempDir()})
	add(t, s, record(7, 5))
	poor := record(7, 0)
	poor.Cut = true
	add(t, s, poor)
	if r, err := read(s.items[0].path()); err != nil || len(s.items) != 1 || r.Cut || len(r.Series) != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	// The other way round it does.
	poor.JobID, poor.End = 8, time.Unix(8, 0)
	add(t, s, poor)
	add(t, s, record(8, 5))
	if r, err := read(s.items[1].path()); err != nil || len(s.items) != 2 || r.Cut {
		t.Errorf("%+v, %v", r, err)
	}
}

// Where others can write, what lies there is not signed.
func TestOthersMustNotWrite(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	s := &Spool{Dir: dir, Log: slog.New(slog.DiscardHandler)}
	if err := s.Open(); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("mode 0777: %v", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if err := s.Open(); err == nil {
			t.Error("a user's own folder: no error")
		}
	}
}

func TestMetricsAreNamedWell(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := open(t, &Spool{Dir: t.TempDir(), Spare: t.TempDir(), Send: (&head{}).send, Metrics: NewMetrics(reg)})
	add(t, s, record(1, 1))
	if _, err := s.flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 16 {
		t.Errorf("%d series, %v", n, err)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
