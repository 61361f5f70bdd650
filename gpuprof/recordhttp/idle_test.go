package recordhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/mungetest"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
)

// Reports of idle jobs arrive from those who may send records, whole, and from nobody else.
func TestIdleReports(t *testing.T) {
	m := mungetest.Start(t, "key", 0)
	var got []*gpuprof.IdleReport
	allow := true
	h := &Handler{Credentials: m, AllowUID: func(uint32) bool { return allow }}
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
	for _, bad := range []*gpuprof.IdleReport{{}, {Node: "n1", Jobs: []gpuprof.Idle{{JobID: 0}}}, {Node: "n1", Jobs: []gpuprof.Idle{{JobID: 1, IdleS: -1}}}, {Node: "n1", Jobs: make([]gpuprof.Idle, 5000)}} {
		if err := send(bad); !errors.Is(err, ErrRefused) {
			t.Errorf("%+v: %v", bad.Node, err)
		}
	}
	s.Credentials = fixed{m, "slurmbridge POST /v1/records 00"}
	if err := send(good); err == nil {
		t.Error("a credential for something else is taken")
	}
	s.Credentials, allow = m, false
	if err := send(good); err == nil {
		t.Error("a user who may not send records is believed")
	}
	if len(got) != 1 {
		t.Errorf("%d reports were taken", len(got))
	}
}

// fixed makes credentials with another payload than it is asked for.
type fixed struct {
	credential.Method
	payload string
}

func (f fixed) Encode(ctx context.Context, _ string) (string, error) {
	return f.Method.Encode(ctx, f.payload)
}
