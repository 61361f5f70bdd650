package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// TestFiguresIdle measures, and asserts nothing: what the daemon takes of a quiet
// cluster's controller in a minute, and the agent of a node's core at one sample a
// second, with a job to watch.
func TestFiguresIdle(t *testing.T) {
	if os.Getenv("SLURMBRIDGE_FIGURES") == "" {
		t.Skip("make bench runs it")
	}
	library, err := filepath.Abs("../../../../build/lib/libnvidia-ml.so.1")
	if err == nil {
		_, err = os.Stat(library)
	}
	if err != nil {
		t.Skip(err, "; make build makes it")
	}
	o := options{quiet: true}
	o.Prepare = installHooks(t)
	r := newRig(t, o)
	must.OK(t, built.Into(r.Path("bin"), "slurmbridge", "gpuprof"))
	addr, metrics := freeAddr(t), freeAddr(t)
	conf := fmt.Sprintf("slurm_conf: %s\ngate_file: %s\nwake_file: %s\ndatabase: %s\nlisten: %s\nmunge_socket: %s\nsharers_only: [gpu]\n",
		r.Conf(), r.GateFile, r.WakeFile, r.Path("run", "slurmbridge.db"), addr, r.MungeSocket)
	must.OK(t, os.WriteFile(r.Path("slurmbridge.yaml"), []byte(conf), 0o644))
	bridge := r.spawn("slurm", "slurmbridge", "serve", "-c", r.Path("slurmbridge.yaml"))
	agent := r.spawn("", "gpuprof", "serve", "--run-dir", r.Path("node"), "--spool", r.Path("spool", "agent"),
		"--controller", "http://"+addr, "--nvml-library", library, "--node", "n1", "--listen", metrics, "--munge-socket", r.MungeSocket)
	time.Sleep(5 * time.Second) // the start is another matter
	t.Log("daemon, no job in the cluster, poll 30 s, lease 1 m:", spent(t, bridge, time.Minute))
	id := r.any(ann, 75, "--gres=gpu:titanxp:1")
	r.state(10*time.Second, id, "RUNNING")
	time.Sleep(3 * time.Second)
	before := samples(t, metrics)
	took := spent(t, agent, time.Minute)
	t.Logf("agent, 1 GPU, 1 job, %d samples in a minute: %s", samples(t, metrics)-before, took)
}

// A job that does nothing with its GPU is told of, ten minutes later: in the list, as a number, and in its AdminComment;
// one that computes is not. SLURMBRIDGE_SLOW=1 runs it (make soak does).
func TestIdleJobIsTold(t *testing.T) {
	slurmtest.OfOneRelease(t)
	if os.Getenv("SLURMBRIDGE_SLOW") == "" || testing.Short() {
		t.Skip("it takes a quarter of an hour: make soak runs it")
	}
	t.Parallel()
	s := stage(t, cluster.Setup{Scale: 2, NodeGPUs: []int{2}, Settings: []string{"idle_after: 10m", "idle_comment: true"}}, nil)
	submit := func(script string) string {
		t.Helper()
		id := must.Get(s.Submit(t.Context(), cluster.Owner, script, "--gres=gpu:1", "--time=30"))(t)
		return id
	}
	began := time.Now()
	idle := submit("sleep 1500")
	works := submit(fmt.Sprintf("GPUSIM_STATE=%s exec %s run hoomd --duration-scale 100", s.State(), s.Bin("gpusim")))
	for _, id := range []string{idle, works} {
		if state, ok := s.WaitState(t.Context(), time.Minute, id, "RUNNING"); !ok {
			t.Fatalf("job %s is %s", id, state)
		}
	}
	var told []job.Idle
	list := func() bool {
		out, err := s.RunAs(t.Context(), "slurm", s.Bin("slurmbridge"), "usage", "--idle", "--json", "--config", s.Path("slurmbridge.yaml"))
		var r httpapi.IdleReport
		if err == nil && json.Unmarshal([]byte(out), &r) == nil {
			told = r.Jobs
		}
		return len(told) > 0
	}
	if !slurmtest.Wait(t.Context(), 14*time.Minute, list) {
		t.Fatal("nothing is told")
	}
	took := time.Since(began)
	if len(told) != 1 || told[0].Ref != idle || told[0].GPUs != 1 || told[0].User != cluster.Owner || took < 10*time.Minute {
		t.Errorf("after %v: %+v, want job %s", took, told, idle)
	}
	if jobs, gpus := metric(t, s, "slurmbridge_idle_jobs"), metric(t, s, "slurmbridge_idle_gpus"); jobs != "1" || gpus != "1" {
		t.Errorf("%s idle jobs, %s GPUs", jobs, gpus)
	}
	said := func(id string) string {
		f := must.Get(s.Job(t.Context(), id))(t)
		return f["AdminComment"]
	}
	if !slurmtest.Wait(t.Context(), time.Minute, func() bool { return strings.Contains(said(idle), "its GPU has done nothing since ") }) || said(works) != "" {
		t.Errorf("AdminComments %q, of the one that computes %q", said(idle), said(works))
	}
	t.Logf("told after %v: %s", took, said(idle))
}

// samples is how many samples an agent says that it has taken.
func samples(t *testing.T, addr string) int {
	t.Helper()
	resp := must.Get(http.Get("http://" + addr + "/metrics"))(t)
	defer resp.Body.Close()
	body := must.Get(io.ReadAll(resp.Body))(t)
	_, text, _ := strings.Cut(string(body), `gpuprof_samples_total{result="ok"} `)
	text, _, _ = strings.Cut(text, "\n")
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("the agent counts no samples: %s", body)
	}
	return n
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}

// spawn starts a program of bin until the test ends.
func (r *rig) spawn(as, name string, args ...string) *os.Process {
	r.t.Helper()
	cmd := must.Get(r.Command(context.Background(), as, r.Path("bin", name), args...))(r.t)
	log := must.Get(os.Create(r.Path("log", name+".log")))(r.t)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(cmd.Env, "GPUSIM_STATE="+r.Path("gpusim.state"))
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	must.OK(r.t, cmd.Start())
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process
}

// spent says what a process used of a core within d, itself and by the commands it
// ran, and how much memory it has.
func spent(t *testing.T, p *os.Process, d time.Duration) string {
	t.Helper()
	// Clock ticks are 10 ms on every Linux that Go knows.
	read := func() (own, children float64) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		_, rest, ok := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		if err != nil || !ok || len(f) < 15 {
			t.Fatalf("process %d: %v %q", p.Pid, err, text)
		}
		var v [4]float64 // utime, stime, cutime, cstime
		for i := range v {
			n, err := strconv.ParseFloat(f[11+i], 64)
			if err != nil {
				t.Fatal(err)
			}
			v[i] = n / 100
		}
		return v[0] + v[1], v[2] + v[3]
	}
	own, children := read()
	time.Sleep(d)
	own2, children2 := read()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	_, rss, ok := strings.Cut(string(text), "VmRSS:")
	if err != nil || !ok {
		t.Fatal(errors.Join(err, errors.New("no VmRSS")))
	}
	rss, _, _ = strings.Cut(strings.TrimSpace(rss), "\n")
	return fmt.Sprintf("%.2f %% of a core, %.2f %% by its commands, %s resident",
		100*(own2-own)/d.Seconds(), 100*(children2-children)/d.Seconds(), rss)
}
