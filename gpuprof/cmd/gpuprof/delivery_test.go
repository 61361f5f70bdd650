package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/mungetest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/tlstest"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/gpuprof/webconfig"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// asAgent makes the test's own program an agent.
const asAgent = "GPUPROF_TEST_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// node has an agent that is killed, with a GPU and a munged, and a controller with a
// real store. Both protect their addresses with TLS and want a certificate.
type node struct {
	t         *testing.T
	dir       string
	run       prolog.Dir
	store     *store.Store
	listen    string // the agent's
	client    string // the file by which an HTTP client gets in
	args, env []string
	log       bytes.Buffer // the last agent's
	again     atomic.Int64
	spoil     func() int // 0 = the controller is well; else see ServeHTTP
	handler   recordhttp.Handler
}

// newNode has certificates that are valid for so long.
func newNode(t *testing.T, valid time.Duration) *node {
	t.Helper()
	m := mungetest.Start(t, mungetest.Key, 0)
	n := &node{t: t, dir: t.TempDir(), spoil: func() int { return 0 }}
	n.run = prolog.Dir(filepath.Join(n.dir, "run"))
	must.OK(t, n.run.Make(), gpusim.Create(filepath.Join(n.dir, "gpus"), gpusim.Config{}))
	n.store = must.Get(store.Open(t.Context(), filepath.Join(n.dir, "db")))(t)
	t.Cleanup(func() { n.store.Close() })
	a := tlstest.New(t)
	a.Issue(t, "host", time.Now().Add(valid), "127.0.0.1")
	n.client = filepath.Join(a.Dir, "client.yml")
	web := filepath.Join(a.Dir, "web.yml")
	const both = "cert_file: host.pem, key_file: host.key, "
	must.OK(t, os.WriteFile(web, []byte("tls_server_config: {"+both+"client_ca_file: ca.pem, client_auth_type: "+
		"RequireAndVerifyClientCert}\n"), 0o600),
		os.WriteFile(n.client, []byte("tls_config: {"+both+"ca_file: ca.pem}\n"), 0o600))
	port, claim, err := slurmtest.FreePort()
	must.OK(t, err)
	t.Cleanup(func() { claim.Close() })
	n.listen = "127.0.0.1:" + port

	n.handler = recordhttp.Handler{
		Credentials: m, AllowUID: func(uid uint32) bool { return uid == 0 }, Keep: n.keep, Result: func(string) {},
		Metrics: recordhttp.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	}
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	srv := &http.Server{Handler: &n.handler, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	g, ctx := errgroup.WithContext(t.Context())
	webconfig.Serve(ctx, g, l, srv, l.Addr().String(), web, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { srv.Close(); _ = g.Wait() })

	n.args = []string{
		"serve", "--run-dir", string(n.run), "--spool", filepath.Join(n.dir, "spool"), "--period", "20ms", "--node", "n1",
		"--controller", "https://" + l.Addr().String(), "--controller-config", n.client,
		"--listen", n.listen, "--web-config", web,
		"--nvml-library", simulatedLibrary(t), "--munge-socket", m.Socket, "--config", os.DevNull,
	}
	n.env = append(os.Environ(), asAgent+"=1", "GPUSIM_STATE="+filepath.Join(n.dir, "gpus"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last agent's log:\n%s", &n.log)
		}
	})
	return n
}

// keep takes records as slurmbridge serve does, but now and then badly: 1 it
// can't keep one, 2 it keeps one and can't say so, 3 it does neither.
func (n *node) keep(ctx context.Context, r *gpuprof.Record, _ time.Duration) (bool, error) {
	how := n.spoil()
	if how == 1 {
		return false, errors.New("the disk is full")
	}
	if how == 3 {
		panic(http.ErrAbortHandler)
	}
	isNew, err := n.store.AddRecord(ctx, r, "")
	if !isNew && err == nil {
		n.again.Add(1)
	}
	if how == 2 {
		panic(http.ErrAbortHandler)
	}
	return isNew, err
}

// start starts an agent, which is killed at the test's end, if not before.
func (n *node) start() *exec.Cmd {
	n.t.Helper()
	n.log.Reset()
	cmd := exec.Command("/proc/self/exe", n.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.env, &n.log, &n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.OK(n.t, cmd.Start())
	n.t.Cleanup(func() { kill(cmd) })
	return cmd
}

func kill(cmd *exec.Cmd) { _, _ = cmd.Process.Kill(), cmd.Wait() }

// listens reports whether the agent does.
func (n *node) listens() bool {
	c, err := net.Dial("tcp", n.listen)
	return err == nil && c.Close() == nil
}

func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatal("not ", what)
		}
	}
}

// records counts the runs in the store, and the jobs they are of.
func (n *node) records() (runs, jobs int) {
	n.t.Helper()
	must.OK(n.t, n.store.DB().QueryRow(`SELECT count(*), count(DISTINCT job_id) FROM record`).Scan(&runs, &jobs))
	return runs, jobs
}

// metrics are what the agent shows to whoever has a certificate.
func (n *node) metrics() string {
	n.t.Helper()
	client := must.Get(recordhttp.NewClient(n.client))(n.t)
	defer client.CloseIdleConnections()
	resp := must.Get(client.Get("https://" + n.listen + "/metrics"))(n.t)
	defer resp.Body.Close()
	return string(must.Get(io.ReadAll(resp.Body))(n.t))
}

// However often the agent is killed and whatever the controller does, each job has one record in the store.
func TestKilledWhileDelivering(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	const jobs, kills = 80, 12
	n := newNode(t, time.Hour)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	src := rand.New(rand.NewPCG(seed, 1))
	var well, once atomic.Bool
	n.spoil = func() int {
		switch {
		case !once.Swap(true):
			return 2 // at least this one comes again
		case well.Load():
			return 0
		}
		return max(0, rand.IntN(7)-3)
	}
	done := make(chan error, 1)
	go func() { // the hooks
		for id := int64(1); id <= jobs; id++ {
			if err := n.run.Begin(&prolog.JobFile{
				JobID: id, UID: 1000, User: "ann", GPUs: []int{0}, Percent: 50,
				Start: time.Now(),
			}); err != nil {
				done <- err
				return
			}
			time.Sleep(40 * time.Millisecond)
			if _, err := n.run.End(id, time.Now()); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range kills {
		cmd := n.start()
		if src.IntN(4) > 0 {
			n.until("listening", n.listens)
		}
		time.Sleep(time.Duration(src.IntN(400)) * time.Millisecond)
		kill(cmd)
	}
	must.OK(t, <-done)
	well.Store(true)
	n.start()
	n.until("all delivered", func() bool {
		waiting, _ := filepath.Glob(filepath.Join(n.dir, "*", "*.json"))
		ended, _ := filepath.Glob(filepath.Join(n.run.Ended(), "*"))
		_, got := n.records()
		return got == jobs && len(waiting)+len(ended) == 1 // gpus.json
	})
	runs, got := n.records()
	must.Equal(t, [2]int{runs, got}, [2]int{jobs, jobs}, "records, and jobs that have one")
	if n.again.Load() == 0 {
		t.Error("nothing was sent twice: the test tests nothing")
	}
	must.Contain(t, n.metrics(), "\ngpuprof_spool_records 0\n")
	strange := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if resp, err := strange.Get("https://" + n.listen + "/metrics"); err == nil {
		resp.Body.Close()
		t.Error("metrics are shown without a certificate")
	}
}

// ready reports whether the agent has listed its GPUs for the hooks.
func (n *node) ready() bool {
	_, err := os.Stat(filepath.Join(string(n.run), "gpus.json"))
	return err == nil
}

// An agent whose certificate has expired runs: jobs are recorded, whoever may read its metrics.
func TestExpiredCertificate(t *testing.T) {
	n := newNode(t, -time.Hour)
	n.start()
	n.until("listening", n.listens)
	n.until("ready", n.ready)
}

// An agent runs though another program has the port of its metrics, and shows them once the port is free.
func TestPortOfMetricsIsTaken(t *testing.T) {
	n := newNode(t, time.Hour)
	other := must.Get(net.Listen("tcp", n.listen))(t)
	n.start()
	n.until("ready", n.ready)
	must.OK(t, other.Close())
	n.until("listening", n.listens)
	must.Contain(t, n.metrics(), "gpuprof_jobs 0")
}
