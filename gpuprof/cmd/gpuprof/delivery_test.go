package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/exporter-toolkit/web"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/mungetest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/tlstest"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
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
// real store.
type node struct {
	t             *testing.T
	dir           string
	run           prolog.Dir
	store         *store.Store
	listen        string // the agent's
	tls           string // the certificates' folder
	args, env     []string
	log           bytes.Buffer // the last agent's
	isNew, again  atomic.Int64
	bytes, bodies atomic.Int64
	spoil         func() int // 0 = the controller is well; else see controller
}

func newNode(t *testing.T) *node {
	t.Helper()
	m := mungetest.Start(t, mungetest.Key, 0)
	n := &node{t: t, dir: t.TempDir()}
	n.run = prolog.Dir(filepath.Join(n.dir, "run"))
	must.OK(t, n.run.Make(), gpusim.Create(filepath.Join(n.dir, "gpus"), gpusim.Config{}))
	so, err := simulatedLibrary(t), error(nil)
	if n.store, err = store.Open(context.Background(), filepath.Join(n.dir, "db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.store.Close() })

	a := tlstest.New(t)
	n.tls = a.Dir
	later := time.Now().Add(time.Hour)
	a.Issue(t, "head", later, "head")
	a.Issue(t, "node", later, "127.0.0.1")
	const tlsServer = "tls_server_config:\n  cert_file: %s.pem\n  key_file: %s.key\n  client_auth_type: " +
		"RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"
	for name, text := range map[string]string{
		"head.yml":   fmt.Sprintf(tlsServer, "head", "head"),
		"node.yml":   fmt.Sprintf(tlsServer, "node", "node"),
		"client.yml": "tls_config:\n  ca_file: ca.pem\n  cert_file: node.pem\n  key_file: node.key\n  server_name: head\n",
	} {
		must.OK(t, os.WriteFile(filepath.Join(a.Dir, name), []byte(text), 0o600))
	}
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	n.listen = l.Addr().String() // free again before the agent takes it
	l.Close()
	n.args = []string{
		"serve", "--run-dir", string(n.run), "--spool", filepath.Join(n.dir, "spool"), "--period", "20ms", "--node", "n1",
		"--controller", "https://" + n.controller(m, filepath.Join(a.Dir, "head.yml")), "--controller-config",
		filepath.Join(a.Dir, "client.yml"),
		"--listen", n.listen, "--web-config", filepath.Join(a.Dir, "node.yml"),
		"--nvml-library", so, "--munge-socket", m.Socket, "--config", os.DevNull,
	}
	n.env = append(os.Environ(), asAgent+"=1", "GPUSIM_STATE="+filepath.Join(n.dir, "gpus"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last agent's log:\n%s", &n.log)
		}
	})
	return n
}

// controller takes records as slurmbridge serve does, but now and then badly: 1 it
// can't keep one, 2 it keeps one and can't say so, 3 it does neither.
func (n *node) controller(m *credential.Munge, webConfig string) (addr string) {
	h := &recordhttp.Handler{
		Credentials: m, AllowUID: func(uid uint32) bool { return uid == 0 },
		Keep: func(ctx context.Context, r *gpuprof.Record, _ time.Duration) (bool, error) {
			how := n.spoil()
			if how == 1 {
				return false, errors.New("the disk is full")
			}
			if how == 3 {
				panic(http.ErrAbortHandler)
			}
			isNew, err := n.store.AddRecord(ctx, r, "")
			if isNew {
				n.isNew.Add(1)
			} else if err == nil {
				n.again.Add(1)
			}
			if how == 2 {
				panic(http.ErrAbortHandler)
			}
			return isNew, err
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+recordhttp.Path, func(w http.ResponseWriter, r *http.Request) {
		n.bytes.Add(r.ContentLength)
		n.bodies.Add(1)
		h.ServeHTTP(w, r)
	})
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(n.t)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	systemd, done := false, make(chan struct{})
	go func() {
		defer close(done)
		_ = web.Serve(l, srv, &web.FlagConfig{
			WebListenAddresses: &[]string{""}, WebSystemdSocket: &systemd,
			WebConfigFile: &webConfig,
		}, slog.New(slog.DiscardHandler))
	}()
	n.t.Cleanup(func() { srv.Close(); <-done })
	return l.Addr().String()
}

// start starts an agent, and kills it a while after it listens, or after it was
// started (0 = at the test's end).
func (n *node) start(life time.Duration, listens bool) (pid int) {
	n.t.Helper()
	self := must.Get(os.Executable())(n.t)
	n.log.Reset()
	cmd := exec.Command(self, n.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.env, &n.log, &n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.OK(n.t, cmd.Start())
	kill := func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	if life == 0 {
		n.t.Cleanup(kill)
		return cmd.Process.Pid
	}
	for deadline := time.Now().Add(time.Minute); listens && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("tcp", n.listen); err == nil {
			c.Close()
			break
		}
	}
	time.Sleep(life)
	kill()
	return 0
}

// records counts the runs in the store, and the jobs they are of.
func (n *node) records() (runs, jobs int) {
	n.t.Helper()
	must.OK(n.t, n.store.DB().QueryRow(`SELECT count(*), count(DISTINCT job_id) FROM record`).Scan(&runs, &jobs))
	return runs, jobs
}

// On SIGHUP an agent without a job closes the GPUs, and opens them for the next one, whose record is whole.
func TestGPUsAreClosedOnSIGHUP(t *testing.T) {
	n := newNode(t)
	n.spoil = func() int { return 0 }
	pid := n.start(0, false)
	holds := func() bool {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		return slices.ContainsFunc(links, func(l string) bool {
			to, _ := os.Readlink(l)
			return to == filepath.Join(n.dir, "gpus")
		})
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not ", what)
			}
		}
	}
	until("ready", func() bool { c, err := net.Dial("tcp", n.listen); return err == nil && c.Close() == nil && holds() })
	until("closed", func() bool { return syscall.Kill(pid, syscall.SIGHUP) == nil && !holds() })
	must.OK(t, n.run.Begin(&prolog.Job{JobID: 1, UID: 1000, User: "ann", GPUs: []int{0}, Percent: 50, Start: time.Now()}))
	until("open again", holds)
	time.Sleep(100 * time.Millisecond) // the job's
	must.Get(n.run.End(1, time.Now(), "0:0"))(t)
	until("recorded", func() bool { runs, _ := n.records(); return runs == 1 })
	r := must.Get(database.List(t.Context(), n.store.DB(),
		func(r *gpuprof.Record) []any { return []any{database.JSON(r)} }, `SELECT body FROM record`))(t)
	if len(r) != 1 || r[0].Samples == 0 || r[0].Failed > 0 {
		t.Errorf("%+v", r)
	}
}

// However often the agent is killed and whatever the controller does, each job has
// one record in the store.
func TestKilledWhileDelivering(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	const jobs, kills = 80, 12
	n := newNode(t)
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
			if err := n.run.Begin(&prolog.Job{
				JobID: id, UID: 1000, User: "ann", GPUs: []int{0}, Percent: 50,
				Start: time.Now(),
			}); err != nil {
				done <- err
				return
			}
			time.Sleep(40 * time.Millisecond)
			if _, err := n.run.End(id, time.Now(), "0:0"); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range kills {
		n.start(time.Duration(src.IntN(400))*time.Millisecond, src.IntN(4) > 0)
	}
	must.OK(t, <-done)
	well.Store(true)
	n.start(0, false)
	left := func() int {
		waiting, _ := filepath.Glob(filepath.Join(n.dir, "*", "*.json"))
		ended, _ := filepath.Glob(filepath.Join(n.run.Ended(), "*"))
		return len(waiting) + len(ended) - 1 // gpus.json
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, got := n.records(); got == jobs && left() <= 0 {
			break
		}
	}
	runs, got := n.records()
	t.Logf("%d jobs, %d kills: %d records, %d lost, %d new and %d sent again; %d bytes a record on the wire",
		jobs, kills, runs, jobs-got, n.isNew.Load(), n.again.Load(), n.bytes.Load()/max(1, n.bodies.Load()))
	if runs != jobs || got != jobs || left() > 0 {
		t.Errorf("%d records of %d jobs for %d jobs; %d files are left", runs, got, jobs, left())
	}
	if n.again.Load() == 0 {
		t.Error("nothing was sent twice: the test tests nothing")
	}
	n.metrics()
}

// metrics looks at the agent's own endpoint, which wants a certificate.
func (n *node) metrics() {
	n.t.Helper()
	if resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}).Get("https://" + n.listen + "/metrics"); err == nil {
		resp.Body.Close()
		n.t.Error("metrics are shown without a certificate")
	}
	client := must.Get(recordhttp.NewClient(filepath.Join(n.tls, "client.yml")))(n.t)
	defer client.CloseIdleConnections()
	resp, err := client.Get("https://" + n.listen + "/metrics")
	if err == nil {
		n.t.Fatal("another host's certificate is taken for the node's", resp.Status)
	}
	must.OK(n.t, os.WriteFile(filepath.Join(n.tls, "scrape.yml"),
		[]byte("tls_config:\n  ca_file: ca.pem\n  cert_file: node.pem\n  key_file: node.key\n"), 0o600))
	if client, err = recordhttp.NewClient(filepath.Join(n.tls, "scrape.yml")); err != nil {
		n.t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	if resp, err = client.Get("https://" + n.listen + "/metrics"); err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(text), "\ngpuprof_spool_records 0\n") {
		n.t.Errorf("%v\n%s", err, text)
	}
}
