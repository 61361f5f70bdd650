package main

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/viper"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
)

// Each controller gets every record; one that is down costs the others nothing, and finds what waits for it.
func TestSeveralControllers(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := credential.ReadKeys(key); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(&recordhttp.Handler{
		Credentials: credential.Choose(key, "").Nodes, AllowUID: func(uint32) bool { return true }, Result: func(string) {}, Log: slog.New(slog.DiscardHandler),
		Keep: func(context.Context, *gpuprof.Record, time.Duration) (bool, error) { return true, nil },
	})
	defer srv.Close()
	dir := t.TempDir()
	v := viper.New()
	for k, x := range map[string]any{
		"controller": gone.URL + ", " + srv.URL, "spool-mib": 16, "spool": filepath.Join(dir, "spool"), "run-dir": filepath.Join(dir, "run"), "key-file": key,
	} {
		v.Set(k, x)
	}
	all, err := newWays(v, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil || len(all) != 2 {
		t.Fatal(len(all), err)
	}
	for _, w := range all {
		if err := w.Open(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = w.Run(t.Context()) }()
	}
	now := time.Now()
	if err := all.add(&gpuprof.Record{JobID: 7, User: "ann", Node: "n1", Start: now.Add(-time.Minute), End: now}); err != nil {
		t.Fatal(err)
	}
	for end := now.Add(time.Minute); all[1].Waiting() > 0; {
		if time.Sleep(10 * time.Millisecond); time.Now().After(end) {
			t.Fatal("the record never arrives")
		}
	}
	if all[0].Waiting() != 1 || all.waiting() != 1 {
		t.Errorf("%d records wait for the controller that is down", all[0].Waiting())
	}
	v.Set("controller", srv.URL+",")
	if _, err := newWays(v, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("an empty address is taken")
	}
}
