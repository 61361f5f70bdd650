package agent

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// What the hooks would find is told as it is at the time of the scrape.
func TestHooks(t *testing.T) {
	dir := t.TempDir()
	settings, program := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "control")
	reg := prometheus.NewPedanticRegistry()
	ShowHooks(reg, settings)
	expect := func(when string, ok, mps float64) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		want := map[string]float64{"gpuprof_hook_settings_ok": ok, "gpuprof_mps_control_present": mps}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(settings, "mps_control: "+program+"\n", 0o600)
	expect("without the program", 1, 0)
	write(program, "", 0o600)
	expect("with a file that isn't executable", 1, 0)
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	expect("with the program", 1, 1)
	write(settings, "mps_control: "+program+"\nsharing: sometimes\n", 0o600)
	expect("with a typo", 0, 1)
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(program, 0o700); err != nil {
		t.Fatal(err)
	}
	expect("with a folder", 0, 0)
}
