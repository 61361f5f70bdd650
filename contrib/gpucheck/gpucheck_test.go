package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/nvidia"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// bin holds this test's binary under the programs' names, and the simulated NVML.
var bin string

// haltUndisturbed stops a child while it doesn't hold the simulated card's lock, and returns once all its threads stand.
func haltUndisturbed(pid int) error {
	card, err := gpusim.Open("")
	if err != nil {
		return err
	}
	defer card.Close()
	return card.Undisturbed(func() error {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return err
		}
		return unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
	})
}

func TestMain(m *testing.M) {
	if status, ok := mps.Main(os.Args, os.Stdin, os.Stdout, os.Stderr); ok {
		os.Exit(status)
	}
	if filepath.Base(os.Args[0]) == "gpucheck" {
		if simulated() {
			worker = func(k Kernel) works {
				s := &standIn{Kernel: k}
				clock = s.now
				return s
			}
			halt = haltUndisturbed
		}
		os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
	}
	if filepath.Base(os.Args[0]) == "nvidia-smi" {
		os.Exit(setMode(os.Args[len(os.Args)-1]))
	}
	os.Exit(tests(m))
}

// setMode is as much of nvidia-smi as sets the simulated card's compute mode, its last argument. It kills its parent
// afterwards where it is to misbehave.
func setMode(mode string) (status int) {
	st, err := gpusim.Open("")
	number, known := map[string]int{"DEFAULT": 0, "EXCLUSIVE_PROCESS": 3}[mode]
	if err != nil || !known || st.Device(0).SetComputeMode(number) != nil {
		return 1
	}
	if number != 0 && os.Getenv(misbehave) == "nvidia-smi=kill" {
		_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
	}
	return 0
}

func tests(m *testing.M) int {
	var err error
	if bin, err = os.MkdirTemp("", "gpucheck-test"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(bin)
	program := filepath.Join(bin, "gpucheck")
	// Clients of another user are started from there.
	err = errors.Join(os.Chmod(bin, 0o755), nvidia.Self(program), built.Into(bin, built.Library))
	for _, name := range []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-smi"} {
		err = errors.Join(err, os.Symlink(program, filepath.Join(bin, name)))
	}
	if err != nil {
		panic(err)
	}
	return m.Run()
}

// rig is a machine with a simulated GPU.
type rig struct {
	t     *testing.T
	dir   string
	state *gpusim.State
	env   []string
}

func newRig(t *testing.T, cfg gpusim.Config) *rig {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "gc"))(t) // sockets' paths must be short
	must.OK(t, os.Chmod(dir, 0o755))
	r := &rig{t: t, dir: dir}
	path := filepath.Join(dir, "state")
	must.OK(t, gpusim.Create(path, cfg))
	r.state = must.Get(gpusim.Open(path))(t)
	for _, d := range []string{"tmp", "proc"} {
		must.OK(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	r.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "GPUSIM_STATE="+path,
		"TMPDIR="+filepath.Join(dir, "tmp"))
	t.Cleanup(func() {
		r.nothingLeft()
		_ = r.state.Close()
		_ = os.RemoveAll(dir)
	})
	return r
}

func (r *rig) command(args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(bin, "gpucheck"), append([]string{
		"--mps-control", filepath.Join(bin, "nvidia-cuda-mps-control"),
		"--nvml-library", filepath.Join(bin, "libnvidia-ml.so.1"), "--proc", filepath.Join(r.dir, "proc"),
		"--out", filepath.Join(r.dir, "out"),
	}, args...)...)
	c.Env = r.env
	return c
}

func (r *rig) run(args ...string) (out, errs string, status int) {
	r.t.Helper()
	c := r.command(args...)
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	err := c.Run()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		r.t.Fatal(err)
	}
	return o.String(), e.String(), c.ProcessState.ExitCode()
}

// left lists what of the rig is still there: processes that have its state in their
// environment, folders, processes on the GPU.
func (r *rig) left() []string {
	var out []string
	envs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range envs {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(filepath.Join(r.dir, "state"))) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
			out = append(out, f+" "+string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	folders, _ := filepath.Glob(filepath.Join(r.dir, "tmp", "*"))
	s, err := r.state.Device(0).Snapshot()
	if err != nil {
		out = append(out, err.Error())
	}
	for _, p := range s.Processes {
		out = append(out, "on the GPU: "+p.App)
	}
	return append(out, folders...)
}

func (r *rig) nothingLeft() {
	r.t.Helper()
	r.until("nothing left", func() bool { return len(r.left()) == 0 })
}

func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	r.t.Errorf("not %s; left: %v", what, r.left())
}

// results reads what a run has written down.
func (r *rig) results() (out []Result) {
	r.t.Helper()
	lines := json.NewDecoder(bytes.NewReader(must.Get(os.ReadFile(filepath.Join(r.dir, "out", "results.jsonl")))(r.t)))
	for {
		var res Result
		err := lines.Decode(&res)
		if errors.Is(err, io.EOF) {
			return out
		}
		must.OK(r.t, err)
		out = append(out, res)
	}
}

// law is what the kernels showed, and why some show nothing.
func (r *rig) law() (alone map[string]Alone, pairs []Slowed, failed []string) {
	r.t.Helper()
	alone = map[string]Alone{}
	for _, res := range r.results()[1:] {
		var facts struct {
			Alone *Alone
			Pair  []Slowed
		}
		must.OK(r.t, json.Unmarshal(must.Get(json.Marshal(res.Facts))(r.t), &facts))
		if facts.Alone != nil {
			alone[res.Name] = *facts.Alone
		}
		pairs = append(pairs, facts.Pair...)
		if res.Error != "" {
			failed = append(failed, res.Error)
		}
	}
	return alone, pairs, failed
}

// Every kernel and pair, on a card whose NVML and contention are known.
func TestKernelsOnTheSimulatedCard(t *testing.T) {
	daemons(t)
	t.Parallel()
	r := newRig(t, gpusim.Config{Model: "v100"})
	out, errs, status := r.run("--protocol", "0", "--kernels", "compute,pcie,hungry", "--duration", "1s")
	if status != 0 || !strings.Contains(out, "The GPU is simulated") {
		t.Fatalf("status %d: %s\n%s", status, out, errs)
	}
	alone, pairs, failed := r.law()
	must.Equal(t, failed, nil)
	must.Equal(t, [2]int{len(alone), len(pairs)}, [2]int{3, 12}, "kernels and pairs")
	compute, pcie, hungry := alone["compute"], alone["pcie"], alone["hungry"]
	for what, v := range map[string][3]float64{ // what is said, what is true on the card's clock, how far off it may be
		"compute's asked use":   {compute.Asked.GPU, 1, 0.02},
		"compute's use":         {compute.Measured.GPU, 1, 0.1},
		"compute's step":        {compute.StepS, 5e-3, 1e-4},
		"pcie's asked traffic":  {pcie.Asked.PCIeMBps, 20000, 400},
		"pcie's traffic":        {pcie.Measured.PCIeMBps, 20000, 2000},
		"pcie's asked use":      {pcie.Asked.GPU, 0, 0},
		"pcie's use":            {pcie.Measured.GPU, 0, 0.01},
		"hungry's asked use":    {hungry.Asked.GPU, 0.5, 0.02},
		"hungry's asked memory": {hungry.Asked.MemMiB, 4608, 256},
		"hungry's memory":       {hungry.Measured.MemMiB, hungry.Asked.MemMiB, 640},
	} {
		if !(math.Abs(v[0]-v[1]) <= v[2]) {
			t.Errorf("%s is %v, want %v", what, v[0], v[1])
		}
	}
	for _, p := range pairs { // the simulated card slows by the very law
		must.Near(t, p.Slowdown/p.Law, 1, 0.02, "%s next to %s: %v, by the law %v", p.Kernel, p.Beside, p.Slowdown, p.Law)
	}
}

// A kernel that fails, and one that MPS doesn't serve, are noted, and the others measured.
func TestAKernelThatFailsIsNoted(t *testing.T) {
	daemons(t)
	t.Parallel()
	r := newRig(t, gpusim.Config{Model: "v100"})
	r.env = append(r.env, misbehave+"=pcie=crash,narrow=alone")
	_, errs, status := r.run("--protocol", "0", "--kernels", "narrow,pcie,hungry", "--duration", "200ms")
	must.Equal(t, status, 1, errs)
	must.Contain(t, errs, "7 parts failed")
	alone, pairs, failed := r.law()
	must.Equal(t, [2]int{len(alone), len(pairs)}, [2]int{1, 2}, "kernels and pairs")
	if all := strings.Join(failed, "\n"); !strings.Contains(all, "clients, not 1") ||
		!strings.Contains(all, "cudaErrorMemoryAllocation") {
		t.Error(all)
	}
}

// The compute mode is put back after a SIGKILL, too.
func TestKilledInAnotherMode(t *testing.T) {
	daemons(t)
	if os.Getuid() != 0 {
		t.Skip("needs root: the compute mode")
	}
	t.Parallel()
	r := newRig(t, gpusim.Config{Model: "h200"})
	r.env = append(r.env, misbehave+"=nvidia-smi=kill")
	if _, errs, status := r.run("--law", "0", "--mps-control", "nosuch"); status != -1 {
		t.Errorf("not killed: %d: %s", status, errs)
	}
	r.until("put back", func() bool {
		s, err := r.state.Device(0).Snapshot()
		return err == nil && s.ComputeMode == 0
	})
	must.OK(t, os.RemoveAll(filepath.Join(r.dir, "tmp")))
}

// However it is interrupted, nothing of it stays.
func TestNothingStaysAfterAnInterrupt(t *testing.T) {
	daemons(t)
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, gpusim.Config{Model: "v100"})
			c := r.command("--protocol", "0", "--kernels", "compute", "--duration", "1m")
			var errs bytes.Buffer
			c.Stderr = &errs
			c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			must.OK(t, c.Start())
			r.until("computing", func() bool {
				s, err := r.state.Device(0).Snapshot()
				return err == nil && len(s.Processes) == 2 // the server's too
			})
			pid := c.Process.Pid
			if sig == syscall.SIGINT {
				pid = -pid // as a terminal does
			}
			_ = syscall.Kill(pid, sig)
			_ = c.Wait()
			must.Equal(t, c.ProcessState.ExitCode(), 1, &errs)
			must.Contain(t, errs.String(), "interrupted")
			must.Equal(t, r.left(), nil, "what is left")
			// What it has seen is written down.
			_ = must.Get(os.Stat(filepath.Join(r.dir, "out", "results.jsonl")))(t)
		})
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, says string
		cfg        gpusim.Config
		args       []string
		before     func(*rig)
	}{
		{name: "no such GPU", says: `no GPU "3"`, args: []string{"--gpu", "3"}},
		{name: "no NVML", says: "no NVIDIA driver", args: []string{"--nvml-library", "/nonexistent/libnvidia-ml.so.1"}},
		{name: "MIG", says: "MIG", cfg: gpusim.Config{Model: "a100", MIG: true}},
		{name: "MPS runs", says: "process 4711", before: func(r *rig) {
			dir := filepath.Join(r.dir, "proc", "4711")
			must.OK(r.t, errors.Join(os.Mkdir(dir, 0o755),
				os.WriteFile(filepath.Join(dir, "cmdline"), []byte("/usr/bin/nvidia-cuda-mps-control\x00-d\x00"), 0o644)))
		}},
		{name: "in use", says: "in use: process", before: func(r *rig) {
			p := &rlcore.Profile{DurationS: 1e6, PeriodS: 1e6, Series: []rlcore.Use{{GPU: 0.5, MemMiB: 3000}}}
			slot := must.Get(r.state.Device(0).Claim(gpusim.Claimant{UID: os.Getuid()}, p))(r.t)
			r.t.Cleanup(func() { _ = slot.Release() })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.cfg)
			if c.before != nil {
				c.before(r)
			}
			r.env = append(r.env, "PATH=/nonexistent")
			_, errs, status := r.run(c.args...)
			must.Equal(t, status, 3, errs)
			must.Contain(t, errs, c.says)
			out, errs, status := r.run(append(c.args, "--dry-run")...)
			if status != 0 || !strings.Contains(out, "It would refuse: ") || !strings.Contains(out, c.says) {
				t.Errorf("dry run: status %d: %s%s", status, out, errs)
			}
			must.Is(t, must.Err(os.Stat(filepath.Join(r.dir, "out"))), os.ErrNotExist, "a report")
		})
	}
}

func TestWrongCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, gpusim.Config{})
	for _, args := range []string{
		"--duration 1ms", "--duration x", "--kernels compute,compute", "--kernels nosuch", "--nosuch",
		"argument",
	} {
		if _, errs, status := r.run(strings.Fields(args)...); status != 1 || errs == "" {
			t.Errorf("%s: status %d: %s", args, status, errs)
		}
	}
	out, _, status := r.run("--dry-run")
	if status != 0 || strings.Contains(out, "refuse") ||
		!strings.Contains(out, "16 situations for 2m30s, then 6 kernels alone and in 21 pairs for 5m30s") ||
		!strings.Contains(out, "TITAN Xp") {
		t.Errorf("dry run: %d: %s", status, out)
	}
}

// daemons is called by tests that start MPS daemons and their servers.
func daemons(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts daemons")
	}
}
