package agent

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// Jobs 1 and 2 share a GPU that computes .8 of the time and holds 1000 MiB. What the driver says of processes tells
// them apart: memory where each process is some job's, core use where the driver's samples of processes are the
// clients' own, which they are only while they add up. What doesn't tell the jobs apart is the GPU's in both records,
// and marked as mixed; then neither job counts as idle.
func TestSharersAreToldApart(t *testing.T) {
	const pascal, unsaid = true, true
	all, apart := []string{"gpu", "core", "mem", "pcie", "power"}, []string{"gpu", "pcie", "power"}
	noCore, noMem := []string{"gpu", "core", "pcie", "power"}, []string{"gpu", "mem", "pcie", "power"}
	pair := map[int]int64{1: 1, 2: 2, 3: 0}
	type samples = map[int]float64
	for name, c := range map[string]struct {
		whose  map[int]int64 // of each process, of 100 MiB times its number: its job, 0 the MPS server, −1 nobody's
		sms    samples       // by process
		before bool          // before Volta
		unsaid bool          // how much memory a process holds
		apart  bool          // two other jobs had samples at once before
		mixed  []string
		core   float64 // of job 1, of 0 = .8
		mem    float64 // of job 1, of 0 = 1000
		idle   bool    // job 2
	}{
		"each its own": {whose: pair, sms: samples{1: 0.5, 2: 0.3, 3: 0}, mixed: apart, core: 0.5, mem: 100},
		"two processes of one": {
			whose: map[int]int64{1: 1, 2: 1, 3: 2, 4: 0}, sms: samples{1: 0.1, 2: 0.3, 3: 0.4}, mixed: apart, core: 0.4,
			mem: 300,
		},
		"each its own, one does none": {whose: pair, sms: samples{1: 0.8}, apart: true, mixed: apart, mem: 100, idle: true},
		"within a tenth":              {whose: pair, sms: samples{1: 0.5, 2: 0.25}, mixed: apart, core: 0.5, mem: 100},
		"the server's":                {whose: pair, sms: samples{1: 0, 2: 0, 3: 0.8}, mixed: noCore, mem: 100},
		"a part is the server's":      {whose: pair, sms: samples{1: 0.4, 2: 0.35, 3: 0.05}, mixed: noCore, mem: 100},
		"not all of them":             {whose: pair, sms: samples{1: 0.6, 2: 0}, mixed: noCore, mem: 100},
		"the GPU's for each":          {whose: pair, sms: samples{1: 0.8, 2: 0.8}, mixed: noCore, mem: 100},
		"the GPU's for one":           {whose: pair, sms: samples{1: 0.8, 2: 0}, mixed: noCore, mem: 100},
		"memory isn't said":           {whose: pair, sms: samples{1: 0.5, 2: 0.3}, unsaid: unsaid, mixed: noMem, core: 0.5},
		"the server stands for all":   {whose: map[int]int64{3: 0}, sms: samples{3: 0.8}, before: pascal, mixed: all},
		"a server beside clients":     {whose: pair, sms: samples{1: 0.5, 2: 0.3}, before: pascal, mixed: all},
		"a stranger":                  {whose: map[int]int64{1: 1, 2: 2, 3: -1}, sms: samples{1: 0.5, 2: 0.3}, mixed: all},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.gpus[0].dev.MPS.OwnAddresses = !c.before
			b.gpus[0].samples.apart = c.apart
			b.inProc(c.whose)
			card := b.card(0)
			card.use = is(0.8)
			card.procs = func() (out []nvml.Process, err error) {
				for pid := range c.whose {
					mem := 100 * float64(pid)
					if c.unsaid {
						mem = -1
					}
					out = append(out, nvml.Process{PID: pid, MemMiB: mem})
				}
				return out, nil
			}
			card.uses = func() (out []nvml.ProcessUse, err error) {
				for pid, sm := range c.sms {
					out = append(out, nvml.ProcessUse{PID: pid, At: b.now, SM: sm})
				}
				return out, nil
			}
			b.begin(1, 0)
			b.begin(2, 0)
			b.elapse(10 * time.Minute)
			must.Equal(t, b.idleFor(2) > 0, c.idle, "job 2 counts as idle")
			b.end(2)
			r := b.ended(1)
			must.Equal(t, r.Mixed, c.mixed, "mixed")
			must.Equal(t, r.Unknown, nil, "unknown")
			core, mem := c.core, c.mem
			if core == 0 {
				core = 0.8
			}
			if mem == 0 {
				mem = 1000
			}
			must.Near(t, r.Mean.Core, core, 1e-9, "core use")
			must.Equal(t, r.Peak.MemMiB, mem, "MiB")
		})
	}
}

// A job's processes are counted where it is alone, too, and become part of its profile. MPS holds each of them to the
// job's memory limit.
func TestProcessesOfAJobAlone(t *testing.T) {
	b := newBench(t)
	b.inProc(map[int]int64{1: 1, 2: 1, 3: 1, 4: -1})
	b.card(0).procs = func() ([]nvml.Process, error) {
		n := 1 + int(b.now.Unix()/20)%4 // 1 to 4, the last a stranger
		return []nvml.Process{{PID: 1, MemMiB: 100}, {PID: 2, MemMiB: 700}, {PID: 3, MemMiB: 50}, {PID: 4, MemMiB: 5000}}[:n],
			nil
	}
	b.prolog(prolog.JobFile{JobID: 1, GPUs: []int{0}, MPS: true, MemLimitMiB: 800})
	b.scan()
	b.elapse(2 * time.Minute)
	r := b.ended(1)
	must.Equal(t, r.MemLimitMiB, 3*800)
	p := must.Get(gpuprof.ProfileOf("a", r))(t)
	more := *p
	more.Processes, more.ProcessMiB = 8, 300
	m := gpuprof.Merge(p, &more, 0)
	if p.Processes != 3 || p.ProcessMiB != 700 || m.Processes != 8 || m.ProcessMiB != 700 {
		t.Errorf("%d processes of up to %v MiB; with another run %d of %v", p.Processes, p.ProcessMiB, m.Processes,
			m.ProcessMiB)
	}
}

func TestSourceOfCoreUse(t *testing.T) {
	for from, change := range map[string]func(b *bench, c *card){
		"performance monitoring": func(_ *bench, c *card) {
			first := nvml.ErrNotYet
			c.act = func() (a nvml.Activity, err error) {
				err, first = first, nil
				return nvml.Activity{SM: 0.2, PCIeMBps: 30}, err
			}
		},
		"samples of processes": func(b *bench, c *card) {
			c.uses = func() ([]nvml.ProcessUse, error) { return []nvml.ProcessUse{{PID: 3, At: b.now, SM: 0.2}}, nil }
		},
		"utilisation": func(_ *bench, c *card) { c.use = is(0.2) },
	} {
		b := newBench(t)
		change(b, b.card(0))
		b.begin(1, 0)
		b.elapse(time.Minute)
		if r := b.ended(1); math.Abs(r.Mean.Core-0.2) > 1e-9 || len(r.Unknown) > 0 || len(r.Mixed) > 0 {
			t.Errorf("%s: %v, unknown %v, mixed %v", from, r.Mean.Core, r.Unknown, r.Mixed)
		}
	}
}

// The GPUs of one job are read together: use is their mean, memory and traffic their sum.
func TestSeveralGPUs(t *testing.T) {
	b := newBench(t)
	b.card(0).use, b.card(1).use = is(0.2), is(0.8)
	b.begin(1, 0, 1)
	b.elapse(20 * time.Second)
	b.card(1).power = is(250)
	b.elapse(40 * time.Second)
	r := b.ended(1)
	if len(r.GPUs) != 2 || math.Abs(r.Mean.GPU-0.5) > 1e-9 || r.Peak.MemMiB != 2000 || r.Peak.PCIeMBps != 800 ||
		math.Abs(r.Power.MeanW-366) > 10 || r.Power.PeakW != 400 {
		t.Errorf("%+v, %+v, %+v", r.Mean, r.Peak, r.Power)
	}
}

// migged is a card that is cut in two beside one that isn't.
func migged() []nvml.Device {
	a100 := nvml.Device{Minor: 1, Index: 0, UUID: "GPU-a", MemMiB: 40960}
	a100.MPS = nvml.MPS{MaxClients: 48, MemoryLimit: true}
	a100.MIG = nvml.MIG{Can: true, On: true, Instances: []nvml.Instance{
		{UUID: "MIG-1", MemMiB: 4864, SMs: 14, Clients: 6, GPUInstance: 7},
		{UUID: "MIG-2", MemMiB: 9856, SMs: 28, Clients: 13, GPUInstance: 5},
	}}
	return []nvml.Device{a100, {Minor: 0, Index: 1, UUID: "GPU-b", MemMiB: 40960}}
}

// An instance is a card of its own, and has a record that names it. Its use is what NVML's performance monitoring says,
// or else dcgm-exporter. Without both it is unknown, not 0, and makes no profile.
func TestAnInstanceHasARecord(t *testing.T) {
	seen := nvml.Activity{SM: 0.2, Graphics: 0.4}
	for name, c := range map[string]struct {
		nvml, dcgm bool
		unknown    []string
	}{
		"Hopper":             {nvml: true, unknown: []string{"pcie", "power"}},
		"with dcgm-exporter": {dcgm: true, unknown: []string{"pcie", "power"}},
		"without":            {unknown: []string{"gpu", "core", "pcie", "power"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, migged()...)
			if c.dcgm {
				b.DCGM = &DCGM{
					Now: b.Now, asked: b.now.Add(time.Hour), at: b.now.Add(time.Minute),
					uses: map[place]nvml.Activity{{"GPU-a", "5"}: seen},
				}
				must.OK(t, b.Start())
			}
			cards := must.Get(b.Dir.Cards(""))(t)
			if len(cards) != 3 || cards[2].UUID != "GPU-b" || cards[0].UUID != "MIG-1" || cards[1].MemMiB != 9856 ||
				cards[2].MemLimits || !cards[1].MemLimits || cards[1].Clients != 13 {
				t.Fatalf("%+v", cards)
			}
			read := &card{memory: is(5000)}
			if c.nvml {
				read.act = func() (nvml.Activity, error) { return seen, nil }
			}
			if m, ok := b.gpus[1].card.(*measured); ok {
				m.Device = read
			} else {
				b.gpus[1].card = read
			}
			b.begin(1, 1)
			b.elapse(time.Minute)
			r := b.ended(1)
			if g := r.GPUs[0]; g.UUID != "MIG-2" || g.Parent != "GPU-a" || g.SMs != 28 || g.MemMiB != 9856 {
				t.Errorf("%+v", g)
			}
			must.Equal(t, r.Unknown, c.unknown)
			_, err := gpuprof.ProfileOf("a", r)
			if slices.Contains(c.unknown, "gpu") {
				must.Equal(t, errors.Is(err, gpuprof.ErrPartial), true, "no profile")
			} else if math.Abs(r.Mean.GPU-0.4) > 1e-9 || math.Abs(r.Mean.Core-0.2) > 1e-9 || err != nil {
				t.Errorf("%+v, %v", r.Mean, err)
			}
		})
	}
}

// A sharer with a process that computes without MPS is reported while it does, and its record says so; its
// neighbour's doesn't. A process that one reading alone shows so is none, and a job alone on a whole GPU needs no MPS.
func TestProcessesBesideMPSAreReported(t *testing.T) {
	b := newBench(t)
	b.gpus[0].dev.MPS.OwnAddresses = true
	b.inProc(map[int]int64{1: 1, 2: 2, 3: 2, 4: 3, 5: 0})
	without := map[int]bool{4: true, 5: true}
	for gpu, pids := range [][]int{{1, 2, 3, 5}, {4}} {
		b.card(gpu).procs = func() (out []nvml.Process, err error) {
			for _, pid := range pids {
				out = append(out, nvml.Process{PID: pid, MemMiB: 10, WithoutMPS: without[pid]})
			}
			return out, nil
		}
	}
	b.begin(1, 0)
	b.begin(2, 0)
	b.prolog(prolog.JobFile{JobID: 3, GPUs: []int{1}})
	b.scan()
	for i, reading := range []struct {
		pid  int // that is without at this reading
		want []int64
	}{{}, {pid: 1}, {}, {pid: 3}, {pid: 3, want: []int64{2}}, {}} {
		without[reading.pid] = true
		b.sample()
		without[reading.pid] = false
		must.Equal(t, b.Idle().WithoutMPS, reading.want, "reading %d", i)
	}
	for id, want := range map[int64]bool{1: false, 2: true, 3: false} {
		must.Equal(t, b.ended(id).WithoutMPS, want, "the record of job %d", id)
	}
}

// What a job used of its node is in its record, as its control group last said before it went.
func TestHostUseIsRecorded(t *testing.T) {
	b := newBench(t)
	b.Groups = t.TempDir()
	group := filepath.Join(b.Groups, "system.slice/slurmstepd.scope/job_1")
	must.OK(t, os.MkdirAll(group, 0o755), os.WriteFile(filepath.Join(group, "memory.peak"), []byte("104857600\n"), 0o600))
	b.begin(1, 0)
	b.begin(2, 1)
	for i := range 6 {
		b.now = b.now.Add(20 * time.Second)
		must.OK(t, os.WriteFile(filepath.Join(group, "cpu.stat"), fmt.Appendf(nil, "usage_usec %d\n", 50e6*(i+1)), 0o600))
		b.sample()
	}
	must.OK(t, os.RemoveAll(group))
	b.elapse(time.Minute)
	must.Equal(t, b.ended(1).Host, &gpuprof.Host{Cores: 2.5, MemMiB: 100})
	must.Equal(t, b.ended(2).Host, nil, "without a group")
}

// A process that has broken its MPS server is long gone when a hook reads so in the server's log. Jobs 1 and 2 share a
// GPU, and the records say whose process it was.
func TestWhoseFaultItWas(t *testing.T) {
	for name, c := range map[string]struct {
		by        []int // the processes in the log
		endsFirst bool  // job 2, and its record is closed before job 1's file names a process
		later     time.Duration
		reused    bool // process 22's number is one of job 1's meanwhile
		restart   bool // of the agent, once the file names the process
		want      []int64
	}{
		"the neighbour's": {by: []int{22}, want: []int64{2}},
		"its own":         {by: []int{11}, want: []int64{1}},
		"both":            {by: []int{22, 11}, want: []int64{2, 1}},
		"the neighbour's, whose record is closed": {by: []int{22}, endsFirst: true, want: []int64{2}},
		"the agent restarted":                     {by: []int{22}, restart: true, want: []int64{2}},
		"the number is another process's by now":  {by: []int{22}, reused: true, want: []int64{1}},
		"one of two isn't known":                  {by: []int{22, 33}},
		"a long time ago":                         {by: []int{22}, endsFirst: true, later: time.Hour},
		"the log names none":                      {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.inProc(map[int]int64{11: 1, 22: 2})
			b.card(0).procs = runs(11, 22)
			b.begin(1, 0)
			b.begin(2, 0)
			b.elapse(5 * time.Second)
			b.card(0).procs = runs(11)
			if c.endsFirst {
				must.Equal(t, b.ended(2).MPSFault.IsZero(), true, "job 2 was no victim")
			}
			if c.reused {
				b.inProc(map[int]int64{22: 1})
				b.card(0).procs = runs(11, 22)
			}
			b.elapse(5*time.Second + c.later)
			at := b.now
			b.rewrite(1, func(j *prolog.JobFile) { j.MPSFault, j.MPSFaultBy = at, c.by })
			b.scan()
			if c.restart {
				b.restart()
			}
			r := b.ended(1)
			must.Equal(t, r.MPSFaultBy, c.want)
			must.Equal(t, r.MPSFault.Equal(at), true, "the fault's time")
		})
	}
}

// A driver that is too old to limit clients' memory is named to the hooks, in records and as a metric.
func TestOldDriverIsNamed(t *testing.T) {
	for _, old := range []bool{true, false} {
		b := newBench(t, nvml.Device{Capabilities: nvml.Capabilities{
			MPS: nvml.MPS{OwnAddresses: true, MemoryLimit: !old},
		}, UUID: "GPU-0"})
		b.begin(1, 0)
		b.elapse(time.Minute)
		must.Equal(t, b.ended(1).GPUs[0].NoMemLimits, old, "the record")
		must.Equal(t, must.Get(b.Dir.Cards(""))(t)[0].MemLimits, !old, "what hooks read")
		must.Equal(t, testutil.ToFloat64(b.Metrics.noLimits), map[bool]float64{true: 1}[old])
	}
}
