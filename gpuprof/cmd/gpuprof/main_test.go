package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/gpuprof/agent"
)

func TestHandler(t *testing.T) {
	reg := prometheus.NewRegistry()
	agent.NewMetrics(reg)
	var sick error
	h := handler(reg, func() error { return sick })
	get := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
		return w.Code, w.Body.String()
	}
	for _, path := range []string{"/-/healthy", "/-/ready"} {
		sick = nil
		if code, body := get(http.MethodGet, path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
		if code, _ := get(http.MethodPost, path); code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, code)
		}
		sick = errors.New("gpu 3: the GPU is lost")
		if code, body := get(http.MethodGet, path); code != http.StatusServiceUnavailable || !strings.Contains(body, "gpu 3") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	// A sick agent's metrics are wanted all the more.
	if code, body := get(http.MethodGet, "/metrics"); code != http.StatusOK || !strings.Contains(body, "gpuprof_jobs 0") {
		t.Errorf("%d %s", code, body)
	}
}
