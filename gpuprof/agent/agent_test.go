package agent

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// library is where the simulated GPU's NVML lies, made once.
var (
	library = sync.OnceValues(func() (path string, err error) {
		if builtDir, err = os.MkdirTemp("", "agent-test"); err != nil {
			return "", err
		}
		return filepath.Join(builtDir, built.Library), built.Into(builtDir, built.Library)
	})
	builtDir string
)

func TestMain(m *testing.M) {
	status := m.Run()
	if builtDir != "" {
		os.RemoveAll(builtDir)
	}
	os.Exit(status)
}

// simulated makes simulated GPUs whose NVML the real binding loads.
func simulated(t *testing.T, cfg gpusim.Config) (*nvml.Library, *gpusim.State) {
	t.Helper()
	so, path := must.Get(library())(t), filepath.Join(t.TempDir(), "state")
	must.OK(t, gpusim.Create(path, cfg))
	t.Setenv(gpusim.StateEnv, path)
	st := must.Get(gpusim.Open(path))(t)
	lib := must.Get(nvml.Open(so))(t)
	t.Cleanup(func() { must.OK(t, lib.Close(), st.Close()) })
	return lib, st
}

// The loop as it runs, on NVML's binding: what the GPU does is in the record of the job that has it.
func TestRecordOfASoloRun(t *testing.T) {
	lib, st := simulated(t, gpusim.Config{})
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	use := rlcore.Use{GPU: 0.7, Core: 0.5, MemMiB: 760}
	p := &rlcore.Profile{App: "a", DurationS: 1e6, PeriodS: 1e6, Series: []rlcore.Use{use}}
	slot := must.Get(st.Device(0).Claim(gpusim.Claimant{}, p))(t)
	records, ended := make(chan *gpuprof.Record, 1), make(chan error, 1)
	a := &Agent{
		Dir: prolog.Dir(t.TempDir()), Devices: lib.Devices(), Node: "n1", Now: time.Now, Period: time.Second,
		Metrics: NewMetrics(prometheus.NewRegistry()),
		Log:     slog.New(slog.DiscardHandler), Keep: func(r *gpuprof.Record) error { records <- r; return nil },
	}
	must.OK(t, a.Start())
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- a.Run(ctx) }()
	late := time.After(5 * time.Minute)
	must.OK(t, a.Dir.Begin(&prolog.JobFile{JobID: 7, GPUs: []int{0}, UUIDs: uuids(t, a.Dir, 0), Start: time.Now()}))
	for testutil.ToFloat64(a.Metrics.samples.WithLabelValues("ok")) < 5 {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-late:
			t.Fatal("the GPU isn't read")
		case <-time.After(time.Millisecond):
		}
	}
	must.Get(a.Dir.End(7, time.Now()))(t)
	select {
	case r := <-records:
		must.OK(t, r.Validate())
		if !r.Solo() || r.Samples < 5 || math.Abs(r.Mean.GPU-0.7) > 0.01 || math.Abs(r.Peak.MemMiB-760) > 2 {
			t.Errorf("%d samples, mean %+v, peak %+v, solo %v", r.Samples, r.Mean, r.Peak, r.Solo())
		}
		if r.GPUs[0].UUID == "" || r.GPUs[0].MemMiB < 12000 {
			t.Errorf("GPU %+v", r.GPUs)
		}
		must.Get(gpuprof.ProfileOf("a", r))(t)
	case err := <-ended:
		t.Fatal(err)
	case <-late:
		t.Fatal("no record")
	}
	stop()
	<-ended
	must.Equal(t, must.Get(prolog.List(a.Dir.Ended()))(t), nil, "left over")
	must.OK(t, slot.Release())
}

// The pace is fast at the start, slow while nothing changes, fast at a change, and
// on average never faster than the period but for what the purse holds.
func TestHowOftenTheAgentLooks(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0)
	if n := b.elapse(time.Second); n < 5 {
		t.Errorf("%d samples in the first second", n)
	}
	b.elapse(2 * time.Minute)
	must.Equal(t, b.gpus[0].pace.step, 10*time.Second, "when nothing changes")
	b.card(0).use = is(0.9)
	b.elapse(b.gpus[0].pace.due.Sub(b.now)) // a step later at most it is seen
	if n := b.elapse(time.Second); n < 5 {
		t.Errorf("%d samples in the second after a change", n)
	}
	// Flickering for an hour.
	rng := rand.New(rand.NewPCG(1, 1))
	b.card(0).use = func() (float64, error) { return rng.Float64(), nil }
	samples := b.jobs[run{7, 0}].Samples
	b.elapse(time.Hour)
	if n := b.jobs[run{7, 0}].Samples - samples; n > 3600+purse+1 || n < 3500 {
		t.Errorf("%d samples in an hour", n)
	}
}

// Uneven steps leave the integrals right: of what the card's use was, and of its power.
func TestIntegralsOfUnevenSteps(t *testing.T) {
	b := newBench(t)
	start := b.now
	swings := func(low, high float64) func() (float64, error) { // 100 s low, 100 s high
		return func() (float64, error) {
			if int(b.now.Sub(start).Seconds()/100)%2 == 1 {
				return high, nil
			}
			return low, nil
		}
	}
	b.card(0).use, b.card(0).power = swings(0.1, 0.9), swings(100, 200)
	b.begin(7, 0)
	b.elapse(2000 * time.Second)
	r := b.ended(7)
	must.Near(t, r.Mean.GPU, 0.5, 0.02, "mean use")
	must.Equal(t, r.Peak.GPU, 0.9, "peak use")
	must.Near(t, r.Power.EnergyJ/300000, 1, 0.02, "of 300 kJ")
	must.Equal(t, r.Power.PeakW, 200)
	if r.Samples > 1000 || r.MissedS != 0 || len(r.Unknown) != 0 || math.Abs(r.Mean.PCIeMBps-400) > 1e-6 {
		t.Errorf("%d samples, missed %v s, unknown %v, %v MB/s", r.Samples, r.MissedS, r.Unknown, r.Mean.PCIeMBps)
	}
}

// A process is its control group's job's, by number or by SLUID. Where Slurm uses none it
// is its step's, however deep; only Slurm makes a step.
func TestWhoseProcessItIs(t *testing.T) {
	const slurmstepd, scope = "/usr/sbin/slurmstepd", "0::/system.slice/slurmstepd.scope/"
	a := &Agent{Proc: t.TempDir()}
	a.jobs = map[run]*tracked{
		{ID: 18}: {job: &prolog.JobFile{JobID: 18, SLUID: "sEKNKTV3WPV500"}},
		{ID: 19}: {job: &prolog.JobFile{JobID: 19}},
	}
	processes := []struct {
		pid, parent             int
		comm, line, exe, groups string
		want                    int64
	}{
		{pid: 10, parent: 1, line: "slurmstepd: [11.batch]", exe: slurmstepd},
		{pid: 11, parent: 10, comm: "bash) S 99", want: 11},
		{pid: 12, parent: 11, want: 11},
		{pid: 20, parent: 1, line: "slurmstepd: [12.extern]", exe: slurmstepd + " (deleted)"}, // upgraded
		{pid: 21, parent: 20, want: 12},
		{pid: 30, parent: 1, line: "slurmstepd: [13.0]", exe: "/home/ann/sleep"},
		{pid: 31, parent: 30},
		{pid: 40, parent: 1, line: "slurmstepd: [14.0]", exe: slurmstepd}, // a user's, below
		{pid: 41, parent: 40},
		{pid: 51, parent: 11, comm: "nvidia-cuda-mps", want: 11}, // called so
		{pid: 60, parent: 1, line: "slurmstepd: [15.0]", exe: slurmstepd},
		{pid: 61, parent: 60, groups: scope + "job_16/step_0\n", want: 16},
		{pid: 62, parent: 60, groups: scope + "sEKNKTV3WPV500/step_0/user/task_0\n", want: 18},
		{pid: 63, parent: 1, groups: scope + "sEKNKTV3WPV500/step_batch/user/task_0/job_99\n", want: 18},
		{pid: 64, parent: 60, groups: scope + "s0000000000000/step_0\n", want: 15}, // no job's that is known
		{pid: 65, parent: 1, groups: "0::/user.slice/sEKNKTV3WPV50\n"},
		{pid: 66, parent: 1, line: "slurmstepd: [17.batch]", exe: slurmstepd + "-wlm"}, // Debian's
		{pid: 67, parent: 66, want: 17},
		{pid: 70, parent: 71}, // no tree, as numbers are used anew
		{pid: 71, parent: 70},
		{pid: 80, parent: 1, line: "slurmstepd: [99999999999999999999.0]", exe: slurmstepd},
		{pid: 81, parent: 80},
		{pid: 90, parent: 4711}, // its parent is gone
	}
	for _, p := range processes {
		dir := filepath.Join(a.Proc, strconv.Itoa(p.pid))
		must.OK(t, os.MkdirAll(dir, 0o755))
		for name, text := range map[string]string{
			"stat": fmt.Sprintf("%d (%s) S %d 1 1 0\n", p.pid, p.comm, p.parent), "comm": p.comm + "\n",
			"cmdline": p.line + "\x00-x\x00", "cgroup": p.groups,
		} {
			must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		if p.exe != "" {
			must.OK(t, os.Symlink(p.exe, filepath.Join(dir, "exe")))
		}
		if p.pid == 40 && os.Geteuid() == 0 {
			must.OK(t, os.Chown(dir, 4242, -1))
		}
	}
	for _, p := range processes {
		if os.Geteuid() == 0 || p.pid/10 != 4 {
			must.Equal(t, a.owner(p.pid), owner{job: p.want}, "process %d", p.pid)
		}
	}
	must.Equal(t, a.owner(4711), owner{}, "nobody")
}

// Of a job that does nothing the agent tells from the sixth minute on. What it didn't see is no idleness: neither a GPU
// that isn't read, nor the time before it is read again; one reading that fails is no such gap.
func TestIdleJobsAreTold(t *testing.T) {
	type span struct {
		use   float64
		err   error
		lasts time.Duration
		want  time.Duration // what the agent says at the end, within a minute
	}
	const m = time.Minute
	for name, spans := range map[string][]span{
		"it stops":          {{0.5, nil, 60 * m, 0}, {0.009, nil, 4 * m, 0}, {0.009, nil, 30 * m, 34 * m}, {0.02, nil, m, 0}},
		"one reading fails": {{0, nil, 30 * m, 30 * m}, {0, nvml.ErrLost, m / 6, 30 * m}, {0, nil, m, 31 * m}},
		"it isn't read":     {{0, nil, 30 * m, 30 * m}, {0, nvml.ErrLost, 60 * m, 0}, {0, nil, 10 * m, 10 * m}},
		"no use is given":   {{0, nvml.ErrNotSupported, 60 * m, 0}},
	} {
		b := newBench(t)
		b.begin(1, 0)
		for _, s := range spans {
			b.card(0).use = func() (float64, error) { return s.use, s.err }
			b.elapse(s.lasts)
			if got := b.idleFor(1); (got - s.want).Abs() > m {
				t.Errorf("%s: idle for %v, want %v", name, got, s.want)
			}
		}
		b.card(0).use = is(0)
		b.elapse(time.Hour)
		b.ended(1)
		b.pass()
		must.Equal(t, b.idleFor(1), 0, name+": it has ended")
	}
}
