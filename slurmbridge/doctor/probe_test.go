package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// agentAt serves what an agent answers and returns its port.
func agentAt(t *testing.T, serve http.HandlerFunc, secure bool) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(serve)
	srv.Config.ErrorLog = nil
	if secure {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestAskAgents(t *testing.T) {
	tells := func(mps, hooks int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/-/healthy":
				http.Error(w, "gpu 3 is lost", http.StatusServiceUnavailable)
			case "/metrics":
				fmt.Fprintf(w, "# TYPE gpuprof_jobs gauge\ngpuprof_jobs 3\n# TYPE gpuprof_mps_control_present gauge\ngpuprof_mps_control_present %d\n# TYPE gpuprof_hook_settings_ok gauge\ngpuprof_hook_settings_ok %d\n", mps, hooks)
			}
		}
	}
	healthy := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") }
	late := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		fmt.Fprintln(w, "healthy")
	}
	sick := func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the last sample\nwas 20s ago", http.StatusServiceUnavailable)
	}
	secret := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "Unauthorized", http.StatusUnauthorized) }
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, closed, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	trusting := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for name, c := range map[string]struct {
		port, scheme string
		client       *http.Client
		want         func(a Agent) bool
	}{
		"well":    {agentAt(t, healthy, false), "http", http.DefaultClient, func(a Agent) bool { return a.Err+a.Locked+a.Sick == "" && a.Ahead.Abs() < time.Second }},
		"TLS":     {agentAt(t, healthy, true), "https", trusting, func(a Agent) bool { return a.Err+a.Locked+a.Sick == "" }},
		"late":    {agentAt(t, late, false), "http", http.DefaultClient, func(a Agent) bool { return a.Ahead < -59*time.Minute && a.Ahead > -61*time.Minute }},
		"sick":    {agentAt(t, sick, false), "http", http.DefaultClient, func(a Agent) bool { return a.Sick == "the last sample was 20s ago" }},
		"secret":  {agentAt(t, secret, false), "http", http.DefaultClient, func(a Agent) bool { return a.Locked == "it wants a password" }},
		"no TLS":  {agentAt(t, healthy, true), "http", http.DefaultClient, func(a Agent) bool { return a.Locked == "it wants TLS" }},
		"no CA":   {agentAt(t, healthy, true), "https", http.DefaultClient, func(a Agent) bool { return strings.Contains(a.Locked, "certificate") && a.Err == "" }},
		"TLS, no": {agentAt(t, healthy, false), "https", http.DefaultClient, func(a Agent) bool { return strings.Contains(a.Locked, "HTTP response") }},
		"no MPS": {agentAt(t, tells(0, 1), false), "http", http.DefaultClient, func(a Agent) bool {
			return a.MPS != nil && !*a.MPS && a.Hooks != nil && *a.Hooks && a.Sick == "gpu 3 is lost"
		}},
		"hooks":  {agentAt(t, tells(1, 0), false), "http", http.DefaultClient, func(a Agent) bool { return *a.MPS && !*a.Hooks }},
		"older":  {agentAt(t, healthy, false), "http", http.DefaultClient, func(a Agent) bool { return a.MPS == nil && a.Hooks == nil && a.Err == "" }},
		"closed": {closed, "http", http.DefaultClient, func(a Agent) bool { return a.Err == "connection refused" }},
	} {
		nodes := []text.Node{{Name: "gpu1", Addr: "127.0.0.1", GPUs: map[string]int{"t4": 1}}, {Name: "cpu1", GPUs: map[string]int{}}}
		got := AskAgents(context.Background(), c.client, c.scheme+"://{node}:"+c.port, nodes)
		if len(got) != 1 || !c.want(got["gpu1"]) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := AskAgents(context.Background(), http.DefaultClient, "http://{node} x", []text.Node{{Name: "a", GPUs: map[string]int{"": 1}}}); got["a"].Err == "" {
		t.Errorf("no address: %+v", got)
	}
}

func TestAskDaemon(t *testing.T) {
	answer, status := `{"mode":"active","policy":"dqn","gate":"7"}`, http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/status" {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	ask := func() *Daemon { return AskDaemon(context.Background(), http.DefaultClient, srv.URL+"/") }
	if got, want := ask(), (&Daemon{Mode: "active", Policy: "dqn", Gate: "7"}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	answer = `{"mode":"active","policy":"dqn","error":"look: down"}`
	if got := ask(); got.Error != "look: down" {
		t.Errorf("%+v", got)
	}
	answer = "<html>"
	if got := ask(); got.Err != "another program answers there" {
		t.Errorf("%+v", got)
	}
	answer, status = "no look yet", http.StatusServiceUnavailable
	if got := ask(); got.Error != "no look yet" || got.Err != "" {
		t.Errorf("%+v", got)
	}
	srv.Close()
	if got := ask(); got.Err != "connection refused" {
		t.Errorf("%+v", got)
	}
}

type fakeMethod struct{ encode, decode error }

func (f fakeMethod) Header() string                                 { return "" }
func (f fakeMethod) Hint(error) string                              { return "" }
func (f fakeMethod) Encode(context.Context, string) (string, error) { return "MUNGE:x:", f.encode }
func (f fakeMethod) Decode(context.Context, string) (*credential.Credential, error) {
	return &credential.Credential{}, f.decode
}

func TestTryCredential(t *testing.T) {
	for want, m := range map[string]fakeMethod{
		"":                           {},
		"munged does not answer":     {encode: errors.New("munged does not answer")},
		"the credential\nis invalid": {decode: errors.New("the credential\nis invalid")},
	} {
		if got := TryCredential(context.Background(), m); got != strings.ReplaceAll(want, "\n", " ") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestUnitUser(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct{ name, text, want string }{
		{"unrelated", "User=alice\n", ""},
		{"usr/lib/systemd/system/slurmbridge.service", "[Service]\n# SlurmUser\nUser=slurm\n", "slurm"},
		{"etc/systemd/system/slurmbridge.service.d/override.conf", "[Service]\nGroup=slurm\n", "slurm"},
		{"etc/systemd/system/slurmbridge.service.d/zz.conf", "[Service]\nUser=hpc\n", "hpc"},
		{"etc/systemd/system/slurmbridge.service", "[Service]\nExecStart=/usr/sbin/slurmbridge\n", "hpc"},
		{"etc/systemd/system/slurmbridge.service.d/zz.conf", "[Service]\nUser=\n", "root"},
	} {
		put(step.name, step.text)
		if got := UnitUser(root); got != step.want {
			t.Errorf("with %s: %q, want %q", step.name, got, step.want)
		}
	}
}
