package nvml

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// objects compiles the simulated GPU's NVML once.
var objects = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "nvml"); err != nil {
		return "", err
	}
	if out, err := exec.Command("../../contrib/testbed/gpusim/nvmlsim/build",
		filepath.Join(dir, "all.o")).CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build: %w\n%s", err, out)
	}
	_, err = link(dir, "lib.so")
	return dir, err
})

// link makes a library, with further arguments for the linker.
func link(dir, name string, args ...string) (string, error) {
	so := filepath.Join(dir, name)
	out, err := exec.Command("gcc", append([]string{"-shared", "-o", so, filepath.Join(dir, "all.o")},
		args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("link: %w\n%s", err, out)
	}
	return so, nil
}

func TestMain(m *testing.M) {
	if so := os.Getenv("NVML_TEST_EVERYTHING"); so != "" {
		os.Exit(everything(so))
	}
	code := m.Run()
	if dir, _ := objects(); dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

func built(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc")
	}
	dir := must.Get(objects())(t)
	return dir
}

// machine makes simulated GPUs and opens them through the real binding.
func machine(t *testing.T, cfg gpusim.Config) (*Library, *gpusim.State) {
	t.Helper()
	dir := built(t)
	path := filepath.Join(t.TempDir(), "state")
	must.OK(t, gpusim.Create(path, cfg))
	st := must.Get(gpusim.Open(path))(t)
	t.Cleanup(func() { _ = st.Close() })
	t.Setenv(gpusim.StateEnv, path)
	lib := must.Get(Open(filepath.Join(dir, "lib.so")))(t)
	t.Cleanup(func() {
		if err := lib.Close(); err != nil {
			t.Error(err)
		}
	})
	return lib, st
}

// run puts an application on a GPU, in a process of its own.
func run(t *testing.T, d *gpusim.Device, c gpusim.Claimant, use rlcore.Use) (pid int) {
	t.Helper()
	c.PID = sleeper(t)
	must.Get(d.Claim(c, &rlcore.Profile{App: "a", DurationS: 1000, PeriodS: 1000, Series: []rlcore.Use{use}}))(t)
	return c.PID
}

// serve puts an MPS server on the GPU.
func serve(t *testing.T, d *gpusim.Device) (pid int) {
	t.Helper()
	pid = sleeper(t)
	must.Get(d.ClaimServer(gpusim.Claimant{PID: pid}))(t)
	return pid
}

// sleeper starts a process that does nothing until the test ends.
func sleeper(t *testing.T) (pid int) {
	t.Helper()
	p := exec.Command("sleep", "1000")
	must.OK(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _, _ = p.Process.Wait() })
	return p.Process.Pid
}

// What MPS can follows from card and driver: the driver's library is what reads the limit of memory.
func TestMPSByDriver(t *testing.T) {
	for _, c := range []struct {
		name        string
		major, cuda int
		want        MPS
	}{
		{"unknown", 0, 0, MPS{MaxClients: 16}},
		{"Pascal, 535", 6, 12020, MPS{MaxClients: 16}},
		{"Volta, 470", 7, 11040, MPS{MaxClients: 48, ThreadPercentage: true, OwnAddresses: true}},
		{"Hopper, 535", 9, 12020, MPS{
			MaxClients: 48, ThreadPercentage: true, OwnAddresses: true,
			MemoryLimit: true,
		}},
		{"Hopper, 555", 9, 12050, MPS{
			MaxClients: 48, ThreadPercentage: true, OwnAddresses: true,
			MemoryLimit: true, MultiUser: true,
		}},
	} {
		must.Equal(t, mpsRules(c.major, c.cuda), c.want, c.name)
	}
}

// Every card has its own matrix.
func TestCapabilities(t *testing.T) {
	all := Answers{}
	for _, s := range Sources {
		all[s.Name] = true
	}
	without := func(a Answers, names ...string) Answers {
		a = maps.Clone(a)
		for _, n := range names {
			a[n] = false
		}
		return a
	}
	volta := without(all, GPM)
	pascal := without(volta, MPSProcesses)
	inMIG := without(volta, Utilisation, ProcessUtilisation, SampleBuffer)
	old, young := MPS{MaxClients: 16},
		MPS{MaxClients: 48, ThreadPercentage: true, MemoryLimit: true, OwnAddresses: true}
	recent := young
	recent.MultiUser, recent.MaxClients = true, 60
	for _, c := range []struct {
		cfg           gpusim.Config
		arch, compute string
		cores         int
		mem, pcie     float64
		mps           MPS
		answers       Answers
	}{
		{gpusim.Config{}, "pascal", "6.1", 3840, 12196, 32000, old, pascal},
		{gpusim.Config{Driver: "590"}, "pascal", "6.1", 3840, 12196, 32000, old, pascal},
		{gpusim.Config{Model: "v100"}, "volta", "7.0", 5120, 16160, 32000, young, volta},
		{gpusim.Config{Model: "a100"}, "ampere", "8.0", 6912, 40960, 64000, young, volta},
		{gpusim.Config{Model: "a100", MIG: true}, "ampere", "8.0", 0, 40960, 64000, young, inMIG},
		{gpusim.Config{Model: "h200"}, "hopper", "9.0", 16896, 143771, 128000, young, all},
		{gpusim.Config{Model: "h200", Driver: "590"}, "hopper", "9.0", 16896, 143771, 128000, recent, all},
	} {
		t.Run(fmt.Sprintf("%s MIG %v driver %s", c.cfg.Model, c.cfg.MIG, c.cfg.Driver), func(t *testing.T) {
			lib, _ := machine(t, c.cfg)
			d := lib.Devices()[0]
			if d.Arch != c.arch || d.Compute != c.compute || d.Cores != c.cores || d.MemMiB != c.mem || d.PCIeMBps != c.pcie {
				t.Errorf("%s %s, %d cores, %v MiB, %v MB/s", d.Arch, d.Compute, d.Cores, d.MemMiB, d.PCIeMBps)
			}
			must.Equal(t, d.MPS, c.mps)
			if !maps.Equal(d.Answers, c.answers) {
				t.Errorf("answers\n%+v, want\n%+v (%v)", d.Answers, c.answers, d.Refusals)
			}
			if d.MIG.Can != (c.cfg.Model == "a100" || c.cfg.Model == "h200") || d.MIG.On != c.cfg.MIG {
				t.Errorf("MIG %+v", d.MIG)
			}
		})
	}
}

// What a GPU doesn't give is said so, by every method.
func TestNotSupported(t *testing.T) {
	lib, _ := machine(t, gpusim.Config{})
	for what, d := range map[string]*Device{"a Titan Xp": &lib.Devices()[0], "a Device of nobody": {}} {
		_, err1 := d.Read("energy")
		_, err2 := d.Read("nonsense")
		_, err3 := d.Activity()
		for i, err := range []error{err1, err2, err3} {
			if !errors.Is(err, ErrNotSupported) {
				t.Errorf("%s: %d: %v", what, i+1, err)
			}
		}
	}
}

// A GPU that NVML gives no handle for keeps its place among the others.
func TestLostBeforeOpen(t *testing.T) {
	lib, st := machine(t, gpusim.Config{Model: "titanxp", GPUs: 3})
	must.OK(t, st.Devices()[1].SetLost(true))
	again := must.Get(Open(lib.path))(t)
	defer func() { must.OK(t, again.Close()) }()
	got := again.Devices()
	if len(got) != 3 || got[0].Lost != "" || got[1].Lost == "" || got[1].Minor != 1 || got[2].Minor != 2 ||
		got[2].UUID != lib.Devices()[2].UUID {
		t.Fatalf("%+v", got)
	}
	if _, err := got[1].Sample(); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	some := []Device{{Minor: -1, Lost: "x"}, {Minor: 3}, {Minor: 0}, {Minor: -1, Lost: "x"}}
	placeLost(some)
	must.Equal(t, [2]int{some[0].Minor, some[3].Minor}, [2]int{1, 2})
}
