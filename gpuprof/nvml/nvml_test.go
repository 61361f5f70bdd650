package nvml

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// ofItsOwn names the library of which this process calls everything.
const ofItsOwn = "NVML_TEST_EVERYTHING"

func TestMain(m *testing.M) {
	if so := os.Getenv(ofItsOwn); so != "" {
		lib, err := Open(so)
		if err == nil {
			var answers string
			answers, err = everything(lib)
			fmt.Print(answers)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if dir, _ := objects(); dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// machine makes simulated GPUs and opens them through the real binding.
func machine(t *testing.T, cfg gpusim.Config) (*Library, *gpusim.State) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc")
	}
	dir := must.Get(objects())(t)
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

// Every card has its own matrix; what MPS can follows from card and driver.
func TestCapabilities(t *testing.T) {
	without := func(names ...string) Answers {
		a := Answers{}
		for _, s := range Sources {
			a[s.Name] = !slices.Contains(names, s.Name)
		}
		return a
	}
	all, volta, pascal := without(), without(GPM), without(GPM, MPSProcesses)
	inMIG := without(GPM, Utilisation, ProcessUtilisation)
	old, oldDriver := MPS{MaxClients: 16}, MPS{MaxClients: 48, OwnAddresses: true}
	young := oldDriver
	young.MemoryLimit = true
	recent := young
	recent.MaxClients = 60
	for _, c := range []struct {
		cfg     gpusim.Config
		card    string // compute capability, MiB, MB/s
		mps     MPS
		answers Answers
	}{
		{gpusim.Config{}, "6.1 12196 32000", old, pascal},
		{gpusim.Config{Driver: "590"}, "6.1 12196 32000", old, pascal},
		{gpusim.Config{Model: "v100"}, "7.0 16160 32000", young, volta},
		{gpusim.Config{Model: "v100", Driver: "470"}, "7.0 16160 32000", oldDriver, volta},
		{gpusim.Config{Model: "a100"}, "8.0 40340 64000", young, volta},
		{gpusim.Config{Model: "a100", MIG: true}, "8.0 40340 64000", young, inMIG},
		{gpusim.Config{Model: "h200"}, "9.0 143071 128000", young, all},
		{gpusim.Config{Model: "h200", Driver: "555"}, "9.0 143071 128000", young, all},
		{gpusim.Config{Model: "h200", Driver: "590"}, "9.0 143071 128000", recent, all},
		{gpusim.Config{Model: "gh200"}, "9.0 97320 128000", young, without(Memory)},
	} {
		t.Run(fmt.Sprintf("%s MIG %v driver %s", c.cfg.Model, c.cfg.MIG, c.cfg.Driver), func(t *testing.T) {
			lib, _ := machine(t, c.cfg)
			d := lib.Devices()[0]
			must.Equal(t, fmt.Sprintln(d.Compute, d.MemMiB, d.PCIeMBps), c.card+"\n")
			must.Equal(t, d.MPS, c.mps)
			must.Equal(t, d.Answers, c.answers, d.Refusals)
			can := c.cfg.Model == "a100" || c.cfg.Model == "h200"
			must.Equal(t, [2]bool{d.MIG.Can, d.MIG.On}, [2]bool{can, c.cfg.MIG}, "MIG")
		})
	}
	must.Equal(t, mpsRules(0, 0), old, "an unknown card")
}

// What a GPU doesn't give is said so, by every method.
func TestNotSupported(t *testing.T) {
	lib, _ := machine(t, gpusim.Config{})
	for what, d := range map[string]*Device{"a Titan Xp": &lib.Devices()[0], "a Device of nobody": {}} {
		must.Is(t, must.Err(d.Activity()), ErrNotSupported, what)
	}
}
