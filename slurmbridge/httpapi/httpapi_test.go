package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/prolog/turns"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

// fixture is a server whose bridge and clock a test owns.
type fixture struct {
	groups  int // in the journal
	t       *testing.T
	now     time.Time
	status  *job.Status
	asked   []string // jobs that the journal was asked for
	broken  error    // of the journal
	handler http.Handler
}

var zero = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, now: zero}
	s := &Server{
		Status: func() *job.Status { return f.status },
		Story: func(_ context.Context, ref string) (*journal.Story, error) {
			f.asked = append(f.asked, ref)
			if f.broken != nil {
				return nil, f.broken
			}
			if ref != "12_3" {
				return nil, fmt.Errorf("job %s: %w", ref, journal.ErrNotFound)
			}
			return &journal.Story{}, nil
		},
		Groups: func(_ context.Context, since time.Time, limit int) ([]journal.Grouped, error) {
			out := make([]journal.Grouped, min(f.groups, limit))
			for i := range out {
				out[i].Decided = since.Add(time.Duration(i) * time.Second)
			}
			return out, f.broken
		},
		Fresh:    30 * time.Second,
		Now:      func() time.Time { return f.now },
		Gatherer: prometheus.NewRegistry(),
	}
	f.handler = s.Handler()
	return f
}

func (f *fixture) ask(method, path string) *httptest.ResponseRecorder {
	f.t.Helper()
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
	return w
}

// wants fails the test unless GET path is answered with code and these words.
func (f *fixture) wants(path string, code int, words ...string) {
	f.t.Helper()
	w := f.ask(http.MethodGet, path)
	if w.Code != code {
		f.t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, code)
	}
	for _, word := range words {
		if !strings.Contains(w.Body.String(), word) {
			f.t.Errorf("%s: %q doesn't say %q", path, w.Body, word)
		}
	}
}

const healthy, ready = "/-/healthy", "/-/ready"

func TestHealth(t *testing.T) {
	const ok, no = http.StatusOK, http.StatusServiceUnavailable
	f := newFixture(t)
	// Before the first look it lives, but isn't ready.
	f.wants(healthy, ok)
	f.wants(ready, no, "Slurm has not been polled yet")
	f.wants("/v1/status", no, "Slurm has not been polled yet")
	f.wants("/v1/plan", no, "no plan yet")
	// A first look that never comes to an end is no life.
	f.now = zero.Add(30 * time.Second)
	f.wants(healthy, ok)
	f.now = zero.Add(30*time.Second + 1)
	f.wants(healthy, no, "Slurm has not been polled yet")

	// The first look failed.
	f.status = &job.Status{Mode: job.Active, Err: "slurmctld is down"}
	f.wants(healthy, no, "slurmctld is down")
	f.wants(ready, no, "slurmctld is down")

	f.now = zero
	f.status = &job.Status{Mode: job.Active, Gate: "5", At: zero}
	f.wants(healthy, ok)
	f.wants(ready, ok)

	// One that failed is forgiven until the last good one is too old.
	f.status = &job.Status{Mode: job.Active, Gate: "5", At: zero, Err: "squeue: timeout"}
	f.now = zero.Add(30 * time.Second)
	f.wants(healthy, ok)
	f.wants(ready, ok)
	f.now = zero.Add(31 * time.Second)
	f.wants(healthy, no, "31s ago", "squeue: timeout")
	f.wants(ready, no, "31s ago", "squeue: timeout")

	// The loop is stuck: nothing has failed, and nothing comes any more.
	f.status = &job.Status{Mode: job.Active, Gate: "5", At: zero}
	f.wants(healthy, no, "31s ago", "no later one has ended")
	f.wants(ready, no, "31s ago")

	// Without a gate nothing is shared, except in shadow mode, which needs none.
	f.status = &job.Status{Mode: job.Active, At: f.now}
	f.wants(healthy, no, "no gate")
	f.wants(ready, no, "no gate")
	f.status = &job.Status{Mode: job.Shadow, At: f.now}
	f.wants(healthy, ok)
	f.wants(ready, ok)
}

// Whatever is asked for in place of a job is answered by a sentence, and neither
// reaches the journal nor comes back to who asked.
func TestWhyOfSomethingElse(t *testing.T) {
	f := newFixture(t)
	for _, ref := range []string{
		"x", "-1", "1.5", "12;scontrol", "12 OR 1=1", "1' OR '1'='1", "../../etc/passwd", "<script>alert(1)</script>",
		"12\n13", "12\x00", "$(id)", "%s%n", "１２", "12_[1-3]", strings.Repeat("1", 33), strings.Repeat("9", 1<<16),
	} {
		w := f.ask(http.MethodGet, "/v1/why/"+url.PathEscape(ref))
		if w.Code != http.StatusBadRequest || w.Body.String() != "a job is named 123 or 120_4\n" {
			t.Errorf("%.40q: %d %.200q", ref, w.Code, w.Body)
		}
		if kind := w.Header().Get("Content-Type"); !strings.HasPrefix(kind, "text/plain") {
			t.Errorf("%.40q is answered as %s", ref, kind)
		}
	}
	if len(f.asked) != 0 {
		t.Errorf("the journal was asked for %q", f.asked)
	}
	f.wants("/v1/why/", http.StatusNotFound)
	f.wants("/v1/why/12/3", http.StatusNotFound)
	f.wants("/v1/why/4711", http.StatusNotFound, "nothing is known of job 4711")
	f.wants("/v1/why/12_3", http.StatusOK, "{")
	// A job that waits, and that no decision has looked at, is in the queue.
	ask := job.GPURequest{Kind: job.Shares, Sharing: job.MPS, Count: job.Units}
	behind := job.Dependencies{List: []job.Dependency{{Type: "after", Job: "9"}}}
	f.status = &job.Status{At: zero, Mode: job.Active, Gate: "9", Window: 5, Snap: &job.Snapshot{
		Gates: []job.GateState{{ID: "9"}},
		Jobs:  []job.Job{{Ref: "4711", State: job.Pending, Priority: 1, Request: ask, Dependency: behind}},
	}}
	f.wants("/v1/why/4711", http.StatusOK, `"waits"`, `"place": 1`, `"gate": "9"`)
	f.wants("/v1/why/4712", http.StatusNotFound, "nothing is known of job 4712")
	// A job of a whole GPU is Slurm's alone.
	f.status.Snap.Jobs[0].Request, f.status.Snap.Jobs[0].Dependency = job.GPURequest{Kind: job.WholeGPU, Count: 1},
		job.Dependencies{}
	f.wants("/v1/why/4711", http.StatusNotFound, "job 4711 doesn't ask to share a GPU: Slurm alone decides")
	run := job.Job{Ref: "4711", State: job.Running, Nodes: "n1", GPUs: []int{1}}
	beside, apart := run, run
	beside.Ref, apart.Ref, apart.GPUs = "8", "9", []int{0}
	f.status.Snap.Jobs = []job.Job{run, beside, apart}
	f.wants("/v1/why/4711", http.StatusOK, `"on"`, `"8"`)
}

// What is wrong inside stays inside.
func TestJournalThatCannotBeRead(t *testing.T) {
	f := newFixture(t)
	f.broken = errors.New("open /var/lib/secret.db: disk I/O error")
	for _, path := range []string{"/v1/why/1", "/v1/groups"} {
		f.wants(path, http.StatusInternalServerError, "the journal can't be read")
		if body := f.ask(http.MethodGet, path).Body.String(); strings.Contains(body, "secret") {
			t.Errorf("%s: %q", path, body)
		}
	}
	f.broken = nil
	f.wants("/v1/groups?since=yesterday", http.StatusBadRequest, "2006-01-02")
	f.wants("/v1/groups?since=2026-01-02T03:04:05Z", http.StatusOK)
}

// It only ever answers: no method but GET and HEAD reaches anything.
func TestReadOnly(t *testing.T) {
	f := newFixture(t)
	f.status = &job.Status{Mode: job.Shadow, At: zero, Plan: &job.Plan{}}
	for _, path := range []string{
		"/", "/metrics", healthy, ready, "/v1/status", "/v1/plan", "/v1/why/12_3",
		"/v1/groups",
	} {
		f.wants(path, http.StatusOK)
		before := len(f.asked)
		for _, method := range []string{
			http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
			http.MethodOptions, http.MethodTrace, "BREW",
		} {
			w := f.ask(method, path)
			if w.Code != http.StatusMethodNotAllowed || !strings.Contains(w.Header().Get("Allow"), http.MethodGet) {
				t.Errorf("%s %s: %d, allow %q", method, path, w.Code, w.Header().Get("Allow"))
			}
		}
		if len(f.asked) != before {
			t.Errorf("%s: another method reached the journal", path)
		}
	}
	f.wants("/nothing", http.StatusNotFound)
	f.wants("/debug/pprof/", http.StatusNotFound)
}

func TestReport(t *testing.T) {
	f := newFixture(t)
	gpu := []int{0}
	f.status = &job.Status{
		At: zero, Mode: job.Active, Policy: "pack", Objective: "turnaround", Gate: "5", Lease: 40 * time.Second, Waiting: 2,
		Apps: map[string]job.App{"7": {Key: "gromacs"}},
		Snap: &job.Snapshot{
			At: zero, Release: "22.05.8",
			Nodes: []job.Node{{Name: "n1", GPUs: 2, Cards: []job.Card{{Type: "titanxp"}, {Type: "k80"}}, Up: true}},
			Jobs: []job.Job{
				{
					Ref: "7", User: "ann", State: job.Running, Nodes: "n1", GPUs: gpu, Start: zero.Add(-time.Minute),
					Request: job.GPURequest{Kind: job.Shares, Count: 50},
				},
				{Ref: "8", User: "bob", State: job.Running, Nodes: "n2", GPUs: gpu, Start: zero},
				{Ref: "9", User: "bob", State: job.Pending, Nodes: "n1", GPUs: gpu},
			},
		},
	}
	var r Report
	must.OK(t, json.Unmarshal(f.ask(http.MethodGet, "/v1/status").Body.Bytes(), &r))
	want := Report{
		Status: job.Status{
			At: zero, Mode: job.Active, Policy: "pack", Objective: "turnaround", Gate: "5", Waiting: 2,
		},
		Slurm: "22.05.8", LeaseLeft: 40,
		GPUs: []GPU{
			{Node: "n1", GPU: 0, Type: "titanxp", Up: true, Jobs: []Job{{"7", "ann", "gromacs", 50, 60}}},
			{Node: "n1", GPU: 1, Type: "k80", Up: true, Jobs: []Job{}},
		},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
}

func TestReportOfTurnaround(t *testing.T) {
	s := busy(2, 3)
	var r Report
	must.OK(t, json.Unmarshal(get(t, s.Handler(), "/v1/status").Body.Bytes(), &r))
	if r.Seen == nil || r.Seen.Jobs == 0 {
		t.Errorf("applications: %+v", r.Seen)
	}
	if r.Turn == nil || r.Turn.Timed == 0 || r.Turn.Late != 0 || math.Abs(r.Turn.Saved()-0.5) > 1e-9 {
		t.Errorf("%+v", r.Turn)
	}
	s.Runs = had(nil, errors.New("broken"))
	r = Report{}
	if err := json.Unmarshal(get(t, s.Handler(), "/v1/status").Body.Bytes(), &r); err != nil || r.Turn != nil ||
		r.Slurm == "" {
		t.Errorf("without a journal: %+v, %v", r, err)
	}
}

// However many groups there are, an answer holds some and says where the rest begins.
func TestGroupsAreBounded(t *testing.T) {
	f := newFixture(t)
	f.groups = 50_000
	w := f.ask(http.MethodGet, "/v1/groups?since=2000-01-01T00:00:00Z")
	var got []journal.Grouped
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got) != mostGroups {
		t.Errorf("%d groups, %v", len(got), err)
	}
	must.Equal(t, w.Header().Get(moreHeader), "2000-01-01T00:16:40Z", "the rest")
}

func listen(t *testing.T, srv *http.Server) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { srv.Close() })
	go func() { _ = srv.Serve(l) }()
	return l.Addr().String()
}

// A reader that never reads is cut off, and what it was to read is given back.
func TestReadersThatNeverRead(t *testing.T) {
	ended := make(chan error, 5)
	big := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for err == nil {
			_, err = io.WriteString(w, strings.Repeat("x", 1<<20))
		}
		ended <- err
	})
	addr := listen(t, bounds{conns: 10, ofHost: 10, write: 100 * time.Millisecond}.server(big))
	for range 5 {
		c := must.Get(net.Dial("tcp", addr))(t)
		defer c.Close()
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	for range 5 {
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("an answer that nobody reads goes on")
		}
	}
}

// Somebody who holds many connections loses the oldest, and whoever comes is served.
func TestConnectionsOfOneHost(t *testing.T) {
	for _, b := range []bounds{{conns: 10, ofHost: 3, write: time.Minute}, {conns: 3, ofHost: 10, write: time.Minute}} {
		addr := listen(t, b.server(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		served := func(c net.Conn) bool {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			_, err := io.ReadFull(c, make([]byte, 12))
			return err == nil
		}
		var conns []net.Conn
		for i := range 20 {
			c := must.Get(net.Dial("tcp", addr))(t)
			defer c.Close()
			if conns = append(conns, c); !served(c) {
				t.Fatalf("%+v: connection %d isn't served", b, i+1)
			}
		}
		for i, c := range conns {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			if i < 17 {
				if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%+v: connection %d of 20 is still there: %v", b, i+1, err)
				}
			}
		}
	}
}

// Few answers are made at a time; whoever waits too long is told so.
func TestReadersInTurn(t *testing.T) {
	r := newReaders()
	r.making, r.wait = turns.New(1, 1), 20*time.Millisecond
	in, out := make(chan bool), make(chan bool)
	h := r.handle(func(http.ResponseWriter, *http.Request) { in <- true; <-out })
	done := make(chan bool)
	go func() {
		h(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		close(done)
	}()
	<-in
	second := httptest.NewRecorder()
	h(second, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if second.Code != http.StatusServiceUnavailable || second.Header().Get("Retry-After") == "" {
		t.Errorf("the second gets %d", second.Code)
	}
	close(out)
	<-done
}

// However many one host asks for at once, another host's reader has its turn at once.
func TestOneHostLeavesRoomForOthers(t *testing.T) {
	r := newReaders()
	r.wait = time.Minute
	in, out := make(chan bool, 100), make(chan bool)
	h := r.handle(func(_ http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.RemoteAddr, "10.0.0.1:") {
			in <- true
			<-out
		}
	})
	get := func(host string) int {
		req, w := httptest.NewRequest(http.MethodGet, "/", http.NoBody), httptest.NewRecorder()
		req.RemoteAddr = host + ":1"
		h(w, req)
		return w.Code
	}
	var flood sync.WaitGroup
	for range 20 {
		flood.Go(func() { get("10.0.0.1") })
	}
	<-in
	<-in
	for range 10 {
		must.Equal(t, get("10.0.0.2"), http.StatusOK, "beside a flood")
	}
	close(out)
	flood.Wait()
	if all, hosts := r.making.Held(); all != 0 || hosts != 0 {
		t.Errorf("%d turns of %d hosts are held for ever", all, hosts)
	}
}

// stuck is a reader that takes nothing until it is let go.
type stuck struct {
	http.ResponseWriter
	release chan bool
}

func (s stuck) Write(b []byte) (int, error) { <-s.release; return len(b), nil }

// What slow readers have not read yet is bounded by host, and keeps no other host from
// being answered.
func TestSlowReadersHoldLittle(t *testing.T) {
	r := newReaders()
	r.sending, r.wait = turns.New(8, 2), 20*time.Millisecond
	h := r.handle(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100)) })
	get := func(host string, w http.ResponseWriter) {
		req := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		req.RemoteAddr = host + ":1"
		h(w, req)
	}
	release := make(chan bool)
	var slow sync.WaitGroup
	for range 2 {
		slow.Go(func() { get("10.0.0.1", stuck{httptest.NewRecorder(), release}) })
	}
	for held := 0; held < 2; held, _ = r.sending.Held() {
		time.Sleep(time.Millisecond)
	}
	for host, want := range map[string]int{"10.0.0.1": http.StatusServiceUnavailable, "10.0.0.2": http.StatusOK} {
		w := httptest.NewRecorder()
		if get(host, w); w.Code != want {
			t.Errorf("%s gets %d, want %d", host, w.Code, want)
		}
	}
	close(release)
	slow.Wait()
	if all, hosts := r.sending.Held(); all != 0 || hosts != 0 {
		t.Errorf("%d turns of %d hosts are held for ever", all, hosts)
	}
}
