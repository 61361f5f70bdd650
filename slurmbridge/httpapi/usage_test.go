package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// used is a server that knows of runs of ann and annette; asked counts how often it summed up.
func used(t *testing.T, asked *int) *Server {
	t.Helper()
	s := busy(2, 4)
	s.Asker = shown
	now := s.Now()
	db := must.Get(database.Open(t.Context(), filepath.Join(t.TempDir(), "s.db")))(t)
	t.Cleanup(func() { db.Close() })
	var runs []history.Footprint
	for i, user := range []string{"ann", "annette", "annette"} {
		runs = append(runs, history.Footprint{
			Ref: strconv.Itoa(i), User: user, Account: "physics-dept", App: "secret-app", Partition: "gpu", Node: "n1", GPUs: 1,
			Whole: true,
			Start: now.Add(-3 * time.Hour), End: now.Add(-time.Hour),
			Use: &history.Use{KnownS: 7200, ComputedS: 3600, IdleKnownS: 7200},
		})
	}
	for i := range runs {
		must.OK(t, runs[i].Write(t.Context(), db))
	}
	s.Usage = func(ctx context.Context, q usage.Query) (*usage.Report, error) {
		*asked++
		r, err := usage.Make(ctx, db, q, now)
		if err == nil && r == nil {
			err = fmt.Errorf("%w of that", ErrNoUsage)
		}
		return r, err
	}
	s.Status().Idle = []job.Idle{
		{Ref: "7", User: "ann", Account: "chemistry", Node: "n1", GPUs: 1, Since: now.Add(-2 * time.Hour)},
		{Ref: "8", User: "annette", Account: "physics-dept", Node: "n2", GPUs: 0.5, Since: now.Add(-time.Hour)},
	}
	return s
}

func TestUsageIsServed(t *testing.T) {
	asked := 0
	get := answers(used(t, &asked).Handler())
	lines := func(path string, uid int) (names []string, held float64) {
		t.Helper()
		code, body := get(path, uid)
		must.Equal(t, code, http.StatusOK, body)
		var r usage.Report
		must.OK(t, json.Unmarshal([]byte(body), &r))
		for _, l := range r.Lines {
			names = append(names, l.Name)
		}
		return names, r.Total.Held
	}
	names, held := lines("/v1/usage?by=user", nobody)
	must.Equal(t, names, []string{"annette", "ann"})
	must.Equal(t, held, 6)
	lines("/v1/usage?by=user", nobody)
	must.Equal(t, asked, 1, "sums of the same within a minute")
	names, _ = lines("/v1/usage/me", ann)
	must.Equal(t, names, []string{"ann"})
	for path, want := range map[string]int{
		"/v1/usage/me": http.StatusUnauthorized, "/v1/usage?by=colour": http.StatusBadRequest,
		"/v1/usage?since=soon":                 http.StatusBadRequest,
		"/v1/usage?since=1970-01-01T00:00:00Z": http.StatusBadRequest, "/v1/usage?user=eve": http.StatusNotFound,
		"/usage?days=x": http.StatusBadRequest, "/usage?by=job": http.StatusBadRequest,
	} {
		if code, body := get(path, nobody); code != want || strings.Count(strings.TrimSpace(body), "\n") > 0 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := get("/v1/idle", nobody); code != http.StatusOK || !strings.Contains(body, "annette") {
		t.Errorf("%d %s", code, body)
	}
	for _, by := range []string{"account", "user", "partition", "application", "node"} {
		code, body := get("/usage?days=7&by="+by, nobody)
		if code != http.StatusOK || !strings.Contains(body, "held by 3 jobs") || !strings.Contains(body, "By "+by) {
			t.Errorf("the page by %s: %d %.3000s", by, code, body)
		}
	}
}

// The page of a cluster's first minute: before any job nothing is wrong, and a job that has just ended counts.
func TestUsageOfTheFirstMinute(t *testing.T) {
	asked := 0
	s := used(t, &asked)
	now := s.Now().Truncate(time.Minute).Add(50 * time.Second)
	s.Now = func() time.Time { return now }
	summedUp := s.Usage
	s.Usage = func(context.Context, usage.Query) (*usage.Report, error) { return nil, ErrNoUsage }
	ask := answers(s.Handler())
	page := func() string {
		code, body := ask("/usage", nobody)
		must.Equal(t, code, http.StatusOK, "the page's code")
		return body
	}
	if body := page(); strings.Contains(body, `role="alert"`) || !strings.Contains(body, "No GPU job has run") {
		t.Errorf("before any job: %s", body)
	}
	s.Usage = func(ctx context.Context, q usage.Query) (*usage.Report, error) {
		if end := now.Add(-10 * time.Second); q.To.Before(end) {
			t.Errorf("a job that ended at %v doesn't count up to %v", end, q.To)
		}
		return summedUp(ctx, q)
	}
	if body := page(); strings.Contains(body, `role="alert"`) || !strings.Contains(body, "held by 3 jobs") {
		t.Errorf("after the first: %s", body)
	}
}

// What nobody did is no tile: no 0 s held idle, no 0.0 GPUs.
func TestNothingIsNoTile(t *testing.T) {
	asked := 0
	s := used(t, &asked)
	summedUp := s.Usage
	s.Usage = func(ctx context.Context, q usage.Query) (*usage.Report, error) {
		r, err := summedUp(ctx, q)
		none, more := 0.0, -0.5
		r.Total.WaitSaved, r.Total.Idle, r.Total.Shared, r.Total.TimeLost = &more, &none, &none, &none
		return r, err
	}
	s.Status().Idle = nil
	_, body := answers(s.Handler())("/usage", nobody)
	tiles, _, _ := strings.Cut(body, "<table")
	must.Contain(t, tiles, "<b>30.0 min</b><span>that jobs waited longer than on plain Slurm</span>")
	for _, bad := range []string{"held idle</span>", "<span>shared", ">0.0", "that they ran longer"} {
		if strings.Contains(tiles, bad) {
			t.Errorf("%q is in %s", bad, tiles)
		}
	}
	must.Contain(t, tiles, "<b>0</b><span>GPUs held idle now")
}
