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

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// compiled builds the C library and the probe once.
var compiled = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "nvmlsim"); err != nil {
		return "", err
	}
	src, err := filepath.Glob("nvmlsim/*.c")
	if err != nil {
		return "", err
	}
	lib := append([]string{"-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"}, src...)
	for _, args := range [][]string{
		append(lib, "-o", filepath.Join(dir, "lib.so")),
		append(lib, "-DNVMLSIM_OLD", "-o", filepath.Join(dir, "old.so")),
		{"-O1", "-Wall", "-o", filepath.Join(dir, "probe"), "testdata/probe.c", "-ldl"},
	} {
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("gcc %v: %w\n%s", args, err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := compiled(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// probe runs the C program over the state and returns what it printed, by key.
func probe(t *testing.T, s *State, lib string, args ...string) map[string]string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc")
	}
	dir, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(filepath.Join(dir, "probe"), append([]string{filepath.Join(dir, lib)}, args...)...)
	c.Env = []string{StateEnv + "=" + s.file.Name()}
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
	check(t, probe(t, s, "lib.so"), map[string]string{
		"driver": driverVersion, "count": "2", "0.Name": "TITAN Xp", "0.UUID": d.UUID(), "1.UUID": s.Device(1).UUID(),
		"0.MinorNumber": "1", "1.MinorNumber": "0", "0.Architecture": "4", "0.Capability": "6.1", "0.NumGpuCores": "3840",
		"0.CurrPcieLinkGeneration": "3", "0.CurrPcieLinkWidth": "16", "0.MemoryBusWidth": "384",
		"0.Pci": "00000000:01:00.0 1b0210de", "1.Pci": "00000000:21:00.0 1b0210de",
		"0.Utilization": "0 0", "0.Memory": "12196 1 12195", "0.PowerUsage": "10000", "0.Temperature": "27",
		"0.ComputeRunningProcesses_v3": "", "0.MPSComputeRunningProcesses_v3": "!3", "0.ProcessUtilization": "!6",
		"0.Energy": "!3", "0.Unsupported": "3", "bogus": "handle 2", "shutdown": "0", "after": "shutdown 1",
	})
	pid := process(t)
	claim(t, d, Claimant{PID: pid}, steady("a", 1000, rlcore.Use{GPU: .5, Core: .4, MemMiB: 2000, PCIeMBps: 3000}))
	check(t, probe(t, s, "lib.so"), map[string]string{
		"0.Utilization": "50 30", "0.Memory": "12196 2001 10195", "0.PowerUsage": "165000",
		"0.Pcie0": "1000000", "0.Pcie1": "2000000",
		"0.ComputeRunningProcesses_v3": fmt.Sprintf("%d:2000", pid), "0.ProcessUtilization": fmt.Sprintf("%d:50", pid),
		"1.Utilization": "0 0",
	})
	kill(t, pid)
	check(t, probe(t, s, "lib.so"), map[string]string{
		"0.Utilization": "0 0", "0.Memory": "12196 1 12195", "0.PowerUsage": "10000", "0.ComputeRunningProcesses_v3": "",
	})
}

// Before Volta the server stands for its clients, later they are seen.
func TestNVMLUnderMPS(t *testing.T) {
	for _, model := range []string{"titanxp", "v100"} {
		s := realTime(t, Config{Model: model})
		d := s.Device(0)
		server, a, b := process(t), process(t), process(t)
		if _, err := d.ClaimServer(Claimant{PID: server}); err != nil {
			t.Fatal(err)
		}
		claim(t, d, Claimant{PID: a, Server: server}, steady("a", 1000, rlcore.Use{GPU: .2, Core: .1, MemMiB: 1000}))
		claim(t, d, Claimant{PID: b, Server: server}, steady("b", 1000, rlcore.Use{GPU: .3, Core: .1, MemMiB: 2000}))
		got := probe(t, s, "lib.so")
		switch model {
		case "titanxp":
			check(t, got, map[string]string{
				"0.ComputeRunningProcesses_v3":    fmt.Sprintf("%d:3025", server),
				"0.MPSComputeRunningProcesses_v3": "!3", "0.Memory": "12196 3026 9170",
			})
			if u := got["0.ProcessUtilization"]; !strings.HasPrefix(u, fmt.Sprintf("%d:", server)) || strings.Contains(u, " ") {
				t.Errorf("process utilisation %q", u)
			}
		case "v100":
			check(t, got, map[string]string{
				"0.ComputeRunningProcesses_v3":    fmt.Sprintf("%d:30 %d:1000 %d:2000", server, a, b),
				"0.MPSComputeRunningProcesses_v3": fmt.Sprintf("%d:1000 %d:2000", a, b),
			})
			if strings.HasPrefix(got["0.Energy"], "!") {
				t.Errorf("energy %q", got["0.Energy"])
			}
		}
	}
}

func TestNVMLAccountingModeIsRootsToSet(t *testing.T) {
	s := realTime(t, Config{})
	want := map[bool]string{true: "0", false: "4"}[os.Getuid() == 0]
	check(t, probe(t, s, "lib.so", "write"), map[string]string{"0.SetAccounting": want, "0.AccountingMode": map[string]string{"0": "1", "4": "0"}[want]})
}

func TestNVMLFaults(t *testing.T) {
	s := realTime(t, Config{Model: "h200"})
	d := s.Device(0)
	set := func(figure, mode string) {
		t.Helper()
		if err := d.SetFault(figure, mode); err != nil {
			t.Fatal(err)
		}
	}
	set("utilization", "return=999")
	set("memory", "huge")
	set("power", "zero")
	set("energy", "backwards")
	set("processes", "return=3")
	set("temperature", "return=15")
	got := probe(t, s, "lib.so")
	check(t, got, map[string]string{
		"0.Utilization": "!999", "0.PowerUsage": "0", "0.ComputeRunningProcesses_v3": "!3", "0.Temperature": "!15",
		"0.Memory": "143771 17592186044415 0",
	})
	var first, second int64
	_, _ = fmt.Sscan(got["0.Energy"], &first)
	time.Sleep(5 * time.Millisecond)
	_, _ = fmt.Sscan(probe(t, s, "lib.so")["0.Energy"], &second)
	if first == 0 || second >= first {
		t.Errorf("energy went from %d to %d", first, second)
	}
	set("all", "none")
	check(t, probe(t, s, "lib.so"), map[string]string{"0.Utilization": "0 0", "0.PowerUsage": "75000"})
	if err := d.SetLost(true); err != nil {
		t.Fatal(err)
	}
	check(t, probe(t, s, "lib.so"), map[string]string{"0.handle": "!15", "count": "1"})
	if _, err := d.Claim(Claimant{}, steady("a", 1, rlcore.Use{})); !errors.Is(err, ErrLost) {
		t.Errorf("claim on a lost GPU: %v", err)
	}
	for _, bad := range [][2]string{{"utilization", "sideways"}, {"utilization", "return"}, {"utilization", "return=x"}, {"nothing", "zero"}, {"power", "zero=1"}} {
		if err := d.SetFault(bad[0], bad[1]); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}

// A driver that knows less: what is missing is missing, the rest answers.
func TestNVMLOfAnOldDriver(t *testing.T) {
	s := realTime(t, Config{})
	got := probe(t, s, "old.so")
	check(t, got, map[string]string{"nvmlDeviceGetFanSpeed": "missing", "0.Utilization": "0 0"})
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
		probe(t, s, "lib.so", "write")
	}
	s := realTime(t, Config{})
	if err := os.Truncate(s.file.Name(), headerSize+100); err != nil {
		t.Fatal(err)
	}
	check(t, probe(t, s, "lib.so"), map[string]string{"init": "!9"})
	if err := os.WriteFile(s.file.Name(), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(t, probe(t, s, "lib.so"), map[string]string{"init": "!9"})
}
