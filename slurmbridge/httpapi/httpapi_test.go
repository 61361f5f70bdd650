package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/turns"
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
	f, registry := &fixture{t: t, now: zero}, prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "one"}))
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
		TaskName: func(ctx context.Context, id int64, from, to time.Time) (string, error) {
			if id == 14 && from.IsZero() && to.Equal(f.now) { // an array task that has ended
				return "12_3", nil
			}
			return plainName(ctx, id, from, to)
		},
		Owner:    unowned,
		Fresh:    30 * time.Second,
		Now:      func() time.Time { return f.now },
		Gatherer: registry,
	}
	f.handler = s.Handler()
	return f
}

// plainName names a job that is no array task.
func plainName(_ context.Context, id int64, _, _ time.Time) (string, error) {
	return strconv.FormatInt(id, 10), nil
}

// unowned knows no job's user.
func unowned(context.Context, string) (string, error) { return "", nil }

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
	must.Equal(f.t, w.Code, code, "%s: %s", path, w.Body)
	for _, word := range words {
		must.Contain(f.t, w.Body.String(), word, path)
	}
}

const healthy, ready = "/-/healthy", "/-/ready"

// oneGPU is a cluster with a GPU that jobs may share.
var oneGPU = job.GPUCount{All: 1, WithParts: 1, Up: 1, Open: 1}

func TestHealthOfTheBridge(t *testing.T) {
	const ok, no = http.StatusOK, http.StatusServiceUnavailable
	const unpolled = "Slurm has not been polled yet"
	active := func(err string) *job.Status {
		return &job.Status{Mode: job.Active, Gate: "5", At: zero, Err: err, Shareable: oneGPU}
	}
	f := newFixture(t)
	for name, c := range map[string]struct {
		after          time.Duration
		status         *job.Status
		healthy, ready int
		says           string
	}{
		"before the first look it lives":            {0, nil, ok, no, unpolled},
		"and while that may take":                   {30 * time.Second, nil, ok, no, unpolled},
		"one that never comes to an end":            {30*time.Second + 1, nil, no, no, unpolled},
		"the first look failed":                     {0, &job.Status{Mode: job.Active, Err: "slurmctld is down"}, no, no, "slurmctld is down"},
		"all is well":                               {0, active(""), ok, ok, ""},
		"a look that failed is forgiven":            {30 * time.Second, active("squeue: timeout"), ok, ok, ""},
		"until the last good one is too old":        {31 * time.Second, active("squeue: timeout"), no, no, "31s ago: squeue: timeout"},
		"the loop is stuck, and nothing has failed": {31 * time.Second, active(""), no, no, "31s ago: no later one has ended"},
		"nothing is shared without a gate": {
			0, &job.Status{Mode: job.Active, At: zero, Shareable: oneGPU}, no, no, "no gate",
		},
		"except in shadow mode, which needs none": {
			0, &job.Status{Mode: job.Shadow, At: zero, Shareable: oneGPU}, ok, ok, "",
		},
		"nor without a GPU": {0, &job.Status{Mode: job.Shadow, At: zero}, no, no, "down: no node has a GPU"},
	} {
		f.now, f.status = zero.Add(c.after), c.status
		for path, code := range map[string]int{healthy: c.healthy, ready: c.ready} {
			if w := f.ask(http.MethodGet, path); w.Code != code || code == no && !strings.Contains(w.Body.String(), c.says) {
				t.Errorf("%s: %s: %d %s", name, path, w.Code, w.Body)
			}
		}
	}
	f.status = nil
	f.wants("/v1/status", no, unpolled)
	f.wants("/v1/plan", no, "no plan yet")
}

// An array task has a number of its own, by which accounting lists it, and its owner may ask.
func TestWhyOfATaskByItsNumber(t *testing.T) {
	f := newFixture(t)
	f.wants("/v1/why/14", http.StatusOK, `"job": "12_3"`)
	f.status = &job.Status{At: zero, Snap: &job.Snapshot{Jobs: []job.Job{
		{Ref: "16", ID: 16, State: job.Running, Nodes: "n1"},
		{Ref: "12_4", ID: 15, State: job.Running, Nodes: "n1", GPUs: []int{1}},
	}}}
	f.wants("/v1/why/15", http.StatusOK, `"job": "12_4"`, `"on"`)
	f.wants("/v1/why/12_4", http.StatusOK, `"job": "12_4"`, `"on"`)
	f.wants("/v1/why/16", http.StatusOK, `"job": "16"`)
	f.wants("/v1/why/17", http.StatusNotFound, "nothing is known of job 17")
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
		must.Equal(t, w.Code, http.StatusBadRequest, "%.40q: %.200q", ref, w.Body)
		must.Equal(t, w.Body.String(), "a job's name is like 123 or 120_4\n", "%.40q", ref)
		if kind := w.Header().Get("Content-Type"); !strings.HasPrefix(kind, "text/plain") {
			t.Errorf("%.40q is answered as %s", ref, kind)
		}
	}
	must.Equal(t, f.asked, nil, "what the journal was asked for")
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
	f.status = &job.Status{Mode: job.Shadow, At: zero, Plan: &job.Plan{}, Shareable: oneGPU}
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
			must.Equal(t, w.Code, http.StatusMethodNotAllowed, "%s %s", method, path)
			must.Contain(t, w.Header().Get("Allow"), http.MethodGet, "%s %s", method, path)
		}
		must.Equal(t, len(f.asked), before, "%s: questions to the journal", path)
	}
	f.wants("/nothing", http.StatusNotFound)
	f.wants("/debug/pprof/", http.StatusNotFound)
}

func TestReport(t *testing.T) {
	f := newFixture(t)
	gpu := []int{0}
	f.status = &job.Status{
		At: zero, Mode: job.Active, Policy: "pack", Gate: "5", Lease: 40 * time.Second, Waiting: 2,
		Shareable: oneGPU,
		Apps:      map[string]job.App{"7": {Key: "gromacs"}},
		Snap: &job.Snapshot{
			At: zero, Release: "22.05.8",
			Nodes: []job.Node{{Name: "n1", GPUs: 2, ByIndex: []job.GPU{{Type: "titanxp"}, {Type: "k80"}}, Up: true}},
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
		Status: job.Status{At: zero, Mode: job.Active, Policy: "pack", Gate: "5", Waiting: 2, Shareable: oneGPU},
		Health: job.Health{State: job.Well},
		Slurm:  "22.05.8", LeaseLeft: 40,
		GPUs: []GPU{
			{Node: "n1", GPU: 0, Type: "titanxp", Up: true, Jobs: []GPUJob{{"7", "ann", "gromacs", 50, 60}}},
			{Node: "n1", GPU: 1, Type: "k80", Up: true, Jobs: []GPUJob{}},
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

// Somebody who holds many connections loses the oldest, and whoever comes is served.
func TestConnectionsOfOneHost(t *testing.T) {
	s := NewServer(nil, slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout == 0 || s.ReadTimeout == 0 || s.WriteTimeout == 0 || s.IdleTimeout == 0 {
		t.Errorf("a reader that never reads, or never asks, isn't cut off: %+v", s)
	}
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

// stuck is a reader that takes nothing until it is let go.
type stuck struct {
	*httptest.ResponseRecorder
	release chan bool
}

func (s stuck) Write(b []byte) (int, error) { <-s.release; return len(b), nil }

// Few answers are made, and few sent to readers that don't take them, at a time, a part of them for one host. Whoever
// waits too long for a turn is told so, another host's reader has its turn at once, and no turn is held for ever.
func TestReadersInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReaders()
		slowly := make(chan bool)
		h := r.handle(func(_ http.ResponseWriter, req *http.Request) answer {
			if strings.HasPrefix(req.RemoteAddr, "10.0.0.1:") {
				<-slowly
			}
			return answer{http.StatusOK, make([]byte, 100)}
		})
		get := func(host string, w http.ResponseWriter) {
			req := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
			req.RemoteAddr = host + ":1"
			h(w, req)
		}
		for what, c := range map[string]struct {
			turns   *turns.Turns
			host    string
			ofHost  int
			release chan bool
		}{
			"making":  {r.making, "10.0.0.1", 2, slowly},
			"sending": {r.sending, "10.0.0.3", 8, make(chan bool)},
		} {
			for range c.ofHost {
				go get(c.host, stuck{httptest.NewRecorder(), c.release})
			}
			synctest.Wait()
			began, late := time.Now(), httptest.NewRecorder()
			get(c.host, late)
			if late.Code != http.StatusServiceUnavailable || late.Header().Get("Retry-After") == "" ||
				time.Since(began) != r.wait {
				t.Errorf("%s: one too many gets %d after %v", what, late.Code, time.Since(began))
			}
			began, other := time.Now(), httptest.NewRecorder()
			if get("10.0.0.2", other); other.Code != http.StatusOK || time.Since(began) > 0 {
				t.Errorf("%s: another host gets %d after %v", what, other.Code, time.Since(began))
			}
			close(c.release)
			synctest.Wait()
			if all, hosts := c.turns.Held(); all != 0 || hosts != 0 {
				t.Errorf("%s: %d turns of %d hosts are held for ever", what, all, hosts)
			}
		}
	})
}

// A host whose readers don't take the metrics that they ask for keeps Prometheus waiting no time.
func TestSlowReadersOfMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, slowly := newFixture(t), make(chan bool)
		for range 20 {
			go func() {
				req := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
				req.RemoteAddr = "10.0.0.1:1"
				f.handler.ServeHTTP(stuck{httptest.NewRecorder(), slowly}, req)
			}()
		}
		synctest.Wait()
		began := time.Now()
		if w := answerTo(f.handler, "10.0.0.2", "/metrics"); w.Code != http.StatusOK || time.Since(began) > 0 {
			t.Errorf("another host gets %d after %v", w.Code, time.Since(began))
		}
		must.Equal(t, answerTo(f.handler, "10.0.0.1", "/metrics").Code, http.StatusServiceUnavailable, "one too many")
		close(slowly)
	})
}
