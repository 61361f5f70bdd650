package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// bin holds this test's binary under the program's names.
var bin string

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "gpusim", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server":
		main()
		os.Exit(0)
	}
	os.Exit(tests(m))
}

func tests(m *testing.M) int {
	var err error
	if bin, err = os.MkdirTemp("", "gpusim-test"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(bin)
	// Other users run it too.
	if err := os.Chmod(bin, 0o755); err != nil {
		panic(err)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	defer self.Close()
	f, err := os.OpenFile(filepath.Join(bin, "gpusim"), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		panic(err)
	}
	if _, err := io.Copy(f, self); err != nil {
		panic(err)
	}
	if err := f.Close(); err != nil {
		panic(err)
	}
	for _, n := range []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"} {
		if err := os.Symlink("gpusim", filepath.Join(bin, n)); err != nil {
			panic(err)
		}
	}
	return m.Run()
}

// rig is one simulated machine.
type rig struct {
	t     *testing.T
	dir   string
	state *gpusim.State
	env   []string
}

// newRig makes a machine; pre-existing daemons of other pipe directories don't
// concern it.
func newRig(t *testing.T, cfg gpusim.Config) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpusim-rig")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir}
	must.OK(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "state")
	must.OK(t, gpusim.Create(path, cfg))
	if r.state, err = gpusim.Open(path); err != nil {
		t.Fatal(err)
	}
	r.env = []string{
		"PATH=" + bin + ":" + os.Getenv("PATH"), "GPUSIM_STATE=" + path,
		"CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(dir, "pipe"), "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(dir, "log"),
	}
	t.Cleanup(func() {
		r.noneLeft()
		_ = r.state.Close()
		_ = os.RemoveAll(dir)
	})
	return r
}

// noneLeft ends the rig's daemon and checks that nothing of it stays.
func (r *rig) noneLeft() {
	r.t.Helper()
	_, _ = r.ctl("quit -t 0.01")
	deadline := time.Now().Add(time.Minute)
	for left := r.processes(); len(left) > 0; left = r.processes() {
		if time.Now().After(deadline) {
			r.t.Errorf("processes left: %v", left)
			for _, pid := range left {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	for _, d := range r.state.Devices() {
		s, err := d.Snapshot()
		if err != nil {
			r.t.Errorf("at the end: %v", err)
		} else if len(s.Processes) != 0 || s.MemMiB > 1 {
			r.t.Errorf("left on the GPU: %+v", s.Processes)
		}
	}
}

// processes lists the pids of programs with the rig's state file in their
// environment.
func (r *rig) processes() []int {
	var out []int
	dirs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, d := range dirs {
		b, err := os.ReadFile(d)
		if err != nil || !bytes.Contains(b, []byte("GPUSIM_STATE="+filepath.Join(r.dir, "state"))) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(d, "/")[2]); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// job is a running application.
type job struct {
	t   *testing.T
	cmd *exec.Cmd
	out bytes.Buffer
	err bytes.Buffer
}

type opt func(*exec.Cmd)

func with(kv string) opt { return func(c *exec.Cmd) { c.Env = append(c.Env, kv) } }

func (r *rig) start(args string, opts ...opt) *job {
	r.t.Helper()
	j := &job{t: r.t, cmd: exec.Command(filepath.Join(bin, "gpusim"), append([]string{"run"}, strings.Fields(args)...)...)}
	j.cmd.Env = append([]string{}, r.env...)
	j.cmd.Dir = "/"
	j.cmd.Stdout, j.cmd.Stderr = &j.out, &j.err
	for _, o := range opts {
		o(j.cmd)
	}
	must.OK(r.t, j.cmd.Start())
	r.t.Cleanup(func() { _ = j.cmd.Process.Kill() })
	return j
}

// end waits for the job and returns its report and exit status (128 + signal).
func (j *job) end() (rep app.Report, status int) {
	j.t.Helper()
	err := j.cmd.Wait()
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		status = ee.ExitCode()
		if ws, ok := ee.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			status = 128 + int(ws.Signal())
		}
	} else if err != nil {
		j.t.Fatal(err)
	}
	if j.out.Len() > 0 {
		if err := json.Unmarshal(j.out.Bytes(), &rep); err != nil {
			j.t.Fatalf("report %q: %v", j.out.String(), err)
		}
	}
	return rep, status
}

func (r *rig) ctl(line string) (string, error) {
	c := exec.Command(filepath.Join(bin, "nvidia-cuda-mps-control"))
	c.Env, c.Stdin = r.env, strings.NewReader(line+"\n")
	out, err := c.CombinedOutput()
	return string(out), err
}

func (r *rig) daemon(opts ...opt) {
	r.t.Helper()
	c := exec.Command(filepath.Join(bin, "nvidia-cuda-mps-control"), "-d")
	c.Env = append([]string{}, r.env...)
	for _, o := range opts {
		o(c)
	}
	if out, err := c.CombinedOutput(); err != nil {
		r.t.Fatalf("%v\n%s", err, out)
	}
}

func (r *rig) snapshot() gpusim.Snapshot {
	r.t.Helper()
	s := must.Get(r.state.Device(0).Snapshot())(r.t)
	return s
}

// until waits for a condition.
func (r *rig) until(what string, f func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("never: %s; %+v", what, r.snapshot())
		}
	}
}

func (r *rig) apps() int {
	n := 0
	for _, p := range r.snapshot().Processes {
		if p.Kind != gpusim.Server.String() {
			n++
		}
	}
	return n
}

func (r *rig) pid(kind gpusim.Kind) int {
	for _, p := range r.snapshot().Processes {
		if p.Kind == kind.String() {
			return p.PID
		}
	}
	return 0
}

// steady writes a profile that asks for the same all the time.
func (r *rig) steady(seconds, gpu float64) string {
	r.t.Helper()
	b, err := json.Marshal(rlcore.Profile{
		DurationS: seconds, PeriodS: seconds, StepS: .2,
		Series: []rlcore.Use{{GPU: gpu, Core: gpu, MemMiB: 1000, PCIeMBps: 100}},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	path := filepath.Join(r.dir, fmt.Sprintf("profile-%v-%v", seconds, gpu))
	if _, err := os.Stat(path); err == nil {
		return path // and an application may just be reading it
	}
	must.OK(r.t, os.WriteFile(path, b, 0o644))
	return path
}

// long is an application that doesn't end within a test.
func (r *rig) long(mib int) string {
	return fmt.Sprintf("long --profile %s --mem-mib %d", r.steady(1e6, .5), mib)
}

func TestOutOfMemory(t *testing.T) {
	r := newRig(t, gpusim.Config{Scale: 100})
	rep, status := r.start(r.long(13000)).end()
	if status != app.ExitOOM || rep.Status != "oom" {
		t.Errorf("%d %+v", status, rep)
	}
	big := r.start(r.long(9000))
	r.until("it is there", func() bool { return r.apps() == 1 })
	j := r.start(r.long(5000))
	if _, status := j.end(); status != app.ExitOOM ||
		!strings.Contains(j.err.String(), "CUDA error: out of memory (cudaErrorMemoryAllocation)") {
		t.Errorf("%d %q", status, j.err.String())
	}
	if n := r.snapshot().OOM; n != 2 {
		t.Errorf("%d counted", n)
	}
	_ = big.cmd.Process.Signal(syscall.SIGTERM)
	rep, status = big.end()
	if status != 143 || rep.Status != "running" || rep.DoneS <= 0 {
		t.Errorf("SIGTERM: %d %+v", status, rep)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: other users' processes")
	}
}

func TestSeventeenthClient(t *testing.T) {
	r := newRig(t, gpusim.Config{Scale: 10})
	r.daemon()
	var jobs []*job
	for range 16 {
		jobs = append(jobs, r.start(r.long(100)))
	}
	r.until("sixteen there", func() bool { return r.apps() == 16 })
	j := r.start(r.long(100))
	if _, status := j.end(); status != app.ExitMPS || !strings.Contains(j.err.String(), "MPS client failed to connect") {
		t.Errorf("%d %q", status, j.err.String())
	}
	_ = jobs[0].cmd.Process.Kill()
	r.until("room", func() bool {
		out, _ := r.ctl(fmt.Sprintf("get_client_list %d", r.pid(gpusim.Server)))
		return r.apps() == 15 && strings.Count(out, "\n") == 15
	})
	jobs = append(jobs, r.start(r.long(100)))
	r.until("another", func() bool { return r.apps() == 16 })
	for _, j := range jobs[1:] {
		_ = j.cmd.Process.Kill()
	}
	r.until("empty", func() bool { return r.apps() == 0 })
}

func TestKilledServerTakesItsClientsAlong(t *testing.T) {
	r := newRig(t, gpusim.Config{Scale: 10})
	r.daemon()
	a, b := r.start(r.long(100)), r.start(r.long(100))
	r.until("both there", func() bool { return r.apps() == 2 })
	must.OK(t, syscall.Kill(r.pid(gpusim.Server), syscall.SIGKILL))
	for _, j := range []*job{a, b} {
		if _, status := j.end(); status != app.ExitFault ||
			!strings.Contains(j.err.String(), "CUDA error: unspecified launch failure") {
			t.Errorf("%d %q", status, j.err.String())
		}
	}
	if rep, status := r.start("alexnet --duration-scale 0.01").end(); status != 0 || !rep.MPS {
		t.Errorf("next: %d %+v", status, rep)
	}
}

// private gives an application a /dev/shm of its own, as Slurm's job_container/tmpfs does.
func private(c *exec.Cmd) {
	c.Args = append([]string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs shm /dev/shm && exec "$@"`, "sh", c.Path},
		c.Args[1:]...)
	c.Path = "/usr/bin/unshare"
}

func TestAClientWithoutTheServersMemory(t *testing.T) {
	needRoot(t)
	r := newRig(t, gpusim.Config{Scale: 100})
	r.daemon()
	j := r.start("alexnet --duration-scale 0.01", private)
	if _, status := j.end(); status != app.ExitMPS {
		t.Errorf("%d %q", status, j.err.String())
	}
	if rep, status := r.start("alexnet --duration-scale 0.01").end(); status != 0 || !rep.MPS {
		t.Errorf("one that sees it: %d %+v", status, rep)
	}
	server := r.pid(gpusim.Server)
	must.OK(t, syscall.Kill(server, syscall.SIGKILL))
	r.noneLeft()
	if left := must.Get(filepath.Glob(fmt.Sprintf("/dev/shm/cuda.shm.*.%x.*", server)))(t); len(left) > 0 {
		t.Errorf("%s is left of a server that has gone", left)
	}
}

// In exclusive use a process beside an MPS server is refused, and a client of the server isn't.
func TestExclusiveUse(t *testing.T) {
	r := newRig(t, gpusim.Config{Scale: 100, Exclusive: true})
	r.daemon()
	if rep, status := r.start("alexnet --duration-scale 0.01").end(); status != 0 || !rep.MPS {
		t.Errorf("a client: %d %+v", status, rep)
	}
	j := r.start("alexnet --duration-scale 0.01", with("CUDA_MPS_PIPE_DIRECTORY=/nowhere"))
	if _, status := j.end(); status != app.ExitDevice || !strings.Contains(j.err.String(), "cudaErrorDevicesUnavailable") {
		t.Errorf("a process beside the server: %d %q", status, j.err.String())
	}
}

func TestFaultReachesAllClients(t *testing.T) {
	for _, model := range []string{"titanxp", "a100"} {
		r := newRig(t, gpusim.Config{Model: model, Scale: 100})
		r.daemon()
		good := r.start(r.long(100))
		r.until("there", func() bool { return r.apps() == 1 })
		server := r.pid(gpusim.Server)
		bad := r.start(r.long(100) + " --fault-at 5")
		if _, status := bad.end(); status != app.ExitFault || !strings.Contains(bad.err.String(), "illegal memory access") {
			t.Errorf("%s: culprit %d %q", model, status, bad.err.String())
		}
		if _, status := good.end(); status != app.ExitFault {
			t.Errorf("%s: victim %d", model, status)
		}
		rep, status := r.start("alexnet --duration-scale 0.1").end()
		if status != 0 || (rep.Server == server) != (model == "a100") {
			t.Errorf("%s: next %d %+v, server was %d", model, status, rep, server)
		}
	}
}

// Processes killed at random moments, in the middle of what they write, leave a
// state that others compute on.
func TestRandomKills(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	r := newRig(t, gpusim.Config{Scale: 500})
	r.daemon()
	for round := range 25 {
		var jobs []*job
		for range 3 {
			jobs = append(jobs, r.start("alexnet --mem-mib 500 --duration-scale 0.05"))
		}
		time.Sleep(time.Duration(1+round) * time.Millisecond)
		for _, j := range jobs[:2] {
			_ = j.cmd.Process.Kill()
		}
		for i, j := range jobs {
			if rep, status := j.end(); i == 2 && (status != 0 || rep.Status != "finished") {
				t.Fatalf("round %d: the survivor: %d %+v %s", round, status, rep, j.err.String())
			}
		}
	}
	r.until("empty", func() bool { return r.apps() == 0 })
}
