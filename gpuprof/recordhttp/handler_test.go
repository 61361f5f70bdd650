package recordhttp

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/keytest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

func record(job int64) *gpuprof.Record {
	return &gpuprof.Record{
		JobID: job, Node: "n1", User: "ann", Start: time.Unix(1, 0), End: time.Unix(9, 0), PeriodS: 1,
		Series: []rlcore.Use{{GPU: 0.5, MemMiB: 100}},
	}
}

// kept is a store.
type kept struct {
	mu     sync.Mutex
	jobs   map[int64]bool
	behind time.Duration // of the last record
	err    error
}

func (k *kept) keep(_ context.Context, r *gpuprof.Record, behind time.Duration) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return false, k.err
	}
	if k.jobs == nil {
		k.jobs = map[int64]bool{}
	}
	isNew := !k.jobs[r.JobID]
	k.jobs[r.JobID], k.behind = true, behind
	return isNew, nil
}

func root(uid uint32) bool { return uid == 0 }

func bind(body []byte) string { return bindTo(Path, body) }

func serve(t *testing.T, h *Handler) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("POST "+Path, complete(h))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

// complete adds what a test doesn't look at.
func complete(h *Handler) *Handler {
	if h.Result == nil {
		h.Result = func(string) {}
	}
	if h.Metrics == nil {
		h.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	if h.Log == nil {
		h.Log = slog.New(slog.DiscardHandler)
	}
	return h
}

func post(t *testing.T, url, header, cred, body string) (int, string) {
	t.Helper()
	req := must.Get(http.NewRequest(http.MethodPost, url+Path, strings.NewReader(body)))(t)
	req.Header.Set(header, cred)
	resp := must.Get(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	text := must.Get(io.ReadAll(resp.Body))(t)
	return resp.StatusCode, string(text)
}

// proof is a shared key, as it is on a machine whose clock is off by so much.
func proof(t *testing.T, key []byte, off time.Duration) *credential.Key {
	t.Helper()
	k := credential.NewKey(keytest.File(t, key))
	k.Now = func() time.Time { return time.Now().Add(off) }
	k.Since = time.Now().Add(-time.Hour) // it has been here for an hour
	return k
}

func TestRecordsNeedACredential(t *testing.T) {
	k, key := &kept{}, keytest.Random(t)
	here := proof(t, key, 0)
	var results []string
	srv := serve(t, &Handler{
		Credentials: here, AllowUID: root, Keep: k.keep,
		Result: func(r string) { results = append(results, r) },
	})
	ctx := t.Context()
	s := &Sender{URL: srv.URL, Credentials: here, Client: srv.Client()}
	for range 2 { // the second is a duplicate, and no error
		must.OK(t, s.Send(ctx, record(7)))
	}
	must.Equal(t, results, []string{"new", "duplicate"})
	must.Is(t, s.Send(ctx, &gpuprof.Record{JobID: -1, Node: "n"}), ErrRefused, "a record of nonsense")
	encode := func(m credential.Method, payload string) string { return must.Get(m.Encode(ctx, payload))(t) }
	packed := must.Get(pack(record(8)))(t)
	good, body := encode(here, bind(packed)), string(packed)
	strange := encode(proof(t, keytest.Random(t), 0), bind(packed))
	for _, c := range []struct {
		name, header, cred, body string
		want                     int
	}{
		{"no credential", here.Header(), "", body, http.StatusUnauthorized},
		{"a credential of nonsense", here.Header(), "MUNGE:AAAA:", body, http.StatusUnauthorized},
		{"of another cluster", here.Header(), strange, body, http.StatusUnauthorized},
		{"in another method's header", "Other", encode(here, bind(packed)), body, http.StatusUnauthorized},
		{"for another body", here.Header(), good, body + "y", http.StatusUnauthorized},
		{"used before", here.Header(), good, body, http.StatusUnauthorized},
		{"of another user", here.Header(), keytest.Forge(key, 65534, time.Now(), bind(packed)), body, http.StatusForbidden},
		{"for something else", here.Header(), encode(here, "x"), body, http.StatusUnauthorized},
		{"a huge body", here.Header(), encode(here, "x"), strings.Repeat("x", maxPacked+1), http.StatusRequestEntityTooLarge},
		{"not packed", here.Header(), encode(here, bind([]byte("{}"))), "{}", http.StatusUnprocessableEntity},
	} {
		got, text := post(t, srv.URL, c.header, c.cred, c.body)
		must.Equal(t, got, c.want, "%s: %s", c.name, text)
	}
	must.Equal(t, k.jobs, map[int64]bool{7: true}, "what is kept")
	k.err = errors.New("disk full")
	var no *AnswerError
	if err := s.Send(ctx, record(9)); !errors.As(err, &no) || no.Status != http.StatusServiceUnavailable {
		t.Errorf("a record that can't be kept: %v", err)
	}
}

// A clock that is off is told, to the sender and to the store.
func TestClocksThatDiffer(t *testing.T) {
	k, key, reg := &kept{}, keytest.Random(t), prometheus.NewPedanticRegistry()
	srv := serve(t, &Handler{Credentials: proof(t, key, 0), AllowUID: root, Keep: k.keep, Metrics: NewMetrics(reg)})
	send := func(with credential.Method) error {
		s := &Sender{URL: srv.URL, Credentials: with, Client: srv.Client()}
		return s.Send(t.Context(), record(7))
	}
	for _, skew := range []time.Duration{-time.Minute, time.Minute, 0} {
		if err := send(proof(t, key, skew)); err != nil || (k.behind+skew).Abs() > 2*time.Second {
			t.Errorf("off by %s: %v, the store hears of %s", skew, err, k.behind)
		}
	}
	must.Equal(t, k.behind, 0, "no skew: the store")
	var no *AnswerError
	if err := send(proof(t, key, -time.Hour)); !errors.As(err, &no) || no.Status != http.StatusUnauthorized ||
		!strings.Contains(no.Text, "behind this host's; set both clocks") {
		t.Errorf("an hour behind: %v", err)
	}
	must.Equal(t, must.Get(testutil.GatherAndCount(reg, "slurmbridge_record_clock_skew_seconds",
		"slurmbridge_record_refusals_total"))(t), 2)
	must.Equal(t, must.Get(testutil.GatherAndLint(reg))(t), nil, "names")
	// With another key nothing of it can be read.
	if err := send(proof(t, keytest.Random(t), 0)); !errors.As(err, &no) || !strings.Contains(no.Text, "key_file") {
		t.Errorf("another key: %v", err)
	}
}

// Where the controller can't read its key, or others could, no record is believed, and none is
// refused for good; the file's place is in the controller's log alone.
func TestControllerWithoutAKey(t *testing.T) {
	key := keytest.Random(t)
	file := keytest.File(t, key)
	must.OK(t, os.Chmod(file, 0o644))
	k := &kept{}
	var log strings.Builder
	srv := serve(t, &Handler{
		Credentials: credential.NewKey(file), AllowUID: root, Keep: k.keep,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	s := &Sender{URL: srv.URL, Credentials: credential.NewKey(keytest.File(t, key)), Client: srv.Client()}
	var no *AnswerError
	if err := s.Send(t.Context(), record(7)); !errors.As(err, &no) || no.Status != http.StatusServiceUnavailable ||
		!strings.Contains(no.Text, "key_file") || strings.Contains(no.Text, file) || len(k.jobs) != 0 {
		t.Errorf("%v, %d are kept", err, len(k.jobs))
	}
	must.Contain(t, log.String(), file, "the log")
	must.Contain(t, log.String(), "chmod 0600", "the log")
	must.OK(t, os.Chmod(file, 0o600))
	must.OK(t, s.Send(t.Context(), record(7)))
}

// fake believes what it is told.
type fake struct {
	busy, most atomic.Int64
	slow       time.Duration
	err        error
}

const fakeHeader = "Fake-Credential"

func (f *fake) Header() string { return fakeHeader }

func (f *fake) Hint(error) string { return "" }

func (f *fake) Encode(_ context.Context, payload string) (string, error) { return payload, nil }

func (f *fake) Decode(_ context.Context, cred string) (*credential.Credential, error) {
	f.most.Store(max(f.most.Load(), f.busy.Add(1)))
	defer f.busy.Add(-1)
	time.Sleep(f.slow)
	now := time.Now()
	return &credential.Credential{Payload: cred, Encoded: now, Decoded: now}, f.err
}

// A body that is small packed and huge unpacked is refused, and not unpacked whole.
func TestHugeBodiesInSmallPacks(t *testing.T) {
	srv := serve(t, &Handler{Credentials: &fake{}, AllowUID: root, Keep: (&kept{}).keep})
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	fmt.Fprint(zw, `{"job_id":1,"node":"n1","comment":"`)
	for range 200 { // 200 MiB
		must.Get(zw.Write(bytes.Repeat([]byte("x"), 1<<20)))(t)
	}
	fmt.Fprint(zw, `"}`)
	must.OK(t, zw.Close())
	if status, text := post(t, srv.URL, fakeHeader, bind(buf.Bytes()),
		buf.String()); status != http.StatusUnprocessableEntity || !strings.Contains(text, "larger") {
		t.Errorf("%d bytes packed: %d %s", buf.Len(), status, text)
	}
	// Something behind the record is no part of it.
	packed := must.Get(pack(record(1)))(t)
	twice := string(packed) + string(packed)
	if status, _ := post(t, srv.URL, fakeHeader, bind([]byte(twice)), twice); status != http.StatusUnprocessableEntity {
		t.Errorf("two in one: %d", status)
	}
}

// Who sends nothing is waited for, but not for ever; and whoever isn't believed is not listened to.
func TestSlowBodies(t *testing.T) {
	f := &fake{}
	srv := serve(t, &Handler{Credentials: f, AllowUID: root, Keep: (&kept{}).keep, BodyTimeout: 50 * time.Millisecond})
	ask := func(cred string) string {
		t.Helper()
		c := must.Get(net.Dial("tcp", srv.Listener.Addr().String()))(t)
		defer c.Close()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\n%s: %s\r\nContent-Length: 1000000\r\n\r\nx", Path, fakeHeader, cred)
		must.OK(t, c.SetDeadline(time.Now().Add(time.Minute)))
		answer := make([]byte, 12)
		must.Get(io.ReadFull(c, answer))(t)
		return string(answer)
	}
	must.Equal(t, ask("x"), "HTTP/1.1 408", "a slow body")
	f.err = credential.ErrInvalid
	must.Equal(t, ask("x"), "HTTP/1.1 401", "a slow body of an unknown sender")
}

// However many records come from a host at once, few credentials are decoded at once.
func TestManyAtOnce(t *testing.T) {
	f, k := &fake{slow: 2 * time.Millisecond}, &kept{}
	srv := serve(t, &Handler{Credentials: f, AllowUID: root, Keep: k.keep})
	s := &Sender{URL: srv.URL, Credentials: f, Client: srv.Client()}
	var wg sync.WaitGroup
	for i := range int64(60) {
		wg.Go(func() {
			if err := s.Send(context.Background(), record(1+i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(k.jobs) != 60 || f.most.Load() > 2 {
		t.Errorf("%d records, %d at once", len(k.jobs), f.most.Load())
	}
}

// Whatever comes as a body, a record that is taken from it is one that can be true.
func FuzzUnpack(f *testing.F) {
	packed := must.Get(pack(record(1)))(f)
	f.Add(packed)
	f.Add([]byte("{}"))
	f.Add(packed[:len(packed)/2])
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := unpack(body)
		if err == nil && (r == nil || r.Validate() != nil) {
			t.Errorf("%q: %+v", body, r)
		}
	})
}

// Reports of idle jobs arrive from those who may send records, whole, and from nobody else.
func TestIdleReports(t *testing.T) {
	m := proof(t, keytest.Random(t), 0)
	var got []*gpuprof.IdleReport
	allow := true
	h := complete(&Handler{Credentials: m, AllowUID: func(uint32) bool { return allow }})
	mux := http.NewServeMux()
	mux.Handle("POST "+IdlePath, h.Idle(func(r *gpuprof.IdleReport) { got = append(got, r) }))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	s := &Sender{URL: srv.URL, Credentials: m, Client: srv.Client()}
	send := func(r *gpuprof.IdleReport) error { return s.SendIdle(context.Background(), r) }
	good := &gpuprof.IdleReport{Node: "n1", Jobs: []gpuprof.Idle{{JobID: 7, IdleS: 700}}}
	if err := send(good); err != nil || len(got) != 1 || fmt.Sprint(*got[0]) != fmt.Sprint(*good) {
		t.Fatalf("%v %v", err, got)
	}
	for _, bad := range []*gpuprof.IdleReport{
		{},
		{Node: "n1", Jobs: []gpuprof.Idle{{JobID: 0}}},
		{Node: "n1", Jobs: []gpuprof.Idle{{JobID: 1, IdleS: -1}}},
		{Node: "n1", Jobs: make([]gpuprof.Idle, 5000)},
	} {
		must.Is(t, send(bad), ErrRefused, bad.Node)
	}
	s.Credentials = fixed{m, "slurmbridge POST /v1/records 00"}
	must.Fail(t, send(good), "", "a credential for something else")
	s.Credentials, allow = m, false
	must.Fail(t, send(good), "", "a user who may not send records")
	must.Equal(t, len(got), 1, "reports that were taken")
}

// fixed makes credentials with another payload than it is asked for.
type fixed struct {
	credential.Method
	payload string
}

func (f fixed) Encode(ctx context.Context, _ string) (string, error) {
	return f.Method.Encode(ctx, f.payload)
}

// Even a series that nothing can be packed of is far from what a record may be.
func TestSizeOnTheWire(t *testing.T) {
	src, r := rand.New(rand.NewPCG(1, 2)), record(123456)
	r.Series = nil
	for range gpuprof.MaxPoints {
		r.Series = append(r.Series, rlcore.Use{
			GPU: src.Float64(), Core: src.Float64(), MemMiB: 12196 * src.Float64(), PCIeMBps: 15754 * src.Float64(),
		})
	}
	packed := must.Get(pack(r))(t)
	if back, err := unpack(packed); err != nil || len(back.Series) != len(r.Series) || len(packed) > maxPacked/10 {
		t.Errorf("%d bytes packed, %v", len(packed), err)
	}
}
