package httpapi

import (
	"context"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// answerTo asks a handler as a host; each has its own part of the turns.
func answerTo(h http.Handler, host, path string) *httptest.ResponseRecorder {
	req, w := httptest.NewRequest(http.MethodGet, path, http.NoBody), httptest.NewRecorder()
	req.RemoteAddr = host + ":1"
	h.ServeHTTP(w, req)
	return w
}

// A query that can't be answered as it was asked is refused: what falls away in silence gives every user's lines.
func TestNoParameterFallsAway(t *testing.T) {
	asked := 0
	h := used(t, &asked).Handler()
	for query, want := range map[string]int{
		"?user=ann": http.StatusOK,
		"?" + strings.Repeat("user=ann&", 99) + "user=annette": http.StatusOK,
		"?" + strings.Repeat("user=ann&", 101):                 http.StatusBadRequest,
		"?" + strings.Repeat("account=a&", 101):                http.StatusBadRequest,
		"?users=ann":                                           http.StatusBadRequest, // misspelt
		"?User=ann":                                            http.StatusBadRequest,
		"?user=%zz":                                            http.StatusBadRequest, // can't be decoded
		"?user=ann;by=job":                                     http.StatusBadRequest,
		"?by=user&by=job":                                      http.StatusBadRequest,
		"?since=2026-01-01T00:00:00Z&since=":                   http.StatusBadRequest,
	} {
		must.Equal(t, answerTo(h, "10.0.0.1", "/v1/usage"+query).Code, want, "%.60s", query)
	}
	for _, path := range []string{
		"/?hour=3", "/?hours=3&hours=6", "/v1/status?user=ann", "/v1/plan?x", "/v1/why/7?user=ann",
		"/v1/groups?from=2026-01-01T00:00:00Z",
		"/usage?day=3", "/usage?user=ann", "/v1/usage/me?user=annette", "/v1/idle?user=ann",
	} {
		if w := answerTo(h, "10.0.0.1", path); w.Code != http.StatusBadRequest ||
			strings.Contains(w.Body.String(), "annette") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// While the database is slow, whatever asks for the past waits for its own answer alone, and the status page says what
// is now.
func TestASlowDatabaseLeavesTheStatusPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := busy(2, 4)
		start, at := time.Now(), s.Status().At
		s.Asker, s.Now = shown, func() time.Time { return at.Add(time.Since(start)) }
		slow := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		s.Usage = func(ctx context.Context, q usage.Query) (*usage.Report, error) {
			if q.By == usage.Node {
				return &usage.Report{}, nil
			}
			return nil, slow(ctx)
		}
		s.Story = func(ctx context.Context, _ string) (*journal.Story, error) { return nil, slow(ctx) }
		s.Runs = func(ctx context.Context, _ history.Filter) iter.Seq2[history.Run, error] {
			return func(yield func(history.Run, error) bool) { yield(history.Run{}, slow(ctx)) }
		}
		h := s.Handler()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		for _, path := range []string{"/v1/usage", "/v1/usage?by=account", "/usage?days=7", "/v1/why/7"} {
			go func() {
				req := httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
				req.RemoteAddr = "10.0.0." + path[len(path)-1:] + ":1"
				h.ServeHTTP(httptest.NewRecorder(), req)
			}()
		}
		synctest.Wait()
		for _, path := range []string{"/", "/v1/status"} {
			began := time.Now()
			w := answerTo(h, "10.0.1.1", path)
			if w.Code != http.StatusOK || time.Since(began) > pastWithin {
				t.Errorf("%s: %d after %v", path, w.Code, time.Since(began))
			}
			if path == "/" && !strings.Contains(w.Body.String(), "past runs are still being read") {
				t.Error("the page doesn't say what it lacks")
			}
		}
		stop()
		time.Sleep(readWithin + time.Second)
		must.Equal(t, answerTo(h, "10.0.1.1", "/v1/usage?by=node").Code, http.StatusOK, "once the slow ones have ended")
	})
}

// One answer is made for all who ask meanwhile. An error is told to them, and not kept.
func TestAnAnswerIsMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, fail := 0, true
		m := memo[int]{now: time.Now, maxAge: time.Minute, timeout: time.Second, size: 2}
		ask := func(key string, within time.Duration) (int, error) {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			return m.get(ctx, key, func(ctx context.Context) (int, error) {
				made++
				n := made
				time.Sleep(500 * time.Millisecond)
				if fail {
					return 0, http.ErrNotSupported
				}
				return n, ctx.Err()
			})
		}
		for range 5 {
			go func() {
				must.Fail(t, must.Err(ask("a", time.Hour)), "")
			}()
		}
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		must.Equal(t, made, 1, "answers made for five")
		fail = false
		must.Fail(t, must.Err(ask("a", 100*time.Millisecond)), "", "after a tenth of a second")
		time.Sleep(time.Second)
		for range 3 {
			n, err := ask("a", time.Nanosecond)
			if n != 2 || err != nil {
				t.Errorf("%d, %v: the answer that nobody waited for is lost", n, err)
			}
		}
		time.Sleep(time.Hour)
		must.Equal(t, must.Get(ask("a", time.Hour))(t), 3, "an hour later")
	})
}
