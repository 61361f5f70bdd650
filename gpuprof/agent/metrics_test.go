package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

// shows compares the gauges of use, as lines without the prefix gpuprof_, with what an operator should read.
func (b *bench) shows(want ...string) {
	b.t.Helper()
	names := []string{"gpuprof_gpu_utilization_ratio", "gpuprof_gpu_memory_used_bytes", "gpuprof_jobs"}
	var got []string
	for _, name := range names {
		text := must.Get(testutil.CollectAndFormat(b.reg, expfmt.TypeTextPlain, name))(b.t)
		for line := range strings.Lines(string(text)) {
			if line, is := strings.CutPrefix(strings.TrimSpace(line), "gpuprof_"); is {
				got = append(got, line)
			}
		}
	}
	must.Equal(b.t, got, want)
}

// A GPU has series from its jobs' first sample to their end.
func TestSeriesLiveAsLongAsTheJobs(t *testing.T) {
	b := newBench(t)
	b.scan()
	b.shows("jobs 0")
	b.begin(7, 0)
	b.begin(12, 0, 1)
	b.shows("jobs 2")
	b.sample()
	b.shows(`gpu_utilization_ratio{gpu="0",uuid="GPU-0"} 0.5`, `gpu_utilization_ratio{gpu="1",uuid="GPU-1"} 0.5`,
		`gpu_memory_used_bytes{gpu="0",uuid="GPU-0"} 1.048576e+09`,
		`gpu_memory_used_bytes{gpu="1",uuid="GPU-1"} 1.048576e+09`, "jobs 2")
	b.ended(12)
	b.shows(`gpu_utilization_ratio{gpu="0",uuid="GPU-0"} 0.5`,
		`gpu_memory_used_bytes{gpu="0",uuid="GPU-0"} 1.048576e+09`, "jobs 1")
	// A figure that could not be read is not shown as it was.
	b.card(0).err = nvml.ErrLost
	b.sample()
	b.shows("jobs 1")
	b.card(0).err = nil
	b.sample()
	// A job whose record can't be kept has ended all the same.
	b.kept.fail = true
	b.end(7)
	b.scan()
	b.shows("jobs 0")
	// The next job on the GPU doesn't show what the one before did.
	b.begin(8, 0)
	b.shows("jobs 1")
	must.Equal(t, must.Get(testutil.GatherAndLint(b.reg))(t), nil, "names")
}

// What the hooks would find is told as it is at the time of the scrape.
func TestHooksAreToldAtTheScrape(t *testing.T) {
	dir := t.TempDir()
	settings, program := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "control")
	reg := prometheus.NewPedanticRegistry()
	ShowHooks(reg, settings, "n1")
	expect := func(when string, ok, mps float64) {
		t.Helper()
		got := map[string]float64{}
		for _, f := range must.Get(reg.Gather())(t) {
			got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		must.Equal(t, got, map[string]float64{
			"gpuprof_hook_settings_ok": ok, "gpuprof_mps_control_present": mps, "gpuprof_gpus_uncertain": 0,
		}, when)
	}
	must.OK(t, os.WriteFile(settings, []byte("mps_control: "+program+"\n"), 0o600))
	expect("without the program", 1, 0)
	must.OK(t, os.WriteFile(program, nil, 0o600))
	expect("with a file that isn't executable", 1, 0)
	must.OK(t, os.Chmod(program, 0o700))
	expect("with the program alone", 1, 0)
	must.OK(t, os.WriteFile(filepath.Join(dir, "nvidia-cuda-mps-server"), nil, 0o700))
	expect("with the server's beside it", 1, 1)
	must.OK(t, os.WriteFile(settings, []byte("mps_control: "+program+"\nsharing: sometimes\n"), 0o600))
	expect("with a typo", 0, 1)
	must.OK(t, os.Remove(program), os.Mkdir(program, 0o700))
	expect("with a folder", 0, 0)
}
