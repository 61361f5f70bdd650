package main

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/nvidia"
)

// libcuda compiles a library in the driver's place and returns its folder.
func libcuda(t *testing.T) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no C compiler")
	}
	dir := t.TempDir()
	out, err := exec.Command(gcc, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter",
		"-o", filepath.Join(dir, "libcuda.so.1"), "testdata/libcuda.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// talk runs a client of a kernel, gives it commands, each once the one before is answered, and returns the answers. A
// run is stopped after a moment.
func talk(t *testing.T, libraries string, env []string, k *Kernel, commands ...string) (answers []answer) {
	t.Helper()
	c := exec.Command(filepath.Join(bin, "gpucheck"), "client", string(must.Get(json.Marshal(k))(t)))
	c.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+libraries), env...)
	c.Stderr = os.Stderr
	in, out := must.Get(c.StdinPipe())(t), must.Get(c.StdoutPipe())(t)
	must.OK(t, c.Start())
	lines := json.NewDecoder(out)
	for i := range append(commands, "") {
		var a answer
		must.OK(t, lines.Decode(&a))
		answers = append(answers, a)
		if i == len(commands) {
			break
		}
		must.Get(io.WriteString(in, commands[i]+"\n"))(t)
		if strings.HasPrefix(commands[i], "run") {
			time.Sleep(30 * time.Millisecond)
			must.Get(io.WriteString(in, "stop\n"))(t)
		}
	}
	must.OK(t, in.Close(), c.Wait())
	return answers
}

// A client computes what the host checks, takes memory up to its limit, and gets its own fault for good.
func TestAClientComputesWhatTheHostChecks(t *testing.T) {
	t.Parallel()
	got := talk(t, libcuda(t), nil, checker, "run 0.01", "alloc 4096", "fault", "run 0")
	start := got[0]
	if start.UUID != "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f" ||
		start.SMs != 4 || start.CUDA != 12020 || start.TotalMiB != 1024 || start.Failed != nil {
		t.Errorf("at the start: %+v", start)
	}
	if run := got[1]; run.N < 1 || run.Wrong != 0 || !(run.BusyS > 0 && run.BusyS < run.Seconds) || run.Failed != nil {
		t.Errorf("a run: %+v", run)
	}
	full := cudaError{"cuMemAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY"}
	if alloc := got[2]; alloc.HeldMiB != 960 || alloc.Failed == nil || *alloc.Failed != full {
		t.Errorf("an allocation: %+v", alloc)
	}
	for i := 3; i <= 4; i++ {
		if got[i].Failed == nil || got[i].Failed.Code != 700 {
			t.Errorf("after a fault: %+v", got[i])
		}
	}
}

// A driver that compiles for newer cards only gets the kernels for these.
func TestNewerTargets(t *testing.T) {
	t.Parallel()
	stub := libcuda(t)
	for target, failed := range map[string]bool{
		".version 6.4\n.target sm_75\n": false, ".version 7.8\n.target sm_90\n": false, ".target sm_999\n": true,
	} {
		a := talk(t, stub, []string{"CUDA_TEST_TARGET=" + target}, checker)[0]
		if (a.Failed != nil) != failed || failed && a.Failed.Call != "cuModuleLoadData" {
			t.Errorf("%q: %+v", target, a)
		}
	}
}

// Where CUDA refuses, the client says which call and with what code, and ends in order.
func TestRefusedClient(t *testing.T) {
	t.Parallel()
	stub := libcuda(t)
	for _, call := range []string{"cuInit=100", "cuCtxCreate=805"} {
		for i, a := range talk(t, stub, []string{"CUDA_TEST_REFUSES=" + call}, checker, "run 0", "alloc 64", "fault") {
			if a.Failed == nil || fmt.Sprintf("%s=%d", a.Failed.Call, a.Failed.Code) != call || (i == 0) != (a.PID != 0) {
				t.Errorf("%s: answer %d: %+v", call, i, a)
			}
		}
	}
	for _, a := range talk(t, t.TempDir(), nil, checker, "run 0") {
		if a.UUID != "" {
			t.Skip("this machine has a driver")
		}
		must.Contain(t, a.Why, "libcuda.so.1", "without the library: %+v", a)
	}
}

// The driver's own libraries have every function that is called, and say in their way that no driver is loaded.
func TestOwnLibrariesHaveTheFunctions(t *testing.T) {
	t.Parallel()
	for _, d := range nvidia.Fetched(t) {
		f := must.Get(elf.Open(filepath.Join(d.Libraries(t), "libcuda.so.1")))(t)
		var has []string
		for _, s := range must.Get(f.DynamicSymbols())(t) {
			if s.Section != elf.SHN_UNDEF {
				has = append(has, s.Name)
			}
		}
		must.OK(t, f.Close())
		for i := range reflect.TypeFor[cuda]().NumField() {
			if !slices.Contains(has, symbol(i)) {
				t.Errorf("driver %s has no %q", d.Name, symbol(i))
			}
		}
		if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
			continue
		}
		if a := talk(t, d.Libraries(t), nil, checker)[0]; a.Failed == nil || a.Failed.Call != "cuInit" {
			t.Errorf("driver %s: %+v", d.Name, a)
		}
	}
}

// Each kernel finds its work, or has it, and computes for its part of a period.
func TestKernelsFindTheirWork(t *testing.T) {
	t.Parallel()
	stub := libcuda(t)
	for _, c := range []struct {
		kernel       string
		work, memMiB float64
		held, stepMB float64
	}{
		{"narrow", 40, 0, 0, 0},
		{"hungry", 0, 512, 512, 0},
		{"pcie", 2, 0, 64, 2 * 16.777216},
	} {
		k := must.Get(catalogue(nil, []string{c.kernel}))(t)[0]
		k.Period, k.Duty, k.Work, k.MemMiB = 10*time.Millisecond, 0.5, c.work, c.memMiB
		got := talk(t, stub, nil, k, k.run(k.Duty))
		if a := got[0]; a.Failed != nil || a.Work < 1 || a.HeldMiB != c.held || a.StepMB != c.stepMB {
			t.Errorf("%s: %+v", c.kernel, a)
		}
		if a := got[1]; a.Failed != nil || a.N < 1 || a.BusyS <= 0 || a.BusyS > a.Seconds-0.005*float64(a.N-1) {
			t.Errorf("%s: %+v", c.kernel, a)
		}
	}
}
