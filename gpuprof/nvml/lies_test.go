package nvml

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/nvidia"
)

// The figures of call's errors, in order.
var figureNames = []string{"memory", "processes", "process-utilization", "samples", "gpm"}

// Whatever NVML says, each reading is right, an error, or a zero that may be
// true; and a figure that lies doesn't spoil another.
func TestLies(t *testing.T) {
	lib, st := machine(t, gpusim.Config{Model: "h200"})
	sim := st.Device(0)
	server := serve(t, sim)
	run(t, sim, gpusim.Claimant{Server: server}, use)
	set := func(figure, mode string) {
		t.Helper()
		must.OK(t, sim.SetFault(figure, mode))
	}
	d := &lib.Devices()[0]
	for _, c := range []struct {
		figure, mode string
		at           int   // in figureNames; −1 = none fails
		want         error // nil: any
	}{
		{"utilization", "return=999", 0, nil},
		{"utilization", "huge", 0, ErrImplausible},
		{"utilization", "backwards", 0, ErrImplausible},
		{"utilization", "zero", -1, nil},
		{"memory", "return=10", 0, nil},
		{"memory", "huge", 0, ErrImplausible},
		{"memory", "zero", 0, ErrImplausible}, // no card has none
		{"pcie-throughput", "return=999", -1, nil},
		{"pcie-throughput", "huge", -1, nil},
		{"pcie-throughput", "zero", -1, nil},
		{"power", "return=999", -1, nil},
		{"power", "huge", -1, nil},
		{"power", "backwards", -1, nil},
		{"processes", "return=999", 1, nil},
		{"processes", "huge", 1, ErrImplausible},
		{"processes", "zero", -1, nil},
		{"process-utilization", "return=999", 2, nil},
		{"process-utilization", "huge", -1, nil}, // its time is of no century: no sample
		{"process-utilization", "zero", -1, nil},
		{"samples", "return=999", 3, nil},
		{"samples", "huge", -1, nil},
		{"samples", "zero", -1, nil},
		{"gpm", "return=999", 4, nil},
		{"gpm", "huge", 4, ErrImplausible},
		{"gpm", "zero", -1, nil},
	} {
		set(c.figure, c.mode)
		s, errs := call(lib, 0)
		set(c.figure, "none")
		for i, err := range errs {
			switch {
			case i != c.at && err != nil:
				t.Errorf("%s %s: %s: %v", c.figure, c.mode, figureNames[i], err)
			case i == c.at && (err == nil || c.want != nil && !errors.Is(err, c.want)):
				t.Errorf("%s %s: %v", c.figure, c.mode, err)
			}
		}
		if s.GPU < 0 || s.GPU > 1 || s.MemMiB < 0 || s.MemMiB > d.MemMiB || s.PCIeMBps > d.PCIeMBps || s.PowerW > mostPower {
			t.Errorf("%s %s: %+v", c.figure, c.mode, s)
		}
		if bad := c.mode != "zero"; bad && c.figure == "pcie-throughput" && s.PCIeMBps != 0 ||
			bad && c.figure == "power" && c.mode != "backwards" && s.PowerW != 0 {
			t.Errorf("%s %s: %+v", c.figure, c.mode, s)
		}
		if s, errs := call(lib, 0); errs[0] != nil || errs[1] != nil || s.GPU == 0 || s.PCIeMBps == 0 || s.PowerW == 0 {
			t.Errorf("after %s %s: %+v %v", c.figure, c.mode, s, errs)
		}
	}
}

// A GPU that is gone says so at every reading, and when it is back it is read.
func TestLost(t *testing.T) {
	lib, st := machine(t, gpusim.Config{Model: "h200", GPUs: 2})
	must.OK(t, st.Device(1).SetLost(true))
	_, errs := call(lib, 1)
	for i, err := range errs {
		if !errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", figureNames[i], err)
		}
	}
	if _, errs := call(lib, 0); errs[0] != nil || errs[2] != nil {
		t.Errorf("the other GPU: %v", errs)
	}
	must.OK(t, st.Device(1).SetLost(false))
	if _, errs := call(lib, 1); errs[0] != nil || errs[1] != nil || errs[2] != nil {
		t.Errorf("back again: %v", errs)
	}
}

// A figure that fails while the library is opened isn't given up for good, one
// that the card lacks is.
func TestFailureAtOpen(t *testing.T) {
	dir := built(t)
	path := t.TempDir() + "/state"
	must.OK(t, gpusim.Create(path, gpusim.Config{Model: "h200"}))
	st := must.Get(gpusim.Open(path))(t)
	defer st.Close()
	for figure, mode := range map[string]string{
		"power": "return=999", "process-utilization": "return=3", "memory": "huge",
		"mig": "return=999", "cores": "huge", "arch": "huge",
	} {
		must.OK(t, st.Device(0).SetFault(figure, mode))
	}
	t.Setenv(gpusim.StateEnv, path)
	lib := must.Get(Open(dir + "/lib.so"))(t)
	defer lib.Close()
	d := &lib.Devices()[0]
	if !d.Answers[Power] || d.Refusals["power"] == "" || d.Answers[ProcessUtilisation] ||
		d.Refusals[ProcessUtilisation] == "" {
		t.Errorf("%+v %v", d.Answers, d.Refusals)
	}
	if d.Arch != "" || d.Compute != "" || d.Cores != 0 || d.MPS.MaxClients != 16 || d.MIG.Can {
		t.Errorf("%+v", d.Capabilities)
	}
	must.OK(t, st.Device(0).SetFault("all", "none"))
	if s, err := lib.Devices()[0].Sample(); err != nil || s.PowerW == 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

func FuzzShare(f *testing.F) {
	for _, v := range []float64{0, 100, 103, 4e9, -1} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, percent float64) {
		v, ok := share(percent)
		if !(v >= 0 && v <= 1) || ok != (percent >= 0 && percent <= 105) {
			t.Errorf("%v: %v %v", percent, v, ok)
		}
	})
}

// everything calls all there is of the library at so, and is a program's exit
// status. A call of a function that isn't there ends the process before.
func everything(so string) int {
	lib, err := Open(so)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer lib.Close()
	for i := range lib.Devices() {
		d := &lib.Devices()[i]
		_, errs := call(lib, i)
		for _, err := range errs {
			if err != nil && !errors.Is(err, ErrNotSupported) {
				fmt.Println(err)
			}
		}
		_ = d.LimitGroup("/nowhere", 1000)
		rerr := lib.Release()
		if _, err := lib.Acquire(); errors.Join(rerr, err) != nil {
			fmt.Println(rerr, err)
			return 1
		}
		for k := range d.MIG.Instances {
			in := d.Instance(k)
			_, _ = in.Read(Memory)
			_, _ = in.Processes()
			_, _ = in.Activity()
			_, _ = in.Activity()
			_ = in.LimitGroup("/nowhere", 1000)
		}
		fmt.Println(i, d.UUID, d.Answers)
	}
	fmt.Println("done")
	return 0
}

// call reads every figure of GPU i.
func call(lib *Library, i int) (Sample, []error) {
	d := &lib.Devices()[i]
	s, err1 := d.Sample()
	_, err2 := d.Processes()
	_, err3 := d.ProcessUtilisation(time.Time{})
	_, err4 := d.Samples(time.Time{})
	d.gpu.seen = Activity{} // of another call: this one reads
	_, err5 := d.Activity()
	if errors.Is(err5, ErrNotYet) {
		time.Sleep(time.Millisecond)
		_, err5 = d.Activity()
	}
	return s, []error{err1, err2, err3, err4, err5}
}

// needed are the functions no driver lacks: without them there is no NVML.
var needed = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2",
}

// An old driver's library lacks functions: whichever it is, what is missing isn't
// called. The linker of each process binds by name once and for all, so each
// library has a process of its own.
func TestMissingSymbols(t *testing.T) {
	dir := built(t)
	state := filepath.Join(t.TempDir(), "state")
	must.OK(t, gpusim.Create(state, gpusim.Config{Model: "h200", Instances: []string{"1g.18gb"}}))
	used := symbolsInUse(t)
	if len(used) < 25 {
		t.Fatalf("only %d functions of NVML found in the package", len(used))
	}
	try := func(name, script string) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Error(err)
			return ""
		}
		so, err := link(dir, name+".so", "-Wl,--version-script="+file)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer os.Remove(so)
		exe, err := os.Executable()
		if err != nil {
			t.Error(err)
			return ""
		}
		c := exec.Command(exe)
		c.Env = append(os.Environ(), "NVML_TEST_EVERYTHING="+so, gpusim.StateEnv+"="+state)
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "done") {
			t.Errorf("without %s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	var wg sync.WaitGroup
	free := make(chan struct{}, 3)
	for _, sym := range used {
		if slices.Contains(needed, sym) || slices.Contains(needed, sym+"_v2") {
			continue
		}
		// Neither it nor its later versions.
		wg.Go(func() {
			free <- struct{}{}
			try(sym, "{ local: "+sym+"; "+sym+"_v*; };")
			<-free
		})
	}
	wg.Wait()
	// The functions that NVIDIA's own libraries have.
	for _, d := range drivers(t) {
		has := functions(t, filepath.Join(d.Libraries(t), "libnvidia-ml.so.1"))
		for _, sym := range needed {
			if !slices.Contains(has, sym) {
				t.Errorf("driver %s has no %s", d.Name, sym)
			}
		}
		try(d.Name, "{ global: "+strings.Join(has, "; ")+"; local: *; };")
	}
	out := try("all", "{ global: "+strings.Join(needed, "; ")+"; local: *; };")
	if want := " " + fmt.Sprint(Answers{}) + "\n"; !strings.Contains(out, want) {
		t.Errorf("nothing is there, and yet: %s", out)
	}
}

// drivers are NVIDIA's own that are here; a test goes on without.
func drivers(t *testing.T) (out []nvidia.Driver) {
	t.Run("NVIDIA's own libraries", func(t *testing.T) { out = nvidia.Fetched(t) })
	return out
}

// functions are the functions of NVML's that a library exports.
func functions(t *testing.T, library string) (out []string) {
	t.Helper()
	f := must.Get(elf.Open(library))(t)
	defer f.Close()
	for _, s := range must.Get(f.DynamicSymbols())(t) {
		if s.Section != elf.SHN_UNDEF && strings.HasPrefix(s.Name, "nvml") {
			out = append(out, s.Name)
		}
	}
	return out
}

// Without a loaded driver NVIDIA's own libraries say so, and so does this package.
func TestOwnLibrariesWithoutADriver(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Skip("a driver is loaded here")
	}
	exe := must.Get(os.Executable())(t)
	for _, d := range nvidia.Fetched(t) {
		c := exec.Command(exe)
		c.Env = append(os.Environ(), "NVML_TEST_EVERYTHING="+filepath.Join(d.Libraries(t), "libnvidia-ml.so.1"))
		out, _ := c.CombinedOutput()
		if want := ErrNone.Error() + ": " + whyNone[gonvml.ERROR_DRIVER_NOT_LOADED] + "\n"; string(out) != want ||
			c.ProcessState.ExitCode() != 1 {
			t.Errorf("driver %s: status %v: %s", d.Name, c.ProcessState, out)
		}
	}
}

// symbolsInUse are the functions that this package calls, by the names under
// which it asks whether they are there.
func symbolsInUse(t *testing.T) []string {
	t.Helper()
	files := must.Get(filepath.Glob("*.go"))(t)
	var out []string
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		src := must.Get(os.ReadFile(f))(t)
		for _, m := range regexp.MustCompile(`"(nvml[A-Z]\w+?)(_v\d)?"`).FindAllStringSubmatch(string(src), -1) {
			if !slices.Contains(out, m[1]) {
				out = append(out, m[1])
			}
		}
	}
	return out
}
