package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// The controller answers with what a job was given when its last group was decided, an array
// task by its own number once a poll has shown it.
func TestMemoryLimitOfAJob(t *testing.T) {
	ctx := t.Context()
	st, err := store.Open(ctx, t.TempDir()+"/db", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	j := journal.New(st.DB())
	for i, g := range []*job.Group{
		{Members: []job.Member{{Ref: "7", User: "ann", MemMiB: 900, State: job.MemberRestored}}, State: job.Done},
		{Members: []job.Member{{Ref: "8", User: "ann"}, {Ref: "7", User: "ann", MemMiB: 1200, State: job.MemberWaiting}}, State: job.Released},
		{Members: []job.Member{{Ref: "120_4", User: "ann", MemMiB: 4800, ProcessMiB: 1200, State: job.MemberRunning}}, State: job.Started},
		{Members: []job.Member{{Ref: "10", User: "ann", MemMiB: 1200, State: job.MemberRestored}}, State: job.Done},
	} {
		g.ID = int64(i + 1)
		if err := j.SaveGroup(ctx, g); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	for id, at := range map[int64]time.Time{124: now, 125: now.Add(-3 * time.Hour)} {
		if err := j.SaveTasks(ctx, at, map[int64]string{id: "120_4"}); err != nil {
			t.Fatal(err)
		}
	}
	mux := http.NewServeMux()
	names := func(_ context.Context, id int64) (string, error) {
		if id == 126 { // a task that no poll has shown yet
			return "120_4", nil
		}
		return fmt.Sprint(id), nil
	}
	(&wired{store: st, journal: j, taskName: names}).memory(mux, &httpapi.Asker{
		Header: "Credential",
		Decode: func(_ context.Context, _, cred string) (*credential.Credential, error) {
			return &credential.Credential{Payload: cred}, nil
		},
		Trusted: func(uint32) bool { return true },
	})
	ask := func(path string) *http.Request {
		req := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		req.Header.Set("Credential", httpapi.Question(req.URL.Path))
		return req
	}
	for path, want := range map[string]int64{
		"7": 0, "7?user=ann": 1200, "7?user=bob": 0, "8?user=ann": 0, "9": 0, "10?user=ann": 0, "120_4?user=ann": 1200, "124?user=ann": 1200, "125": 0, "126": 0, "126?user=ann": 1200, "127?user=ann": 0,
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, ask("/v1/memory/"+path))
		var got httpapi.MemoryReport
		_ = json.Unmarshal(w.Body.Bytes(), &got)
		if got.MiB != want || w.Code != 200 {
			t.Errorf("%s: %d %s, want %d MiB", path, w.Code, w.Body, want)
		}
	}
	st.Close()
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, ask("/v1/memory/7"))
	if w.Code != http.StatusInternalServerError {
		t.Errorf("without its database: %d", w.Code)
	}
}
