package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// shows compares the gauges of use with what an operator should read; "" = none.
func (b *bench) shows(want string) {
	b.t.Helper()
	err := testutil.GatherAndCompare(b.reg, strings.NewReader(want),
		"gpuprof_job_gpu_utilization_ratio", "gpuprof_job_gpu_memory_used_bytes", "gpuprof_gpu_memory_used_bytes",
		"gpuprof_jobs")
	if err != nil {
		b.t.Error(err)
	}
}

const (
	jobsHelp = `
# HELP gpuprof_jobs Jobs with a GPU that run on this node.
# TYPE gpuprof_jobs gauge
`
	memHelp = `# HELP gpuprof_gpu_memory_used_bytes Device memory in use, while the GPU has jobs.
# TYPE gpuprof_gpu_memory_used_bytes gauge
`
	jobMemHelp = `# HELP gpuprof_job_gpu_memory_used_bytes Device memory in use on a running job's GPU; jobs that share the GPU show the same, what they use together.
# TYPE gpuprof_job_gpu_memory_used_bytes gauge
`
	jobUtilHelp = `# HELP gpuprof_job_gpu_utilization_ratio Utilization of a running job's GPU as in gpuprof_gpu_utilization_ratio; jobs that share the GPU show the same, what they do together.
# TYPE gpuprof_job_gpu_utilization_ratio gauge
`
)

// A job has series from its first sample to its end, and so has its GPU.
func TestSeriesLiveAsLongAsTheJob(t *testing.T) {
	b := newBench(t)
	b.scan()
	b.shows(jobsHelp + "gpuprof_jobs 0\n")
	b.begin(7, 0, 0)
	b.begin(12, 0, 0, 1)
	b.scan()
	b.shows(jobsHelp + "gpuprof_jobs 2\n")
	b.sample()
	b.shows(jobsHelp + "gpuprof_jobs 2\n" + memHelp + `gpuprof_gpu_memory_used_bytes{gpu="0",uuid="GPU-0"} 1.048576e+08
gpuprof_gpu_memory_used_bytes{gpu="1",uuid="GPU-1"} 2.097152e+08
` + jobMemHelp + `gpuprof_job_gpu_memory_used_bytes{gpu="0",job="12"} 1.048576e+08
gpuprof_job_gpu_memory_used_bytes{gpu="0",job="7"} 1.048576e+08
gpuprof_job_gpu_memory_used_bytes{gpu="1",job="12"} 2.097152e+08
` + jobUtilHelp + `gpuprof_job_gpu_utilization_ratio{gpu="0",job="12"} 0.5
gpuprof_job_gpu_utilization_ratio{gpu="0",job="7"} 0.5
gpuprof_job_gpu_utilization_ratio{gpu="1",job="12"} 0.5
`)
	end(t, b.Dir, 12)
	b.scan()
	b.shows(jobsHelp + "gpuprof_jobs 1\n" + memHelp + `gpuprof_gpu_memory_used_bytes{gpu="0",uuid="GPU-0"} 1.048576e+08
` + jobMemHelp + `gpuprof_job_gpu_memory_used_bytes{gpu="0",job="7"} 1.048576e+08
` + jobUtilHelp + `gpuprof_job_gpu_utilization_ratio{gpu="0",job="7"} 0.5
`)
	// A figure that could not be read is not shown as it was.
	b.cards.set(nvml.ErrLost, nil)
	b.sample()
	b.shows(jobsHelp + "gpuprof_jobs 1\n")
	b.cards.set(nil, nil)
	b.sample()
	// A job whose record can't be kept has ended all the same.
	b.kept.fail = true
	end(t, b.Dir, 7)
	b.scan()
	b.shows(jobsHelp + "gpuprof_jobs 0\n")
	// The next job on the GPU doesn't show what the one before did.
	b.begin(8, 0, 0)
	b.scan()
	b.shows(jobsHelp + "gpuprof_jobs 1\n")
}

// However many jobs come and go, what they leave behind doesn't grow; and nothing
// of what their owners wrote is shown.
func TestSeriesAreBounded(t *testing.T) {
	b := newBench(t)
	var first int
	for id := range int64(50) {
		job := &prolog.Job{
			JobID: 1 + id, User: "ann", Comment: "app=\"x\ny", WorkDir: "/secret", GPUs: []int{0},
			UUIDs: uuids(t, b.Dir, 0), Percent: 50, Start: b.now,
		}
		must.OK(t, b.Dir.Begin(job))
		b.scan()
		b.sample()
		end(t, b.Dir, 1+id)
		b.scan()
		n := must.Get(testutil.GatherAndCount(b.reg))(t)
		if id == 0 {
			first = n
		} else if n != first {
			t.Fatalf("%d series after job %d, %d after the first", n, 1+id, first)
		}
	}
}

func TestMetricsAreNamedWell(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0, 0)
	b.scan()
	b.sample()
	problems := must.Get(testutil.GatherAndLint(b.reg))(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// A job that is requeued and starts again before its first run's record was kept
// has two runs, and each has a record of its own.
func TestRequeuedRunsAreKeptApart(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0, 0)
	b.scan()
	b.now = b.now.Add(time.Second)
	b.sample()
	b.kept.fail = true
	must.Get(b.Dir.End(7, b.now, "0:0"))(t)
	b.begin(7, 1, 0)
	b.scan()
	for range 3 {
		b.now = b.now.Add(time.Second)
		b.sample()
	}
	b.kept.fail = false
	b.scan()
	b.now = b.now.Add(time.Second)
	b.sample()
	must.Get(b.Dir.End(7, b.now, "0:0"))(t)
	b.scan()
	if len(b.kept.recs) != 2 {
		t.Fatalf("%d records", len(b.kept.recs))
	}
	for restart, samples := range []int{1, 4} {
		r := b.kept.recs[restart]
		if r.Restart != restart || r.Samples != samples || r.Cut || !r.Solo() {
			t.Errorf("run %d: %+v", restart, r)
		}
	}
	if len(b.jobs) != 0 {
		t.Errorf("still tracked: %v", b.jobs)
	}
}

// What the hooks would find is told as it is at the time of the scrape.
func TestHooks(t *testing.T) {
	dir := t.TempDir()
	settings, program := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "control")
	reg := prometheus.NewPedanticRegistry()
	ShowHooks(reg, settings, "n1")
	expect := func(when string, ok, mps float64) {
		t.Helper()
		families := must.Get(reg.Gather())(t)
		got := map[string]float64{}
		for _, f := range families {
			got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		want := map[string]float64{
			"gpuprof_hook_settings_ok": ok, "gpuprof_mps_control_present": mps,
			"gpuprof_gpus_uncertain": 0,
		}
		must.Equal(t, got, want, when)
	}
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		must.OK(t, os.WriteFile(path, []byte(text), mode))
	}
	write(settings, "mps_control: "+program+"\n", 0o600)
	expect("without the program", 1, 0)
	write(program, "", 0o600)
	expect("with a file that isn't executable", 1, 0)
	must.OK(t, os.Chmod(program, 0o700))
	expect("with the program alone", 1, 0)
	write(filepath.Join(dir, "nvidia-cuda-mps-server"), "", 0o700)
	expect("with the server's beside it", 1, 1)
	write(settings, "mps_control: "+program+"\nsharing: sometimes\n", 0o600)
	expect("with a typo", 0, 1)
	must.OK(t, os.Remove(program))
	must.OK(t, os.Mkdir(program, 0o700))
	expect("with a folder", 0, 0)
}
