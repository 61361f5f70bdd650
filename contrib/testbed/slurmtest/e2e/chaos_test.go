package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
)

// site is a cluster with etc's hooks, a simulated GPU, MPS, a node agent and a server
// that takes its records. No bridge: jobs ask for their shares.
type site struct {
	*slurmtest.Cluster
	t *testing.T

	mu      sync.Mutex
	records map[string]int // runs by JOB-RESTART, and how often they came
}

func newSite(t *testing.T, o slurmtest.Options, node ...string) *site {
	t.Helper()
	hooks := installHooks(t)
	prepare := o.Prepare
	o.Prepare = func(c *slurmtest.Cluster) error {
		if err := hooks(c); err != nil {
			return err
		}
		c.Options.EpilogSlurmctld = ""
		f, err := os.OpenFile(c.Path("node.yaml"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := fmt.Fprintf(f, "job_map: %s\n%s", c.Path("jobmap"), strings.Join(node, "\n")); err != nil {
			return err
		}
		if prepare != nil {
			return prepare(c)
		}
		return nil
	}
	return &site{Cluster: slurmtest.New(t, o), t: t, records: map[string]int{}}
}

// processes are those of the given programs that belong to this cluster.
func (s *site) processes(programs ...string) []int {
	s.t.Helper()
	found := must.Get(s.Processes(programs...))(s.t)
	return found
}

const (
	hookProgram    = "slurmbridge-hook"
	controlProgram = "nvidia-cuda-mps-control"
	serverProgram  = "nvidia-cuda-mps-server"
	agentProgram   = "gpuprof"
)

// agent runs the node agent, as systemd would anew whenever it ends, until the test
// does; its records are taken as the controller takes them.
func (s *site) agent() {
	s.t.Helper()
	bin := s.Path("bin")
	must.OK(s.t, built.Into(bin, agentProgram, built.Library))
	lib := filepath.Join(bin, built.Library)
	srv := httptest.NewServer(&recordhttp.Handler{
		Credentials: &credential.Munge{Socket: s.MungeSocket}, AllowUID: func(uid uint32) bool { return uid == 0 },
		Keep: func(_ context.Context, r *gpuprof.Record, _ time.Duration) (bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.records[fmt.Sprintf("%d-%d", r.JobID, r.Restart)]++
			return s.records[fmt.Sprintf("%d-%d", r.JobID, r.Restart)] == 1, nil
		},
		Result: func(string) {}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.t.Cleanup(func() { stop(); <-done; srv.Close() })
	log := must.Get(os.Create(s.Path("log", "gpuprof.log")))(s.t)
	go func() {
		defer close(done)
		defer log.Close()
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, filepath.Join(bin, agentProgram), "serve", "--run-dir", s.Path("node"), "--spool", s.Path("spool-agent"),
				"--controller", srv.URL, "--munge-socket", s.MungeSocket, "--nvml-library", lib, "--listen", "", "--period", "200ms", "--node", "n1")
			cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GPUSIM_STATE=" + s.Path("gpusim.state")}
			cmd.Stdout, cmd.Stderr = log, log
			_ = cmd.Run()
			time.Sleep(100 * time.Millisecond)
		}
	}()
}

// chaos kills processes of the programs at random until stop is called, which tells
// how many it were of each.
func (s *site) chaos(rnd *rand.Rand, every time.Duration, programs ...string) (stop func() map[string]int) {
	quit, done := make(chan struct{}), make(chan struct{})
	killed := map[string]int{}
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Duration(rnd.Int64N(int64(2 * every)))):
			}
			program := programs[rnd.IntN(len(programs))]
			if pids := s.processes(program); len(pids) > 0 && syscall.Kill(pids[rnd.IntN(len(pids))], syscall.SIGKILL) == nil {
				killed[program]++
			}
		}
	}()
	return func() map[string]int { close(quit); <-done; return killed }
}

// clean fails the test unless the node is in service and nothing of the jobs is left
// on it: no process, no socket, no job's file.
func (s *site) clean() {
	s.t.Helper()
	left := func() (out []string) {
		for _, pid := range s.processes(hookProgram, controlProgram, serverProgram) {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			out = append(out, strings.ReplaceAll(string(line), "\x00", " "))
		}
		_ = filepath.WalkDir(s.Path("node"), func(path string, e fs.DirEntry, err error) error {
			if err == nil && (e.Type()&fs.ModeSocket != 0 || strings.HasSuffix(path, ".json") && filepath.Base(path) != "gpus.json") {
				out = append(out, path)
			}
			return nil
		})
		return out
	}
	if !slurmtest.Wait(s.t.Context(), 20*time.Second, func() bool { return len(left()) == 0 }) {
		s.t.Errorf("left on the node: %s", strings.Join(left(), "\n"))
	}
	if out, err := s.Run(s.t.Context(), "sinfo", "-h", "-N", "-o", "%T %E"); err != nil || strings.Contains(out, "drain") || strings.Contains(out, "down") {
		s.t.Errorf("node: %s %v", out, err)
	}
	if text, err := os.ReadFile(s.Path("jobmap", "0")); err != nil || len(text) != 0 {
		s.t.Errorf("job map: %q %v", text, err)
	}
}

// SLURMBRIDGE_SLOW=1 plays 200 jobs, SLURMBRIDGE_CHAOS is another number.
func TestChaosOnANode(t *testing.T) {
	slurmtest.OfOneRelease(t)
	t.Parallel()
	n := 30
	if os.Getenv("SLURMBRIDGE_SLOW") != "" {
		n = 200
	}
	if v, err := strconv.Atoi(os.Getenv("SLURMBRIDGE_CHAOS")); err == nil {
		n = v
	}
	underFire(t, n)
}

// underFire runs n short jobs on one node while hooks, agent, MPS daemons and servers
// are killed at random: no job is lost, none has no record, the node stays in service
// and is clean afterwards.
func underFire(t *testing.T, n int) {
	t.Helper()
	s := newSite(t, slurmtest.Options{CPUs: 32, Scheduler: "sched_interval=1,bf_interval=1,sched_min_interval=0", Extra: []string{"JobRequeue=1"}})
	s.agent()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	stop := s.chaos(rand.New(rand.NewPCG(seed, 0)), 250*time.Millisecond,
		hookProgram, hookProgram, hookProgram, agentProgram, controlProgram, serverProgram)
	script := fmt.Sprintf("GPUSIM_STATE=%s %s run alexnet --mem-mib 100 --duration-scale 0.002 >/dev/null 2>&1\necho ran >>%s\nexit 0\n",
		s.Path("gpusim.state"), s.Path("bin", "gpusim"), s.Path("out", "ran"))
	start := time.Now()
	id, err := s.Submit(t.Context(), ann, script, "--gres=mps:10", "--array=1-"+strconv.Itoa(n), "--output=/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	var queue string
	ended := s.Wait(t.Context(), time.Duration(n)*2*time.Second, func() bool {
		queue, err = s.Run(t.Context(), "squeue", "-h", "-o", "%T %r")
		return err == nil && strings.TrimSpace(queue) == ""
	})
	killed := stop()
	t.Logf("%d jobs in %v; killed: %v", n, time.Since(start).Round(time.Second), killed)
	if !ended {
		t.Fatalf("jobs are left: %s", queue)
	}
	if text, err := os.ReadFile(s.Path("out", "ran")); err != nil || strings.Count(string(text), "ran\n") != n {
		t.Errorf("%d of %d jobs ran (%v)", strings.Count(string(text), "ran\n"), n, err)
	}
	count := func() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.records) }
	if !slurmtest.Wait(t.Context(), 30*time.Second, func() bool { return count() >= n }) {
		log, _ := os.ReadFile(s.Path("log", "gpuprof.log"))
		t.Errorf("%d of %d jobs have a record (job %s): %.2000s", count(), n, id, log)
	}
	s.clean()
	r := &rig{Cluster: s.Cluster, t: t}
	for _, hook := range []string{"prolog", "epilog"} {
		took := r.took(hook)
		if len(took) < n || slices.Max(took) > time.Minute {
			t.Errorf("%s: %d times, at most %v", hook, len(took), slices.Max(took))
		}
		t.Logf("%s, %d times: p50 %v p99 %v", hook, len(took), quantile(took, .5), quantile(took, .99))
	}
}
