package agent

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
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

// node is an agent with 8 GPUs and 64 jobs of one process each, 8 to a GPU; every
// figure of every GPU changes with each reading.
func node(tb testing.TB) *bench {
	b := &bench{now: time.Unix(1e9, 0), reg: prometheus.NewPedanticRegistry()}
	b.Agent = &Agent{
		Dir: prolog.Dir(tb.TempDir()), Devices: eight(), Node: "n1", Keep: b.kept.keep, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return b.now }, Metrics: NewMetrics(b.reg),
	}
	t, ok := tb.(*testing.T)
	if !ok {
		t = new(testing.T)
	}
	b.t = t
	must.OK(tb, b.Start())
	rng := rand.New(rand.NewPCG(1, 1))
	pids := map[int]int64{}
	for g := range 8 {
		c := b.steady()
		c.use = func() (float64, float64, error) { return rng.Float64(), rng.Float64(), nil }
		c.memory = func() (float64, error) { return 5e4 + 5e4*rng.Float64(), nil }
		c.pcie = func() (float64, error) { return 2e4 * rng.Float64(), nil }
		c.procs = func() ([]nvml.Process, error) {
			var out []nvml.Process
			for j := range 8 {
				out = append(out, nvml.Process{PID: 1000 + 8*g + j, MemMiB: 1e4 * rng.Float64()})
			}
			return out, nil
		}
		c.uses = func(time.Time) ([]nvml.ProcessUse, error) {
			var out []nvml.ProcessUse
			for j := range 8 {
				out = append(out, nvml.ProcessUse{PID: 1000 + 8*g + j, At: b.now, SM: rng.Float64()})
			}
			return out, nil
		}
		b.gpus[g].card = c
		for j := range 8 {
			id := int64(1 + 8*g + j)
			pids[1000+8*g+j] = id
			job := &prolog.Job{
				JobID: id, UID: 1000, User: "ann", Comment: "app=resnet50", GPUs: []int{g},
				UUIDs: uuids(t, b.Dir, g), Percent: 12, Start: b.now,
			}
			must.OK(tb, b.Dir.Begin(job))
		}
	}
	b.Proc = tb.TempDir()
	b.procAt(tb, b.Proc, pids)
	b.scan()
	return b
}

func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// BenchmarkSample is one second of a node with 8 GPUs and 64 jobs read at 1 Hz, a
// state written down each minute included. It tells the share of one core, the
// agent's own memory after it, and the size of a record, as JSON and packed.
// NVML's own time comes on top.
func BenchmarkSample(tb *testing.B) {
	before := heap()
	b := node(tb)
	begin, n := cpu(), 0
	for tb.Loop() {
		b.now = b.now.Add(time.Second)
		b.sample()
		if n++; n%60 == 0 {
			b.keepState()
		}
	}
	used := cpu() - begin
	tb.ReportMetric(100*used.Seconds()/float64(n), "%core")
	tb.ReportMetric((heap()-before)/(1<<20), "MiB")
	runtime.KeepAlive(b)
}

// BenchmarkRecord is the size of a record, of a job of a given length.
func BenchmarkRecord(tb *testing.B) {
	for name, length := range map[string]time.Duration{"1m": time.Minute, "10m": 10 * time.Minute, "8h": 8 * time.Hour} {
		tb.Run(name, func(tb *testing.B) {
			b := node(tb)
			for end := b.now.Add(length); b.now.Before(end); {
				b.now = b.now.Add(max(time.Second, length/4000))
				b.sample()
			}
			t := b.jobs[run{1, 0}]
			j := *t.job
			j.End = b.now
			var r *gpuprof.Record
			for tb.Loop() {
				r = b.record(t, &j)
			}
			body, err := json.Marshal(r)
			if err != nil || r.Validate() != nil {
				tb.Fatal(err, r.Validate())
			}
			var zip bytes.Buffer
			w := gzip.NewWriter(&zip)
			must.Get(w.Write(body))(tb)
			must.OK(tb, w.Close())
			r.DropSeries()
			summary := must.Get(json.Marshal(r))(tb)
			tb.ReportMetric(float64(len(body)), "B")
			tb.ReportMetric(float64(zip.Len()), "B-gzip")
			tb.ReportMetric(float64(len(summary)), "B-summary")
		})
	}
}
