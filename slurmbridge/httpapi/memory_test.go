package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

func holds(mib ...float64) *rlcore.Profile {
	p := &rlcore.Profile{App: "x", DurationS: float64(len(mib)), PeriodS: 1}
	for _, m := range mib {
		p.Series = append(p.Series, rlcore.Use{MemMiB: m})
	}
	return p
}

// A limit is never under what any moment of the profile held, nor under its margin.
func TestMemoryLimitIsNeverBelowThePeak(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		series := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 20).Draw(t, "MiB")
		margin := rapid.OneOf(rapid.Float64Range(-1, 2), rapid.Just(math.Inf(-1))).Draw(t, "margin")
		mib, ok := MemoryLimit(holds(series...), margin)
		for _, m := range series {
			if ok && (float64(mib) < m*1.05 || float64(mib) < m*(1+margin)) || !ok && m > 0 {
				t.Fatalf("%d, %v of %v MiB with %v", mib, ok, m, margin)
			}
		}
	})
	for _, p := range []*rlcore.Profile{{}, holds(0), holds(-5), holds(math.Inf(1)), holds(1e300), holds(math.NaN())} {
		if mib, ok := MemoryLimit(p, .05); ok {
			t.Errorf("%v: %d", p.Series, mib)
		}
	}
	if mib, ok := MemoryLimit(holds(5), math.NaN()); ok {
		t.Errorf("a margin of NaN: %d", mib)
	}
}

func TestMemory(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET "+MemoryPath, &Memory{Margin: .1, Asker: shown, Profile: func(_ context.Context, ref, user string) (*rlcore.Profile, error) {
		switch {
		case ref == "5":
			return nil, errors.New("disk full of secrets")
		case ref == "6":
			return holds(0), nil
		case ref == "7" && user != "bob", ref == "120_4":
			return holds(100, 4001, 3), nil
		}
		return nil, nil
	}})
	for _, c := range []struct {
		method, path string
		code         int
		mib          int64
	}{
		{"GET", "/v1/memory/7", 200, 4402},
		{"GET", "/v1/memory/7?user=ann", 200, 4402},
		{"GET", "/v1/memory/7?user=bob", 404, 0},
		{"GET", "/v1/memory/120_4", 200, 4402},
		{"GET", "/v1/memory/8", 404, 0},
		{"GET", "/v1/memory/6", 404, 0},
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
			req.Header.Set(CredentialHeader, "junk")
		}
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, req); w.Code != http.StatusUnauthorized {
			t.Errorf("%s gets %d", what, w.Code)
		}
	}
}
