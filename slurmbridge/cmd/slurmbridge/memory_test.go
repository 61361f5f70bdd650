package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// The controller answers with the memory limit of jobs whose application it has recognised
// and knows, an array task by its own number once a poll has shown it.
func TestMemoryLimitOfAJob(t *testing.T) {
	ctx := t.Context()
	st, err := store.Open(ctx, t.TempDir()+"/db", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	j := journal.New(st.DB())
	if err := st.Import(ctx, []*rlcore.Profile{{App: "lmp", DurationS: 9, PeriodS: 9, Series: []rlcore.Use{{MemMiB: 1000}}}}); err != nil {
		t.Fatal(err)
	}
	for ref, app := range map[string]string{"7": "lmp", "8": "never-ran", "120_4": "lmp"} {
		if err := st.SetApp(ctx, ref, "ann", app); err != nil {
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
	(&wired{store: st, journal: j}).memory(mux, .2, &httpapi.Asker{
		Decode:  func(_ context.Context, _, cred string) (uint32, string, error) { return 0, cred, nil },
		Trusted: func(uint32) bool { return true },
	})
	ask := func(path string) *http.Request {
		req := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		req.Header.Set(httpapi.CredentialHeader, httpapi.Question(req.URL.Path))
		return req
	}
	for path, want := range map[string]int64{
		"7": 0, "7?user=ann": 1200, "7?user=bob": 0, "8?user=ann": 0, "9": 0, "120_4?user=ann": 1200, "124?user=ann": 1200, "125": 0, "126": 0,
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, ask("/v1/memory/"+path))
		var got httpapi.MemoryReport
		_ = json.Unmarshal(w.Body.Bytes(), &got)
		if got.MiB != want || (w.Code == 200) != (want > 0) || w.Code != 200 && w.Code != 404 {
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
