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

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/nvidia"
)

// sample is what a GPU does at a moment.
type sample struct{ GPU, MemMiB, PCIeMBps, PowerW float64 }

// read reads every figure of GPU i. It returns what fails, by name.
func read(lib *Library, i int) (s sample, fails map[string]error) {
	d := &lib.Devices()[i]
	fails = map[string]error{}
	fail := func(name string, err error) {
		if err != nil {
			fails[name] = err
		}
	}
	var err error
	s.GPU, _, err = d.Utilisation()
	fail("utilization", err)
	s.MemMiB, err = d.Memory()
	fail("memory", err)
	s.PCIeMBps, err = d.PCIe()
	fail("pcie-throughput", err)
	s.PowerW, err = d.Power()
	fail("power", err)
	_, err = d.Processes()
	fail("processes", err)
	_, err = d.ProcessUtilisation(time.Time{})
	fail("process-utilization", err)
	if d.gpu != nil {
		d.gpu.seen = Activity{} // of another reading: this one asks the driver
	}
	if _, err = d.Activity(); errors.Is(err, ErrNotYet) {
		time.Sleep(time.Millisecond)
		_, err = d.Activity()
	}
	fail("gpm", err)
	return s, fails
}

// Whatever NVML says, each reading is right, an error, or a zero that may be
// true; and a figure that lies doesn't spoil another.
func TestNoLieOfNVMLIsBelieved(t *testing.T) {
	lib, st := machine(t, gpusim.Config{Model: "h200"})
	sim := st.Device(0)
	run(t, sim, gpusim.Claimant{Server: serve(t, sim)}, use)
	d := &lib.Devices()[0]
	// The lies for which a figure's reading fails. Others are zeros that may be true, or leave out what isn't of this
	// century.
	fails := map[string][]string{
		"utilization": {"return=999", "huge", "backwards"}, "memory": {"return=999", "huge", "zero"}, // no card has none
		"pcie-throughput": {"return=999", "huge", "backwards"}, "power": {"return=999", "huge", "backwards"},
		"processes": {"return=999", "huge"}, "process-utilization": {"return=999"},
		"gpm": {"return=999", "huge", "backwards"},
	}
	for figure, modes := range fails {
		for _, mode := range []string{"return=999", "huge", "zero", "backwards"} {
			lie := figure + " " + mode
			must.OK(t, sim.SetFault(figure, mode))
			s, got := read(lib, 0)
			must.OK(t, sim.SetFault(figure, "none"))
			for name, err := range got {
				if name != figure || mode != "return=999" && !errors.Is(err, ErrImplausible) {
					t.Errorf("%s: %s: %v", lie, name, err)
				}
			}
			must.Equal(t, len(got) > 0, slices.Contains(modes, mode), lie)
			if s.GPU < 0 || s.GPU > 1 || s.MemMiB < 0 || s.MemMiB > d.MemMiB || s.PCIeMBps > d.PCIeMBps || s.PowerW > mostPower {
				t.Errorf("%s: %+v", lie, s)
			}
			if s, got := read(lib, 0); len(got) > 0 || s.GPU == 0 || s.PCIeMBps == 0 || s.PowerW == 0 {
				t.Errorf("after %s: %+v %v", lie, s, got)
			}
		}
	}
}

// A GPU that is gone says so at every reading, and when it is back it is read. One that NVML has lost before the library
// is opened keeps its place among the others.
func TestALostGPUSaysSo(t *testing.T) {
	lib, st := machine(t, gpusim.Config{Model: "h200", GPUs: 3})
	must.OK(t, st.Device(1).SetLost(true))
	_, fails := read(lib, 1)
	must.Equal(t, len(fails), 7)
	for name, err := range fails {
		must.Equal(t, errors.Is(err, ErrLost), true, "%s: %v", name, err)
	}
	again := must.Get(Open(lib.path))(t)
	defer func() { must.OK(t, again.Close()) }()
	for i, d := range again.Devices() {
		must.Equal(t, [2]int{d.Index, d.Minor}, [2]int{i, i})
		must.Equal(t, d.UUID == lib.Devices()[i].UUID && d.Lost == "", i != 1)
	}
	for i, lost := range []bool{true, false} {
		must.OK(t, st.Device(1).SetLost(lost))
		_, fails := read(lib, i)
		must.Equal(t, fails, nil, "the other GPU, and one that is back")
	}
	some := []Device{{Minor: -1, Lost: "x"}, {Minor: 3}, {Minor: 0}, {Minor: -1, Lost: "x"}}
	placeLost(some)
	must.Equal(t, [2]int{some[0].Minor, some[3].Minor}, [2]int{1, 2})
}

// A figure that fails while the library is opened isn't given up for good, one that the card lacks is.
func TestFailureAtOpen(t *testing.T) {
	first, st := machine(t, gpusim.Config{Model: "h200"})
	for figure, mode := range map[string]string{
		"power": "return=999", "process-utilization": "return=3", "memory": "huge",
		"mig": "return=999", "arch": "huge",
	} {
		must.OK(t, st.Device(0).SetFault(figure, mode))
	}
	lib := must.Get(Open(first.path))(t)
	defer lib.Close()
	d := &lib.Devices()[0]
	if !d.Answers[Power] || d.Refusals["power"] == "" || d.Answers[ProcessUtilisation] ||
		d.Refusals[ProcessUtilisation] == "" {
		t.Errorf("%+v %v", d.Answers, d.Refusals)
	}
	if d.Compute != "" || d.MPS.MaxClients != 16 || d.MIG.Can {
		t.Errorf("%+v", d.Capabilities)
	}
	must.OK(t, st.Device(0).SetFault("all", "none"))
	must.Equal(t, must.Get(d.Power())(t) > 0, true)
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

// everything calls all there is of a library, and tells what its GPUs give.
func everything(lib *Library) (answers string, err error) {
	for i := range lib.Devices() {
		d := &lib.Devices()[i]
		answers += fmt.Sprintln(d.Answers)
		_, _ = read(lib, i)
		rerr := lib.Release()
		_, aerr := lib.Acquire()
		if err := errors.Join(rerr, aerr); err != nil {
			return answers, err
		}
		for k := range d.MIG.Instances {
			in := d.Instance(k)
			_, _ = in.Memory()
			_, _ = in.Processes()
			_, _ = in.Activity()
			_, _ = in.Activity()
		}
	}
	return answers, nil
}

// alone does that in a process of its own, with a library whose functions are those that a script for the linker names:
// the call of a function that isn't there ends the process, and the loader binds by name once and for all.
func alone(t *testing.T, name, script string) (answers string) {
	file := filepath.Join(t.TempDir(), name)
	err := os.WriteFile(file, []byte(script), 0o600)
	so, lerr := link(must.Get(objects())(t), name+".so", "-Wl,--version-script="+file)
	defer os.Remove(so)
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), ofItsOwn+"="+so)
	out, rerr := c.CombinedOutput()
	if err := errors.Join(err, lerr, rerr); err != nil {
		t.Errorf("without %s: %v\n%s", name, err, out)
	}
	return string(out)
}

// needed are the functions no driver lacks: without them there is no NVML.
var needed = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2",
}

// An old driver's library lacks functions: whichever it is, what is missing isn't called.
func TestMissingSymbols(t *testing.T) {
	lib, _ := machine(t, gpusim.Config{Model: "h200", Instances: []string{"1g.18gb"}})
	must.Get(everything(lib))(t)
	used := map[string]bool{}
	for symbol := range lib.has {
		used[version.ReplaceAllString(symbol, "")] = true
	}
	if len(used) < 25 {
		t.Fatalf("only %d functions of NVML are asked for: %v", len(used), used)
	}
	var wg sync.WaitGroup
	free := make(chan struct{}, 3)
	for sym := range used { // neither it nor its later versions
		wg.Go(func() {
			free <- struct{}{}
			alone(t, sym, "{ local: "+sym+"; "+sym+"_v*; };")
			<-free
		})
	}
	wg.Wait()
	out := alone(t, "all", "{ global: "+strings.Join(needed, "; ")+"; local: *; };")
	must.Equal(t, strings.Contains(out, "false") && !strings.Contains(out, "true"), true, "nothing is there: %s", out)
	t.Run("NVIDIA's own libraries", func(t *testing.T) {
		for _, d := range nvidia.Fetched(t) {
			f := must.Get(elf.Open(filepath.Join(d.Libraries(t), "libnvidia-ml.so.1")))(t)
			var has []string
			for _, s := range must.Get(f.DynamicSymbols())(t) {
				if s.Section != elf.SHN_UNDEF && strings.HasPrefix(s.Name, "nvml") {
					has = append(has, s.Name)
				}
			}
			must.OK(t, f.Close())
			for _, sym := range needed {
				must.Equal(t, slices.Contains(has, sym), true, "driver %s has %s", d.Name, sym)
			}
			alone(t, d.Name, "{ global: "+strings.Join(has, "; ")+"; local: *; };")
		}
	})
}

// version is the end of a function's name.
var version = regexp.MustCompile(`_v\d$`)
