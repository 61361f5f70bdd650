package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
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
	return nil
}

func open(t *testing.T, s *Spool) *Spool {
	t.Helper()
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Metrics == nil {
		s.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	s.Limit = cmp.Or(s.Limit, 256<<20)
	must.OK(t, s.Open())
	return s
}

// records reads what waits, oldest first.
func records(t *testing.T, s *Spool) (out []*gpuprof.Record) {
	t.Helper()
	for _, path := range s.waiting() {
		out = append(out, must.Get(read(path))(t))
	}
	return out
}

func add(t *testing.T, s *Spool, r *gpuprof.Record) {
	t.Helper()
	must.OK(t, s.Add(r))
}

// Records that the controller doesn't take wait on disk, over a restart of the agent, and arrive in their order.
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
	for name, text := range map[string]string{
		"0000-1-1.json": `{"job_id": 1, "no`, ".0001-1-1.json8231": `{"jo`,
		"0002-1-1.json": "", "notes.txt": "an admin's",
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	s, stop = start()
	defer stop()
	if n := s.Waiting(); n < 5 || n > 7 {
		t.Errorf("%d records wait after a restart, want 5 and two halves", n)
	}
	h.mu.Lock()
	h.down = nil
	h.mu.Unlock()
	for range 30000 {
		if s.Waiting() == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	must.Equal(t, fmt.Sprint(h.got), "[1 2 3 4 5]", "arrived")
	must.Equal(t, len(must.Get(filepath.Glob(filepath.Join(dir, "*")))(t)), 3, "what is left")
	must.Equal(t, must.Get(filepath.Glob(filepath.Join(dir, ".*")))(t), nil)
}

// A spool that is full gives up what was set aside, and then records, oldest first.
func TestFullSpool(t *testing.T) {
	h, reg := &head{bad: map[int64]error{1: recordhttp.ErrRefused}}, prometheus.NewPedanticRegistry()
	s := open(t, &Spool{Dir: t.TempDir(), Limit: 20 << 10, Send: h.send, Metrics: NewMetrics(reg)})
	add(t, s, record(1, 100))
	must.Get(s.flush(context.Background()))(t)
	must.Equal(t, must.Get(testutil.GatherAndCount(reg))(t), 9, "series")
	must.Equal(t, must.Get(testutil.GatherAndLint(reg))(t), nil, "names")
	lost := func() float64 { return testutil.ToFloat64(s.Metrics.dropped.WithLabelValues("full")) }
	n := int64(1)
	for ; lost() < 3; n++ {
		add(t, s, record(n+1, 100))
		if files, used := s.list(); used > s.Limit || lost() > 0 && len(files) != s.Waiting() {
			t.Fatalf("%d bytes in %v", used, files)
		}
	}
	must.Get(s.flush(context.Background()))(t)
	if h.got[0] != 5 || h.got[len(h.got)-1] != n || int64(len(h.got)) != n-4 {
		t.Errorf("%d of %d arrived, from job %d on", len(h.got), n, h.got[0])
	}
	must.Is(t, s.Add(record(n+1, gpuprof.MaxPoints)), errFull, "a record that is larger than the spool")
}

// One record that the controller can't keep, or never will, holds nobody up.
func TestOneRecordHoldsNobodyUp(t *testing.T) {
	no := func(status int) error { return &recordhttp.AnswerError{Status: status} }
	h := &head{bad: map[int64]error{
		1: no(http.StatusServiceUnavailable), 2: recordhttp.ErrRefused,
		4: no(http.StatusServiceUnavailable),
	}}
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

// A record that the disk doesn't give holds none of the others up, and is tried again.
func TestUnreadRecord(t *testing.T) {
	h := &head{}
	s := open(t, &Spool{Dir: t.TempDir(), Send: h.send})
	for i := range int64(3) {
		add(t, s, record(i+1, 1))
	}
	files := must.Get(filepath.Glob(filepath.Join(s.Dir, "*")))(t)
	must.OK(t, os.Chmod(files[0], 0))
	if os.Geteuid() == 0 { // to root all files are readable: this thread is another user for a while
		const nobody = 65534
		must.OK(t, os.Chmod(filepath.Dir(s.Dir), 0o755))
		for _, f := range append(files[1:], s.Dir) {
			must.OK(t, os.Chown(f, nobody, nobody))
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		must.Get(unix.SetfsuidRetUid(nobody))(t)
		defer func() { must.Get(unix.SetfsuidRetUid(0))(t) }()
	}
	if sent, err := s.flush(t.Context()); sent != 2 || !errors.Is(err, errUnread) {
		t.Errorf("%d sent: %v", sent, err)
	}
	if os.Geteuid() == 0 {
		must.Get(unix.SetfsuidRetUid(0))(t)
	}
	must.OK(t, os.Chmod(files[0], 0o600))
	must.Equal(t, must.Get(s.flush(t.Context()))(t), 1, "sent")
}

// An agent that was killed before it forgot a job closes its record again, without
// what it had sampled: that one doesn't take the first one's place.
func TestPoorerRecordIsNotTaken(t *testing.T) {
	s := open(t, &Spool{Dir: t.TempDir()})
	add(t, s, record(7, 5))
	poor := record(7, 0)
	poor.Cut = true
	add(t, s, poor)
	if got := records(t, s); len(got) != 1 || got[0].Cut || len(got[0].Series) != 5 {
		t.Errorf("%+v", got)
	}
	// The other way round it does.
	poor.JobID, poor.End = 8, time.Unix(8, 0)
	add(t, s, poor)
	add(t, s, record(8, 5))
	if got := records(t, s); len(got) != 2 || got[1].Cut {
		t.Errorf("%+v", got)
	}
}

// Where others can write, what lies there is not signed.
func TestOthersMustNotWrite(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.Chmod(dir, 0o777))
	s := &Spool{Dir: dir, Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry())}
	must.Fail(t, s.Open(), "chmod 700", "mode 0777")
	must.OK(t, os.Chmod(dir, 0o700))
	if os.Geteuid() == 0 {
		must.OK(t, os.Chown(dir, 65534, 65534))
		must.Fail(t, s.Open(), "", "a user's own folder")
	}
}

// A real file system that is full: what it takes not stays with the agent, and nothing half is left.
func TestFileSystemThatIsFull(t *testing.T) {
	if !must.OwnMounts(t) {
		return
	}
	dir := t.TempDir()
	err := syscall.Mount("none", dir, "tmpfs", 0, "size=128k,mode=700")
	if errors.Is(err, syscall.EPERM) {
		t.Skip(err)
	}
	must.OK(t, err)
	defer func() { must.OK(t, syscall.Unmount(dir, 0)) }()
	// Somebody else fills it before there is a folder.
	other := filepath.Join(dir, "other")
	_ = os.WriteFile(other, make([]byte, 128<<10), 0o600)
	s := open(t, &Spool{Dir: filepath.Join(dir, "spool")})
	offer := func() (taken int) {
		for i := range int64(2) {
			if err := s.Add(record(i+1, gpuprof.MaxPoints)); err == nil {
				taken++
			} else if !sick(err) {
				t.Error(err)
			}
		}
		return taken
	}
	if n := offer(); n != 0 || s.Waiting() != 0 {
		t.Errorf("%d taken by a full disk", n)
	}
	must.OK(t, os.Remove(other))
	if n := offer(); n != 2 || s.Waiting() != 2 {
		t.Errorf("%d of 2 taken once there is space", n)
	}
	must.Equal(t, must.Get(filepath.Glob(filepath.Join(s.Dir, ".*")))(t), nil, "left behind")
}

// Whatever disk, controller and agent do: a record that was taken arrives, or is
// counted as lost for want of space, or was refused. No limit is passed.
func TestAnyHistory(t *testing.T) {
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(root, fmt.Sprint(n))
		defer os.RemoveAll(dir)
		arrived, refusedJobs, taken := map[int64]int{}, map[int64]bool{}, map[int64]bool{}
		sick := false
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
				Dir: dir, Limit: 24 << 10, Send: send, Log: slog.New(slog.DiscardHandler), Metrics: m,
			}
			must.OK(t, s.Open())
			s.write = func(path string, body []byte) error {
				if sick {
					return syscall.ENOSPC
				}
				return os.WriteFile(path, body, 0o600) // as whole, and faster
			}
		}
		start()
		lost := func() int { return int(testutil.ToFloat64(m.dropped.WithLabelValues("full"))) }
		actions := map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				r := record(rapid.Int64Range(1, 60).Draw(t, "job"), rapid.SampledFrom([]int{0, 2, 60, 150}).Draw(t, "points"))
				if err := s.Add(r); err == nil {
					taken[r.JobID] = true
				} else if !sick {
					t.Errorf("a sound disk takes nothing: %v", err)
				}
			},
			"deliver": func(t *rapid.T) {
				answers = rapid.SliceOfN(rapid.SampledFrom([]error{
					nil, nil, errors.New("no route"), errLate, recordhttp.ErrRefused, &recordhttp.AnswerError{Status: 503},
					&recordhttp.AnswerError{Status: 401},
				}), 0, 6).Draw(t, "answers")
				_, _ = s.flush(context.Background())
			},
			"restart": func(*rapid.T) { start() },
			"sick":    func(t *rapid.T) { sick = rapid.Bool().Draw(t, "sick") },
			"": func(t *rapid.T) {
				if files, used := s.list(); used > s.Limit {
					t.Fatalf("%d files of %d bytes, the limit is %d", len(files), used, s.Limit)
				}
			},
		}
		t.Repeat(actions)
		sick, answers = false, nil
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
