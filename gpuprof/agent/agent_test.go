package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// built is where the simulated GPU's programs lie, made once.
var (
	built    = sync.OnceValues(build)
	builtDir string
)

func build() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "agent-test"); err != nil {
		return "", err
	}
	builtDir = dir
	sources, err := filepath.Glob("../../contrib/testbed/gpusim/nvmlsim/*.c")
	if err != nil || len(sources) == 0 {
		return "", fmt.Errorf("no sources: %w", err)
	}
	for _, args := range [][]string{
		{"go", "build", "-o", filepath.Join(dir, "gpusim"), "../../contrib/testbed/gpusim/cmd/gpusim"},
		append([]string{"gcc", "-O2", "-fPIC", "-shared", "-Wl,-soname,libnvidia-ml.so.1", "-o", filepath.Join(dir, "libnvidia-ml.so.1")}, sources...),
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	return dir, nil
}

func TestMain(m *testing.M) {
	status := m.Run()
	if builtDir != "" {
		os.RemoveAll(builtDir)
	}
	os.Exit(status)
}

// simulated makes simulated GPUs whose NVML the real binding loads.
func simulated(t *testing.T, scale string, more ...string) (lib *nvml.Library, program string) {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "gpusim")
	state := filepath.Join(t.TempDir(), "state")
	if out, err := exec.Command(program, append([]string{"init", "--state", state, "--gpus", "2", "--scale", scale}, more...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("GPUSIM_STATE", state)
	if lib, err = nvml.Open(filepath.Join(dir, "libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lib.Close(); err != nil {
			t.Error(err)
		}
	})
	return lib, program
}

type kept struct {
	mu    sync.Mutex
	recs  []*gpuprof.Record
	fail  bool
	tries int
}

func (k *kept) attempts() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tries
}

func (k *kept) keep(r *gpuprof.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tries++
	if k.fail {
		return errors.New("disk full")
	}
	k.recs = append(k.recs, r)
	return nil
}

func (k *kept) wait(t *testing.T, n int) []*gpuprof.Record {
	t.Helper()
	for range 1500 {
		k.mu.Lock()
		if len(k.recs) >= n {
			defer k.mu.Unlock()
			return k.recs
		}
		k.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not %d records", n)
	return nil
}

func start(t *testing.T, lib *nvml.Library, dir prolog.Dir, k *kept) (stop func()) {
	t.Helper()
	return startAgent(t, &Agent{Dir: dir, Devices: lib.Devices(), Period: 20 * time.Millisecond, Keep: k.keep, Now: time.Now})
}

func startAgent(t *testing.T, a *Agent) (stop func()) {
	t.Helper()
	a.Node, a.Log = "n1", slog.New(slog.DiscardHandler)
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	return func() { cancel(); <-done }
}

func begin(t *testing.T, dir prolog.Dir, id int64, gpu int) {
	t.Helper()
	if err := dir.Begin(&prolog.Job{JobID: id, UID: 1000, User: "ann", GPUs: []int{gpu}, Percent: 50, Start: time.Now()}); err != nil {
		t.Fatal(err)
	}
}

func end(t *testing.T, dir prolog.Dir, id int64) {
	t.Helper()
	if _, err := dir.End(id, time.Now(), "0:0"); err != nil {
		t.Fatal(err)
	}
}

func TestRecordOfASoloRun(t *testing.T) {
	lib, _ := simulated(t, "20")
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir, k := prolog.Dir(t.TempDir()), &kept{}
	// A busy machine may hold the agent up for a second: what it reads holds for twenty
	// periods.
	defer startAgent(t, &Agent{Dir: dir, Devices: lib.Devices(), Period: 60 * time.Millisecond, Keep: k.keep, Now: time.Now})()
	if _, err := os.Stat(filepath.Join(string(dir), "gpus.json")); err != nil {
		t.Error(err)
	}
	// Neither the time until the application computes nor, in a process of its own, its
	// start counts: on a busy machine each tenth of a second is two of the GPU's.
	hoomd, _ := apps.ByName("hoomd")
	ran := make(chan error, 1)
	go func() { _, err := app.Run(t.Context(), app.Config{Profile: hoomd}); ran <- err }()
	eventually(t, "the application's use", func() bool {
		s, err := lib.Devices()[0].Sample()
		return err == nil && s.GPU > 0.3
	})
	begin(t, dir, 7, 0)
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	end(t, dir, 7)
	r := k.wait(t, 1)[0]
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	// hoomd takes 60 GPU s, 0.7 of the GPU on average and 760 MiB at its peak.
	if !r.Solo() || math.Abs(20*r.DurationS()/60-1) > 0.2 {
		t.Errorf("%.1f GPU s, solo %v", 20*r.DurationS(), r.Solo())
	}
	if math.Abs(r.Mean.GPU-0.7) > 0.12 || math.Abs(r.Peak.MemMiB-760) > 40 {
		t.Errorf("mean %+v, peak %+v", r.Mean, r.Peak)
	}
	if r.GPUs[0].UUID == "" || r.GPUs[0].Arch != "pascal" || r.GPUs[0].MemMiB < 12000 {
		t.Errorf("GPU %+v", r.GPUs)
	}
	p, err := gpuprof.ProfileOf("hoomd", r)
	if err != nil || p.Peak().MemMiB < 700 {
		t.Errorf("%+v %v", p, err)
	}
	if left, err := prolog.List(dir.Ended()); err != nil || len(left) != 0 {
		t.Errorf("left over: %v %v", left, err)
	}
}

func TestSharersKnowOfEachOther(t *testing.T) {
	lib, _ := simulated(t, "1")
	dir, k := prolog.Dir(t.TempDir()), &kept{}
	defer start(t, lib, dir, k)()
	begin(t, dir, 1, 0)
	begin(t, dir, 2, 0)
	begin(t, dir, 3, 1)
	time.Sleep(100 * time.Millisecond)
	end(t, dir, 1)
	time.Sleep(60 * time.Millisecond)
	end(t, dir, 2)
	end(t, dir, 3)
	for _, r := range k.wait(t, 3) {
		want := map[int64]int64{1: 2, 2: 1}[r.JobID]
		switch {
		case want == 0 && !r.Solo():
			t.Errorf("job %d on the other GPU has neighbours %+v", r.JobID, r.Neighbours)
		case want != 0 && (len(r.Neighbours) != 1 || r.Neighbours[0].JobID != want):
			t.Errorf("job %d has neighbours %+v, want %d", r.JobID, r.Neighbours, want)
		}
	}
}

// A record that can't be kept is closed again by the next agent, with all that the
// one before it saw. The agents' clock is the test's: it stands still until the agent
// has done what is due, however long that takes on a busy machine.
func TestAgentRestarted(t *testing.T) {
	lib, _ := simulated(t, "1")
	dir, k := prolog.Dir(t.TempDir()), &kept{fail: true}
	var clock atomic.Int64
	clock.Store(time.Now().UnixNano())
	now := func() time.Time { return time.Unix(0, clock.Load()) }
	reg := prometheus.NewRegistry()
	const period = 20 * time.Millisecond
	first := startAgent(t, &Agent{Dir: dir, Devices: lib.Devices(), Period: period, Keep: k.keep, Now: now, Metrics: NewMetrics(reg)})
	if err := dir.Begin(&prolog.Job{JobID: 5, UID: 1000, User: "ann", GPUs: []int{0}, Start: now()}); err != nil {
		t.Fatal(err)
	}
	const samples = 4
	for n := range samples {
		eventually(t, "the next sample", func() bool { return counted(t, reg, "gpuprof_samples_total") > float64(n) })
		clock.Add(int64(period))
	}
	if _, err := dir.End(5, now(), "0:0"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an attempt to keep the record", func() bool { return k.attempts() > 0 })
	first()
	if left, err := prolog.List(dir.Ended()); err != nil || len(left) != 1 {
		t.Fatalf("the ended job's file is lost: %v %v", left, err)
	}
	k.mu.Lock()
	k.fail = false
	k.mu.Unlock()
	defer startAgent(t, &Agent{Dir: dir, Devices: lib.Devices(), Period: period, Keep: k.keep, Now: now})()
	if r := k.wait(t, 1)[0]; r.JobID != 5 || r.Cut || r.Samples < samples || len(r.Series) == 0 || r.MissedS != 0 {
		t.Errorf("record %+v", r)
	}
}

// eventually waits until a condition holds; it doesn't say when.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come", what)
		}
	}
}

// counted is the sum of a counter over its labels.
func counted(t *testing.T, reg prometheus.Gatherer, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
