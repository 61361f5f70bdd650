package gpusim

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// compiled builds the C library once.
var compiled = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "nvmlsim"); err != nil {
		return "", err
	}
	if out, err := exec.Command("nvmlsim/build", filepath.Join(dir, "lib.so"), "-Werror").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return dir, nil
})

// probeEnv makes this binary the probe of a library.
const probeEnv = "GPUSIM_TEST_PROBE"

func TestMain(m *testing.M) {
	if lib := os.Getenv(probeEnv); lib != "" {
		os.Exit(tell(lib))
	}
	code := m.Run()
	if dir, err := compiled(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// tell prints what a library answers as NVML, a "key value" a line; a call that fails is a "key !code". It returns the
// program's exit status.
func tell(library string) int {
	lib := nvml.New(nvml.WithLibraryPath(library))
	say := func(key string, r nvml.Return, values ...any) {
		if r != nvml.SUCCESS {
			values = []any{fmt.Sprintf("!%d", r)}
		}
		fmt.Println(append([]any{key}, values...)...)
	}
	if r := lib.Init(); r != nvml.SUCCESS {
		say("init", r)
		return 1
	}
	driver, r := lib.SystemGetDriverVersion()
	say("driver", r, driver)
	n, r := lib.DeviceGetCount()
	say("count", r, n)
	for i := range n {
		d, r := lib.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			say(fmt.Sprint(i, ".handle"), r)
			continue
		}
		at := func(key string, r nvml.Return, values ...any) { say(fmt.Sprint(i, ".", key), r, values...) }
		for key, get := range map[string]func() (any, nvml.Return){
			"Name": of(d.GetName), "UUID": of(d.GetUUID), "MinorNumber": of(d.GetMinorNumber), "Architecture": of(d.GetArchitecture),
			"NumGpuCores": of(d.GetNumGpuCores), "MaxPcieLinkGeneration": of(d.GetMaxPcieLinkGeneration), "MaxPcieLinkWidth": of(d.GetMaxPcieLinkWidth),
			"Energy": of(d.GetTotalEnergyConsumption), "PowerUsage": of(d.GetPowerUsage),
		} {
			v, r := get()
			at(key, r, v)
		}
		major, minor, r := d.GetCudaComputeCapability()
		at("Capability", r, fmt.Sprint(major, ".", minor))
		use, r := d.GetUtilizationRates()
		at("Utilization", r, use.Gpu, use.Memory)
		mem, r := d.GetMemoryInfo()
		at("Memory", r, mem.Total>>20, mem.Used>>20, mem.Free>>20)
		for counter, key := range map[nvml.PcieUtilCounter]string{nvml.PCIE_UTIL_TX_BYTES: "Pcie0", nvml.PCIE_UTIL_RX_BYTES: "Pcie1"} {
			v, r := d.GetPcieThroughput(counter)
			at(key, r, v)
		}
		for key, get := range map[string]func() ([]nvml.ProcessInfo, nvml.Return){"Processes": d.GetComputeRunningProcesses, "MPSProcesses": d.GetMPSComputeRunningProcesses} {
			list, r := get()
			var shown []any
			for _, p := range list {
				shown = append(shown, fmt.Sprint(p.Pid, ":", p.UsedGpuMemory>>20))
			}
			at(key, r, shown...)
		}
		samples, r := d.GetProcessUtilization(0)
		var shown []any
		for _, p := range samples {
			shown = append(shown, fmt.Sprint(p.Pid, ":", p.SmUtil))
		}
		at("ProcessUtilization", r, shown...)
	}
	say("shutdown", lib.Shutdown(), 0)
	return 0
}

// of is a getter of anything.
func of[T any](get func() (T, nvml.Return)) func() (any, nvml.Return) {
	return func() (any, nvml.Return) { v, r := get(); return v, r }
}

// probe runs this binary over the state as the probe and returns what it printed, by key.
func probe(t *testing.T, s *State) map[string]string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc")
	}
	dir := must.Get(compiled())(t)
	c := exec.Command("/proc/self/exe")
	c.Env = []string{StateEnv + "=" + s.file.Name(), probeEnv + "=" + filepath.Join(dir, "lib.so")}
	out, err := c.Output()
	var ee *exec.ExitError
	if err != nil && !(errors.As(err, &ee) && ee.ExitCode() == 1) {
		t.Fatalf("probe: %v\n%s", err, out)
	}
	got := map[string]string{}
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		k, v, _ := strings.Cut(sc.Text(), " ")
		got[k] = strings.TrimSpace(v)
	}
	return got
}

func check(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %q, want %q", k, got[k], v)
		}
	}
}

// realTime gives a machine its own clock back: the C library reads it too.
func realTime(t *testing.T, cfg Config) *State {
	s, _ := machine(t, cfg)
	s.clock = monotonic
	return s
}

func TestNVMLTellsWhatIsThere(t *testing.T) {
	s := realTime(t, Config{GPUs: 2, Minors: []int{1, 0}})
	d := s.Device(0)
	check(t, probe(t, s), map[string]string{
		"driver": drivers[defaultDriver].version, "count": "2", "0.Name": "TITAN Xp", "0.UUID": d.UUID(), "1.UUID": s.Device(1).UUID(),
		"0.MinorNumber": "1", "1.MinorNumber": "0", "0.Architecture": "4", "0.Capability": "6.1", "0.NumGpuCores": "3840",
		"0.MaxPcieLinkGeneration": "3", "0.MaxPcieLinkWidth": "16",
		"0.Utilization": "0 0", "0.Memory": "12196 1 12195", "0.PowerUsage": "10000",
		"0.Processes": "", "0.MPSProcesses": "!3", "0.ProcessUtilization": "!6",
		"0.Energy": "!3", "shutdown": "0",
	})
	pid := process(t)
	claim(t, d, Claimant{PID: pid}, steady("a", 1000, rlcore.Use{GPU: .5, Core: .4, MemMiB: 2000, PCIeMBps: 3000}))
	check(t, probe(t, s), map[string]string{
		"0.Utilization": "50 30", "0.Memory": "12196 2001 10195", "0.PowerUsage": "165000",
		"0.Pcie0": "1000000", "0.Pcie1": "2000000",
		"0.Processes": fmt.Sprintf("%d:2000", pid), "0.ProcessUtilization": fmt.Sprintf("%d:50", pid),
		"1.Utilization": "0 0",
	})
	kill(t, pid)
	check(t, probe(t, s), map[string]string{
		"0.Utilization": "0 0", "0.Memory": "12196 1 12195", "0.PowerUsage": "10000", "0.Processes": "",
	})
}

// Before Volta the server stands for its clients, later they are seen.
func TestNVMLUnderMPS(t *testing.T) {
	for _, model := range []string{"titanxp", "v100"} {
		s := realTime(t, Config{Model: model})
		d := s.Device(0)
		server, a, b := process(t), process(t), process(t)
		must.Get(d.ClaimServer(Claimant{PID: server}))(t)
		claim(t, d, Claimant{PID: a, Server: server}, steady("a", 1000, rlcore.Use{GPU: .2, Core: .1, MemMiB: 1000}))
		claim(t, d, Claimant{PID: b, Server: server}, steady("b", 1000, rlcore.Use{GPU: .3, Core: .1, MemMiB: 2000}))
		got := probe(t, s)
		switch model {
		case "titanxp":
			check(t, got, map[string]string{
				"0.Processes":    fmt.Sprintf("%d:3025", server),
				"0.MPSProcesses": "!3", "0.Memory": "12196 3026 9170",
			})
			if u := got["0.ProcessUtilization"]; !strings.HasPrefix(u, fmt.Sprintf("%d:", server)) || strings.Contains(u, " ") {
				t.Errorf("process utilisation %q", u)
			}
		case "v100":
			check(t, got, map[string]string{
				"0.Processes":    fmt.Sprintf("%d:30 %d:1000 %d:2000", server, a, b),
				"0.MPSProcesses": fmt.Sprintf("%d:1000 %d:2000", a, b),
			})
			if strings.HasPrefix(got["0.Energy"], "!") {
				t.Errorf("energy %q", got["0.Energy"])
			}
		}
	}
}

func TestNVMLFaults(t *testing.T) {
	s := realTime(t, Config{Model: "h200"})
	d := s.Device(0)
	set := func(figure, mode string) {
		t.Helper()
		must.OK(t, d.SetFault(figure, mode))
	}
	set("utilization", "return=999")
	set("memory", "huge")
	set("power", "zero")
	set("energy", "backwards")
	set("processes", "return=3")
	got := probe(t, s)
	check(t, got, map[string]string{
		"0.Utilization": "!999", "0.PowerUsage": "0", "0.Processes": "!3",
		"0.Memory": "143771 17592186044415 0",
	})
	var first, second int64
	_, _ = fmt.Sscan(got["0.Energy"], &first)
	time.Sleep(5 * time.Millisecond)
	_, _ = fmt.Sscan(probe(t, s)["0.Energy"], &second)
	if first == 0 || second >= first {
		t.Errorf("energy went from %d to %d", first, second)
	}
	set("all", "none")
	check(t, probe(t, s), map[string]string{"0.Utilization": "0 0", "0.PowerUsage": "75000"})
	must.OK(t, d.SetLost(true))
	check(t, probe(t, s), map[string]string{"0.handle": "!15", "count": "1"})
	if _, err := d.Claim(Claimant{}, steady("a", 1, rlcore.Use{})); !errors.Is(err, ErrLost) {
		t.Errorf("claim on a lost GPU: %v", err)
	}
	for _, bad := range [][2]string{{"utilization", "sideways"}, {"utilization", "return"}, {"utilization", "return=x"}, {"nothing", "zero"}, {"power", "zero=1"}} {
		if err := d.SetFault(bad[0], bad[1]); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}

// Whatever bytes the file has, the library answers or refuses; it doesn't bring
// its process down.
func TestNVMLOnADamagedState(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 40 {
		s := realTime(t, Config{})
		d := s.Device(0)
		claim(t, d, Claimant{}, steady("a", 1000, rlcore.Use{GPU: .5, MemMiB: 100}))
		interesting := headerSize + 14216 + 200
		for range 1 + round {
			s.mem[rnd.IntN(interesting)] = byte(rnd.UintN(256))
		}
		probe(t, s)
	}
	s := realTime(t, Config{})
	must.OK(t, os.Truncate(s.file.Name(), headerSize+100))
	check(t, probe(t, s), map[string]string{"init": "!9"})
	must.OK(t, os.WriteFile(s.file.Name(), []byte("hello"), 0o600))
	check(t, probe(t, s), map[string]string{"init": "!9"})
}
