package agent

import (
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// sleeper starts a process that does nothing until the test ends.
func sleeper(t *testing.T) (pid int) {
	t.Helper()
	p := exec.Command("sleep", "1000")
	must.OK(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _, _ = p.Process.Wait() })
	return p.Process.Pid
}

// Whichever process a driver gives its samples to, no sharer's record has another's computing as its own, and where a
// sharer has none of them it isn't held idle.
func TestWhoeverGetsTheSamples(t *testing.T) {
	for _, owner := range gpusim.SampleOwners {
		t.Run(owner, func(t *testing.T) {
			lib, _ := simulated(t, "1", "--model", "v100", "--process-samples", owner)
			st := must.Get(gpusim.Open(os.Getenv(gpusim.StateEnv)))(t)
			t.Cleanup(func() { _ = st.Close() })
			server := sleeper(t)
			slot := must.Get(st.Device(0).ClaimServer(gpusim.Claimant{PID: server}))(t)
			t.Cleanup(func() { _ = slot.Release() })
			pids := map[int]int64{server: 0}
			for job := range 2 {
				pid := sleeper(t)
				use := rlcore.Use{GPU: 0.2 + 0.2*float64(job), Core: 0.1, MemMiB: 500}
				p := &rlcore.Profile{App: "a", DurationS: 1e5, PeriodS: 1e5, Series: []rlcore.Use{use}}
				client := must.Get(st.Device(0).Claim(gpusim.Claimant{PID: pid, Server: server}, p))(t)
				t.Cleanup(func() { _ = client.Release() })
				pids[pid] = int64(job) + 1
			}
			b := newBench(t)
			b.Devices = lib.Devices()
			must.OK(t, b.Start())
			b.proc(pids)
			b.begin(1, 0, 0)
			b.begin(2, 0, 0)
			b.scan()
			b.until(b.now.Add(10 * time.Minute))
			if idle := b.idleFor(); len(idle) > 0 {
				t.Errorf("idle: %v", idle)
			}
			b.end(1)
			b.end(2)
			own := owner == "each"
			for id := range int64(2) {
				r := b.closed(id + 1)
				if slices.Contains(r.Mixed, "core") == own {
					t.Errorf("job %d: mixed %v", id+1, r.Mixed)
				}
				if want := 0.2 + 0.2*float64(id); own && math.Abs(r.Mean.Core-want) > 0.07 {
					t.Errorf("job %d: core use %v, want about %v", id+1, r.Mean.Core, want)
				}
				if !own && r.Mean.Core != r.Mean.GPU {
					t.Errorf("job %d: core use %v of the GPU's %v", id+1, r.Mean.Core, r.Mean.GPU)
				}
			}
		})
	}
}

// A driver that is too old to limit clients' memory is named to the hooks, in records and as a metric.
func TestOldDriverIsNamed(t *testing.T) {
	for old, gauge := range map[bool]string{true: "1", false: "0"} {
		b := newBench(t)
		for i := range b.Devices {
			b.Devices[i].MPS = nvml.MPS{ThreadPercentage: true, MemoryLimit: !old}
		}
		must.OK(t, b.Start())
		b.gpus[0].card = b.steady()
		b.begin(1, 0, 0)
		b.scan()
		b.until(b.now.Add(time.Minute))
		b.end(1)
		if r := b.closed(1); r.GPUs[0].NoMemLimits != old {
			t.Errorf("a record says %v of an old driver, %v", r.GPUs[0].NoMemLimits, old)
		}
		if cards := must.Get(b.Dir.Cards(""))(t); cards[0].MemLimits == old {
			t.Errorf("hooks read that memory is limited: %v", cards[0].MemLimits)
		}
		want := "# HELP gpuprof_mps_memory_limit_missing 1 where the driver is too old (before CUDA 11.5) to hold MPS " +
			"clients to " +
			"a part of the memory of a card that could, else 0.\n" +
			"# TYPE gpuprof_mps_memory_limit_missing gauge\ngpuprof_mps_memory_limit_missing " + gauge + "\n"
		if err := testutil.GatherAndCompare(b.reg, strings.NewReader(want), "gpuprof_mps_memory_limit_missing"); err != nil {
			t.Error(err)
		}
	}
}
