package main

import (
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

// info runs the command over simulated GPUs.
func info(t *testing.T, so string, cfg gpusim.Config, args ...string) string {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	if err := gpusim.Create(state, cfg); err != nil {
		t.Fatal(err)
	}
	t.Setenv(gpusim.StateEnv, state)
	var out strings.Builder
	root := newRoot(&out, io.Discard)
	root.SetArgs(append([]string{"info", "--nvml-library", so}, args...))
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// simulatedLibrary compiles the simulated GPU's NVML.
func simulatedLibrary(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc")
	}
	sources, err := filepath.Glob("../../../contrib/testbed/gpusim/nvmlsim/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatal("no sources", err)
	}
	so := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.Command("gcc", append([]string{"-O1", "-fPIC", "-shared", "-o", so}, sources...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return so
}

// What NVML is asked for is one row: the command shows it without further code.
func TestInfoShowsANewSource(t *testing.T) {
	before := nvml.Sources
	t.Cleanup(func() { nvml.Sources = before })
	nvml.Sources = append(slices.Clone(before), nvml.Source{
		Name: "temperature", Title: "temperature of the GPU", Symbols: []string{"nvmlDeviceGetTemperature"}, Most: 150,
		Value: func(h gonvml.Device) (float64, gonvml.Return) {
			celsius, ret := h.GetTemperature(gonvml.TEMPERATURE_GPU)
			return float64(celsius), ret
		},
	})
	so := simulatedLibrary(t)
	if out := info(t, so, gpusim.Config{}); !regexp.MustCompile(`temperature of the GPU\s+│ yes`).MatchString(out) {
		t.Error(out)
	}
	if out := info(t, so, gpusim.Config{}, "--json"); !strings.Contains(out, `"gpm": false,
      "temperature": true
    }`) {
		t.Error(out)
	}
	lib, err := nvml.Open(so)
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	if v, err := lib.Devices()[0].Read("temperature"); err != nil || v != 27 {
		t.Errorf("%v, %v", v, err)
	}
}

func TestInfo(t *testing.T) {
	so := simulatedLibrary(t)
	rows := func(out string) map[string]string {
		got := map[string]string{}
		for line := range strings.Lines(out) {
			cells := strings.Split(line, "│")
			if len(cells) < 3 {
				continue
			}
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			got[cells[1]] = strings.Join(cells[2:len(cells)-1], "|")
		}
		return got
	}
	for _, c := range []struct {
		cfg  gpusim.Config
		want map[string]string
	}{
		{gpusim.Config{GPUs: 2}, map[string]string{
			"model": "TITAN Xp|TITAN Xp", "architecture": "pascal 6.1|pascal 6.1", "memory": "12196 MiB|12196 MiB", "MIG": "no|no",
			"MPS: clients": "16|16", "MPS: users at a time": "1|1", "MPS: thread percentage": "no|no", "energy": "no|no",
			"utilisation": "yes|yes", "SM activity (GPM)": "no|no", "accounting": "no|no",
		}},
		{gpusim.Config{Model: "a100", Instances: []string{"1g.5gb"}}, map[string]string{
			"MIG": "on", "cores": "unknown", "utilisation": "no", "memory in use": "yes", "MPS: clients": "48",
			"MPS: users at a time": "1 (more with -multiuser-server)", "MPS: memory limit": "yes",
		}},
	} {
		out := info(t, so, c.cfg)
		got := rows(out)
		for k, v := range c.want {
			if got[k] != v {
				t.Errorf("%s: %q, want %q\n%s", k, got[k], v, out)
			}
		}
		if len(c.cfg.Instances) > 0 && !strings.Contains(out, "1g.5gb 4864 MiB MIG-") {
			t.Errorf("no instance in\n%s", out)
		}
	}
	var devices []nvml.Device
	out := info(t, so, gpusim.Config{Model: "h200", Recent: true}, "--json")
	if err := json.Unmarshal([]byte(out), &devices); err != nil || len(devices) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	if d := devices[0]; d.Compute != "9.0" || d.MPS.MaxClients != 60 || !d.Answers["gpm"] || d.Refusals["accounting"] == "" {
		t.Errorf("%s", out)
	}
}
