package agent

import (
	"math"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
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

// Whichever process a driver gives its samples to, no sharer's record has another's computing as its own, and where a sharer
// has none of them it isn't held idle.
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
				client := must.Get(st.Device(0).Claim(gpusim.Claimant{PID: pid, Server: server}, &rlcore.Profile{App: "a", DurationS: 1e5, PeriodS: 1e5, Series: []rlcore.Use{use}}))(t)
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
