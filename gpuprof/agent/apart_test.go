package agent

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// two has jobs 1 and 2 share GPU 0 for a minute, and returns their records. pids
// says whose each process is, as in proc.
func (b *bench) two(pids map[int]int64) (r1, r2 *gpuprof.Record) {
	b.t.Helper()
	b.proc(pids)
	c := b.steady()
	c.procs = func() ([]nvml.Process, error) {
		var out []nvml.Process
		for pid := range pids {
			p := nvml.Process{PID: pid, MemMiB: 100 * float64(pid)}
			if b.untoldMemory {
				p.MemMiB = -1
			}
			out = append(out, p)
		}
		return out, nil
	}
	// The driver's samples of processes: a tenth of the time for each number, and the server has none.
	sm := func(pid int) float64 { return 0.1 * float64(pid) * float64(min(1, max(pids[pid], -pids[pid]))) }
	c.use = func() (float64, float64, error) {
		sum := 0.0
		for pid := range pids {
			sum += sm(pid)
		}
		return sum, 0.2, nil
	}
	c.uses = func(time.Time) ([]nvml.ProcessUse, error) {
		var out []nvml.ProcessUse
		for pid := range pids {
			out = append(out, nvml.ProcessUse{PID: pid, At: b.now, SM: sm(pid)})
		}
		return out, nil
	}
	b.gpus[0].card = c
	b.begin(1, 0, 0)
	b.begin(2, 0, 0)
	b.scan()
	b.until(b.now.Add(time.Minute))
	b.end(1)
	b.end(2)
	return b.closed(1), b.closed(2)
}

// From Volta on MPS clients are seen beside their server: memory and core use are
// each job's own, and the record says what isn't.
func TestSharersAreToldApart(t *testing.T) {
	b := newBench(t)
	b.gpus[0].dev.MPS.OwnAddresses = true
	r1, r2 := b.two(map[int]int64{1: 1, 2: 1, 3: 2, 4: 0})
	for _, c := range []struct {
		r         *gpuprof.Record
		mem, core float64
	}{{r1, 300, 0.3}, {r2, 300, 0.3}} {
		if c.r.Peak.MemMiB != c.mem || math.Abs(c.r.Mean.Core-c.core) > 1e-9 {
			t.Errorf("job %d: %+v", c.r.JobID, c.r.Mean)
		}
		must.Equal(t, c.r.Mixed, []string{"gpu", "pcie", "power"}, "job %d: mixed", c.r.JobID)
	}
	if r1.Processes != 2 || r1.ProcessMiB != 200 || r2.Processes != 1 || r2.ProcessMiB != 300 {
		t.Errorf("processes %d of up to %v MiB, and %d of %v", r1.Processes, r1.ProcessMiB, r2.Processes, r2.ProcessMiB)
	}
}

// Whose the driver's samples are is known only where they add up. Otherwise the clients' core use is the GPU's, and
// marked as mixed, and no job counts as idle for having none. A job alone has all of them.
func TestSamplesThatAreNotTheClients(t *testing.T) {
	const gpu = 0.8
	for name, c := range map[string]struct {
		sms   map[int]float64 // by process: 1 and 2 are the jobs', 3 is the server
		apart bool            // two other jobs had samples at once before
		own   bool
		idle  bool // job 2
	}{
		"each its own":                {sms: map[int]float64{1: 0.5, 2: 0.3, 3: 0}, own: true},
		"each its own, one does none": {sms: map[int]float64{1: 0.8}, apart: true, own: true, idle: true},
		"within a tenth":              {sms: map[int]float64{1: 0.5, 2: 0.25}, own: true},
		"the server's":                {sms: map[int]float64{1: 0, 2: 0, 3: 0.8}},
		"a part is the server's":      {sms: map[int]float64{1: 0.4, 2: 0.35, 3: 0.05}},
		"not all of them":             {sms: map[int]float64{1: 0.6, 2: 0}},
		"the GPU's for each":          {sms: map[int]float64{1: 0.8, 2: 0.8}},
		"the GPU's for one":           {sms: map[int]float64{1: 0.8, 2: 0}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.gpus[0].dev.MPS.OwnAddresses = true
			b.proc(map[int]int64{1: 1, 2: 2, 3: 0})
			card := b.steady()
			card.use = func() (float64, float64, error) { return gpu, 0.2, nil }
			card.procs = func() ([]nvml.Process, error) { return []nvml.Process{{PID: 1}, {PID: 2}, {PID: 3}}, nil }
			card.uses = func(time.Time) (out []nvml.ProcessUse, err error) {
				for pid, sm := range c.sms {
					out = append(out, nvml.ProcessUse{PID: pid, At: b.now, SM: sm})
				}
				return out, nil
			}
			b.gpus[0].card = card
			b.gpus[0].samples.apart = c.apart
			b.begin(1, 0, 0)
			b.begin(2, 0, 0)
			b.scan()
			b.until(b.now.Add(10 * time.Minute))
			idle := b.idleFor()[2] > 0
			b.end(1)
			b.end(2)
			r := b.closed(1)
			want := gpu
			if c.own {
				want = c.sms[1]
			}
			if math.Abs(r.Mean.Core-want) > 1e-9 || slices.Contains(r.Mixed, "core") == c.own ||
				slices.Contains(r.Unknown, "core") {
				t.Errorf("core use %v, want %v; mixed %v, unknown %v", r.Mean.Core, want, r.Mixed, r.Unknown)
			}
			if idle != c.idle {
				t.Errorf("job 2 counts as idle: %v", idle)
			}
		})
	}
}

// A job's processes are counted where it is alone, too, and become part of its profile.
func TestProcessesOfAJobAlone(t *testing.T) {
	b := newBench(t)
	b.proc(map[int]int64{1: 1, 2: 1, 3: 1, 4: -1})
	c := b.steady()
	c.procs = func() ([]nvml.Process, error) {
		n := 1 + int(b.now.Unix()/20)%4 // 1 to 4, the last a stranger
		return []nvml.Process{{PID: 1, MemMiB: 100}, {PID: 2, MemMiB: 700}, {PID: 3, MemMiB: 50}, {PID: 4, MemMiB: 5000}}[:n],
			nil
	}
	b.gpus[0].card = c
	b.begin(1, 0, 0)
	b.scan()
	b.until(b.now.Add(2 * time.Minute))
	b.end(1)
	r := b.closed(1)
	if r.Processes != 3 || r.ProcessMiB != 700 {
		t.Errorf("%d processes of up to %v MiB", r.Processes, r.ProcessMiB)
	}
	p, err := gpuprof.ProfileOf("a", r)
	if err != nil || p.Processes != 3 || p.ProcessMiB != 700 {
		t.Fatalf("%+v, %v", p, err)
	}
	more := *p
	more.Processes, more.ProcessMiB = 8, 300
	if m := gpuprof.Merge(p, &more, 0); m.Processes != 8 || m.ProcessMiB != 700 {
		t.Errorf("two runs: %d processes of up to %v MiB", m.Processes, m.ProcessMiB)
	}
}

// Before Volta the server stands for all; and a process that is nobody's job could
// be either's.
func TestSharersThatCannotBeToldApart(t *testing.T) {
	for name, pids := range map[string]map[int]int64{
		"server": {3: 0}, "server and clients": {1: 1, 2: 2, 3: 0},
		"stranger": {1: 1, 2: 2, 3: -1},
	} {
		b := newBench(t)
		if name == "stranger" {
			b.gpus[0].dev.MPS.OwnAddresses = true
		}
		r1, r2 := b.two(pids)
		for _, r := range []*gpuprof.Record{r1, r2} {
			if r.Peak.MemMiB != 1000 || !slices.Equal(r.Mixed, []string{"gpu", "core", "mem", "pcie", "power"}) {
				t.Errorf("%s: job %d: %v MiB, mixed %v", name, r.JobID, r.Peak.MemMiB, r.Mixed)
			}
		}
	}
}

// A process whose memory the driver doesn't tell leaves memory mixed, and core use
// told apart.
func TestMemoryThatIsNotTold(t *testing.T) {
	b := newBench(t)
	b.gpus[0].dev.MPS.OwnAddresses = true
	b.untoldMemory = true
	r1, _ := b.two(map[int]int64{1: 1, 2: 2})
	if r1.Peak.MemMiB != 1000 || !slices.Equal(r1.Mixed, []string{"gpu", "mem", "pcie", "power"}) ||
		math.Abs(r1.Mean.Core-0.1) > 1e-9 {
		t.Errorf("%+v, mixed %v", r1.Peak, r1.Mixed)
	}
}

func TestSourceOfCoreUse(t *testing.T) {
	for from, change := range map[string]func(b *bench, c *card){
		"performance monitoring": func(_ *bench, c *card) {
			first := true
			c.act = func() (nvml.Activity, error) {
				if first {
					first = false
					return nvml.Activity{}, nvml.ErrNotYet
				}
				return nvml.Activity{SM: 0.2, PCIeMBps: 30}, nil
			}
		},
		"samples of processes": func(b *bench, c *card) {
			c.uses = func(time.Time) ([]nvml.ProcessUse, error) {
				return []nvml.ProcessUse{{PID: 3, At: b.now, SM: 0.2}}, nil
			}
		},
		"utilisation": func(_ *bench, c *card) {
			c.use = func() (float64, float64, error) { return 0.2, 0, nil }
		},
	} {
		b := newBench(t)
		c := b.steady()
		change(b, c)
		b.gpus[0].card = c
		b.begin(1, 0, 0)
		b.scan()
		b.until(b.now.Add(time.Minute))
		b.end(1)
		if r := b.closed(1); math.Abs(r.Mean.Core-0.2) > 1e-9 || len(r.Unknown) > 0 || len(r.Mixed) > 0 {
			t.Errorf("%s: %v, unknown %v, mixed %v", from, r.Mean.Core, r.Unknown, r.Mixed)
		}
	}
}

// The GPUs of one job are read together: use is their mean, memory and traffic
// their sum.
func TestSeveralGPUs(t *testing.T) {
	b := newBench(t)
	for i, g := range b.gpus {
		c := b.steady()
		c.use = func() (float64, float64, error) { return 0.2 + 0.6*float64(i), 0, nil }
		g.card = c
	}
	b.begin(1, 0, 0, 1)
	b.scan()
	b.until(b.now.Add(20 * time.Second))
	b.gpus[1].card.(*card).power = is(250)
	b.until(b.now.Add(40 * time.Second))
	b.end(1)
	r := b.closed(1)
	if len(r.GPUs) != 2 || math.Abs(r.Mean.GPU-0.5) > 1e-9 || r.Peak.MemMiB != 2000 || r.Peak.PCIeMBps != 800 ||
		math.Abs(r.Power.MeanW-366) > 10 || r.Power.PeakW != 400 {
		t.Errorf("%+v, %+v, %+v", r.Mean, r.Peak, r.Power)
	}
}

// migged is a card that is cut in two beside one that isn't.
func migged() []nvml.Device {
	a100 := nvml.Device{Minor: 1, Index: 0, UUID: "GPU-a", MemMiB: 40960}
	a100.Cores = 6912
	a100.MPS = nvml.MPS{MaxClients: 48, MemoryLimit: true}
	a100.MIG = nvml.MIG{Can: true, On: true, Instances: []nvml.Instance{
		{UUID: "MIG-1", MemMiB: 4864, SMs: 14, Clients: 6},
		{UUID: "MIG-2", MemMiB: 9856, SMs: 28, Clients: 13},
	}}
	return []nvml.Device{a100, {Minor: 0, Index: 1, UUID: "GPU-b", MemMiB: 40960}}
}

// An instance is a card of its own, and has a record that names it.
func TestMIGInstances(t *testing.T) {
	b := newBench(t)
	b.Devices = migged()
	must.OK(t, b.Start())
	cards, err := b.Dir.Cards("")
	if err != nil || len(cards) != 3 || cards[2].UUID != "GPU-b" || cards[0].UUID != "MIG-1" || cards[1].UUID != "MIG-2" ||
		cards[1].MemMiB != 9856 ||
		cards[2].MemLimits || !cards[1].MemLimits || cards[1].Clients != 13 {
		t.Fatalf("%+v %v", cards, err)
	}
	b.gpus[1].card = &card{
		memory: is(5000),
		act:    func() (nvml.Activity, error) { return nvml.Activity{SM: 0.3, Graphics: 0.6}, nil },
	}
	b.begin(1, 0, 1)
	b.scan()
	b.until(b.now.Add(time.Minute))
	b.end(1)
	r := b.closed(1)
	if g := r.GPUs[0]; g.UUID != "MIG-2" || g.Parent != "GPU-a" || g.SMs != 28 || g.MemMiB != 9856 || g.Cores == 6912 {
		t.Errorf("%+v", g)
	}
	if math.Abs(r.Mean.GPU-0.6) > 1e-9 || math.Abs(r.Mean.Core-0.3) > 1e-9 || r.Peak.MemMiB != 5000 ||
		!slices.Equal(r.Unknown, []string{"pcie", "power"}) {
		t.Errorf("%+v, unknown %v", r.Mean, r.Unknown)
	}
	if _, err := gpuprof.ProfileOf("a", r); err != nil {
		t.Error(err)
	}
	// Instances of a driver that tells nothing of them give records, and no wrong ones.
	b.begin(2, 0, 0)
	b.scan()
	b.until(b.now.Add(time.Minute))
	b.end(2)
	if r := b.closed(2); !r.Cut || r.Samples != 0 || r.Failed == 0 {
		t.Errorf("%+v", r)
	}
}

// The rhythm of a job that is alone is found by bursts where utilisation or power
// shows it, and in the driver's own samples where it is slower; it is none where a
// job has company or the use has no period.
func TestRhythm(t *testing.T) {
	square := func(at, period, low, high float64) float64 {
		if math.Mod(at, period) < period*0.6 {
			return high
		}
		return low
	}
	for name, c := range map[string]struct {
		use, power func(at float64) float64
		points     float64 // period of the driver's samples' rhythm
		company    bool
		want       float64
	}{
		"utilisation": {use: func(at float64) float64 { return square(at, 0.12, 0.2, 1) }, want: 0.12},
		"power":       {power: func(at float64) float64 { return square(at, 0.25, 120, 300) }, want: 0.25},
		"buffer":      {points: 1.5, want: 1.5},
		"steady":      {},
		"company":     {use: func(at float64) float64 { return square(at, 0.12, 0.2, 1) }, company: true},
	} {
		b := newBench(t)
		rng := rand.New(rand.NewPCG(1, 2))
		start := b.now
		at := func() float64 { return b.now.Sub(start).Seconds() }
		card := b.steady()
		if c.use != nil {
			card.use = func() (float64, float64, error) {
				return max(0, min(1, c.use(at())+0.03*rng.NormFloat64())), 0, nil
			}
		}
		if c.power != nil {
			card.power = func() (float64, error) { return c.power(at()) + 5*rng.NormFloat64(), nil }
		}
		if c.points > 0 {
			card.points = func(since time.Time) ([]nvml.Point, error) {
				var out []nvml.Point
				for s := max(0, at()-16); s < at(); s += 1. / 6 {
					if p := start.Add(time.Duration(s * 1e9)); p.After(since) {
						out = append(out, nvml.Point{At: p, GPU: square(s, c.points, 0.1, 0.8)})
					}
				}
				return out, nil
			}
		}
		b.gpus[0].card = card
		b.begin(1, 0, 0)
		if c.company {
			b.begin(2, 0, 0)
		}
		b.scan()
		b.until(start.Add(700 * time.Second))
		samples, bursts := b.jobs[run{1, 0}].Samples, b.jobs[run{1, 0}].Bursts
		b.end(1)
		r := b.closed(1)
		if math.Abs(r.StepS-c.want) > 0.05*c.want {
			t.Errorf("%s: a step of %v s, want %v", name, r.StepS, c.want)
		}
		if samples > 700+purse+2 || bursts > len(burstAt) {
			t.Errorf("%s: %d samples, %d bursts", name, samples, bursts)
		}
		if c.want > 0 && !c.company {
			if p, err := gpuprof.ProfileOf("a", r); err != nil || p.StepS != r.StepS {
				t.Error(name, p, err)
			}
		}
	}
}

// A prolog's clock ahead of the agent's, or a clock that was set back, gives a
// record that can be true.
func TestClockSetBack(t *testing.T) {
	b := newBench(t)
	b.gpus[0].card = b.steady()
	must.OK(t, b.Dir.Begin(&prolog.Job{JobID: 7, GPUs: []int{0}, UUIDs: uuids(t, b.Dir, 0), Start: b.now.Add(time.Hour)}))
	b.scan()
	b.until(b.now.Add(time.Minute))
	b.end(7)
	if r := b.closed(7); r.DurationS() != 0 {
		t.Errorf("%+v", r)
	}
}

// A sharer with a process that computes without MPS is reported while it does, and its record says so; its
// neighbour's doesn't. A process that one reading alone shows so is none, and a job alone on a whole GPU needs no MPS.
func TestSharersWithoutMPS(t *testing.T) {
	b := newBench(t)
	b.gpus[0].dev.MPS.OwnAddresses = true
	b.proc(map[int]int64{1: 1, 2: 2, 3: 2, 4: 3, 5: 0})
	without := map[int]bool{5: true}
	b.gpus[0].card = b.steady()
	b.gpus[0].card.(*card).procs = func() ([]nvml.Process, error) {
		var out []nvml.Process
		for _, pid := range []int{1, 2, 3, 5} {
			out = append(out, nvml.Process{PID: pid, MemMiB: 10, WithoutMPS: without[pid]})
		}
		return out, nil
	}
	b.gpus[1].card = b.steady()
	b.gpus[1].card.(*card).procs = func() ([]nvml.Process,
		error,
	) {
		return []nvml.Process{{PID: 4, MemMiB: 10, WithoutMPS: true}}, nil
	}
	b.begin(1, 0, 0)
	b.begin(2, 0, 0)
	must.OK(t, b.Dir.Begin(&prolog.Job{
		JobID: 3, UID: 1000, User: "ann", GPUs: []int{1}, UUIDs: uuids(t, b.Dir, 1),
		Start: b.now,
	}))
	b.scan()
	b.sample()
	without[1] = true
	b.sample()
	without[1] = false
	b.sample()
	if got := b.Idle().WithoutMPS; len(got) > 0 {
		t.Errorf("all are clients, as far as two readings show: %v", got)
	}
	without[3] = true
	b.sample()
	b.sample()
	if got := b.Idle().WithoutMPS; !slices.Equal(got, []int64{2}) {
		t.Errorf("reported: %v, want job 2", got)
	}
	without[3] = false
	b.sample()
	if got := b.Idle().WithoutMPS; len(got) > 0 {
		t.Errorf("it is a client again: %v", got)
	}
	for id, want := range map[int64]bool{1: false, 2: true, 3: false} {
		b.end(id)
		if r := b.closed(id); r.WithoutMPS != want {
			t.Errorf("the record of job %d says %v", id, r.WithoutMPS)
		}
	}
}

// What a job used of its node is in its record, as its control group last said before it went.
func TestHostUseIsRecorded(t *testing.T) {
	b := newBench(t)
	b.Groups = t.TempDir()
	group := filepath.Join(b.Groups, "system.slice/slurmstepd.scope/job_1")
	must.OK(t, os.MkdirAll(group, 0o755))
	uses := func(cpuS, mib int) {
		must.OK(t, os.WriteFile(filepath.Join(group, "cpu.stat"), fmt.Appendf(nil, "usage_usec %d\n", cpuS*1e6), 0o600),
			os.WriteFile(filepath.Join(group, "memory.peak"), fmt.Appendf(nil, "%d\n", mib<<20), 0o600))
	}
	b.gpus[0].card, b.gpus[1].card = b.steady(), b.steady()
	b.begin(1, 0, 0)
	b.begin(2, 0, 1)
	b.scan()
	for i := range 6 {
		b.now = b.now.Add(20 * time.Second)
		uses(50*(i+1), 100)
		b.sample()
	}
	must.OK(t, os.RemoveAll(group))
	b.until(b.now.Add(time.Minute))
	b.end(1)
	b.end(2)
	if r := b.closed(1); r.Host == nil || math.Abs(r.Host.Cores-2.5) > 1e-9 || r.Host.MemMiB != 100 {
		t.Errorf("%+v", r.Host)
	}
	if r := b.closed(2); r.Host != nil {
		t.Errorf("without a group: %+v", r.Host)
	}
}
