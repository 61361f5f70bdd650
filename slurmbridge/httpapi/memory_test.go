package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestMemory(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET "+MemoryPath, &Memory{Asker: shown, Limit: func(_ context.Context, ref, user string) (int64, error) {
		switch {
		case ref == "5":
			return 0, errors.New("disk full of secrets")
		case ref == "7" && user != "bob", ref == "120_4":
			return 4402, nil
		}
		return 0, nil
	}})
	for _, c := range []struct {
		method, path string
		code         int
		mib          int64
	}{
		{"GET", "/v1/memory/7", 200, 4402},
		{"GET", "/v1/memory/7?user=ann", 200, 4402},
		{"GET", "/v1/memory/7?user=bob", 200, 0},
		{"GET", "/v1/memory/120_4", 200, 4402},
		{"GET", "/v1/memory/8", 200, 0},
		{"GET", "/v1/memory/5", 500, 0},
		{"GET", "/v1/memory/;", 400, 0},
		{"GET", "/v1/memory/", 404, 0},
		{"POST", "/v1/memory/7", 405, 0},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, as(httptest.NewRequest(c.method, c.path, http.NoBody), 0))
		var got MemoryReport
		_ = json.Unmarshal(w.Body.Bytes(), &got)
		if w.Code != c.code || got.MiB != c.mib {
			t.Errorf("%s %s: %d %s, want %d, %d MiB", c.method, c.path, w.Code, w.Body, c.code, c.mib)
		}
	}
	// Nobody but a node is told how much memory a job needs.
	for what, req := range map[string]*http.Request{
		"nobody":                 httptest.NewRequest(http.MethodGet, "/v1/memory/7", http.NoBody),
		"a user":                 as(httptest.NewRequest(http.MethodGet, "/v1/memory/7", http.NoBody), 1000),
		"another's credential":   as(httptest.NewRequest(http.MethodGet, "/v1/memory/8", http.NoBody), 0),
		"a credential that lies": httptest.NewRequest(http.MethodGet, "/v1/memory/7", http.NoBody),
	} {
		if what == "another's credential" {
			req.URL.Path = "/v1/memory/7"
		}
		if what == "a credential that lies" {
			req.Header.Set(shown.Header, "junk")
		}
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, req); w.Code != http.StatusUnauthorized {
			t.Errorf("%s gets %d", what, w.Code)
		}
	}
}
