package agent

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// eight are eight GPUs.
func eight() []nvml.Device {
	out := make([]nvml.Device, 8)
	for i := range out {
		out[i] = nvml.Device{
			Index: i, Minor: i, UUID: "GPU-12345678-1234-1234-1234-12345678901" + string(rune('0'+i)),
			Model: "NVIDIA H200", Arch: "hopper", MemMiB: 143771, PCIeMBps: 128000,
		}
		out[i].Cores, out[i].MPS.OwnAddresses = 16896, true
	}
	return out
}

func cpu(tb testing.TB) time.Duration {
	var u syscall.Rusage
	must.OK(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSample is one second of a node with 8 GPUs, on each 8 jobs of one process, read at 1 Hz, a state written
// down each minute included; every figure changes with each reading. It tells the share of one core. NVML's own time
// comes on top.
func BenchmarkSample(tb *testing.B) {
	b := newBench(tb, eight()...)
	rng := rand.New(rand.NewPCG(1, 1))
	upTo := func(most float64) func() (float64, error) {
		return func() (float64, error) { return most * rng.Float64(), nil }
	}
	for g := range 8 {
		c := b.card(g)
		c.use, c.memory, c.pcie = upTo(1), upTo(1e5), upTo(2e4)
		c.procs = runs(1000+8*g, 1001+8*g, 1002+8*g, 1003+8*g, 1004+8*g, 1005+8*g, 1006+8*g, 1007+8*g)
		c.uses = func() (out []nvml.ProcessUse, err error) {
			for j := range 8 {
				out = append(out, nvml.ProcessUse{PID: 1000 + 8*g + j, At: b.now, SM: rng.Float64()})
			}
			return out, nil
		}
		for j := range 8 {
			b.prolog(prolog.Job{JobID: int64(1 + 8*g + j), Comment: "app=resnet50", GPUs: []int{g}, Percent: 12})
			b.inProc(map[int]int64{1000 + 8*g + j: int64(1 + 8*g + j)})
		}
	}
	b.scan()
	begin, n := cpu(tb), 0
	for tb.Loop() {
		b.now = b.now.Add(time.Second)
		b.sample()
		if n++; n%60 == 0 {
			b.keepState()
		}
	}
	tb.ReportMetric(100*(cpu(tb)-begin).Seconds()/float64(n), "%core")
}
