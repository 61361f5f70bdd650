package agent

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

// card is a Card made of functions; one that is nil isn't supported.
type card struct {
	use    func() (gpu, mem float64, err error)
	memory func() (float64, error)
	pcie   func() (mbps float64, err error)
	power  func() (float64, error)
	act    func() (nvml.Activity, error)
	points func(since time.Time) ([]nvml.Point, error)
	procs  func() ([]nvml.Process, error)
	uses   func(since time.Time) ([]nvml.ProcessUse, error)
}

var none = nvml.ErrNotSupported

func (c *card) Utilisation() (float64, float64, error) {
	if c.use == nil {
		return 0, 0, none
	}
	return c.use()
}

func (c *card) Read(source string) (float64, error) {
	read := map[string]func() (float64, error){
		nvml.Memory: c.memory, nvml.Power: c.power,
	}[source]
	if read == nil {
		return 0, none
	}
	return read()
}

func (c *card) PCIe() (float64, error) {
	if c.pcie == nil {
		return 0, none
	}
	return c.pcie()
}

func (c *card) Activity() (nvml.Activity, error) {
	if c.act == nil {
		return nvml.Activity{}, none
	}
	return c.act()
}

func (c *card) Samples(since time.Time) ([]nvml.Point, error) {
	if c.points == nil {
		return nil, none
	}
	return c.points(since)
}

func (c *card) Processes() ([]nvml.Process, error) {
	if c.procs == nil {
		return nil, none
	}
	return c.procs()
}

func (c *card) ProcessUtilisation(since time.Time) ([]nvml.ProcessUse, error) {
	if c.uses == nil {
		return nil, none
	}
	return c.uses(since)
}

func (b *bench) end(id int64) {
	b.t.Helper()
	must.Get(b.Dir.End(id, b.now, "0:0"))(b.t)
}

// sample reads every GPU that has jobs.
func (a *Agent) sample() {
	for _, g := range a.gpus {
		g.pace.due = time.Time{}
	}
	a.pass()
}

func is(v float64) func() (float64, error) { return func() (float64, error) { return v, nil } }

// steady is a card that gives everything but what is by process, and never changes.
func (b *bench) steady() *card {
	return &card{
		use: func() (float64, float64, error) { return 0.5, 0.2, nil }, memory: is(1000),
		pcie: is(400), power: is(150),
	}
}

// until runs the agent's loop on the test's clock, as Run would, and returns how
// many passes there were.
func (b *bench) until(end time.Time) int {
	b.t.Helper()
	n := 0
	for {
		due, ok := b.due()
		if !ok || due.After(end) {
			b.now = end
			return n
		}
		if due.After(b.now) {
			b.now = due
		}
		b.pass()
		if n++; n > 1e6 {
			b.t.Fatal("the loop spins")
		}
	}
}

// The pace is fast at the start, slow while nothing changes, fast at a change, and
// on average never faster than the period but for what the purse holds.
func TestPace(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0, 0)
	use := 0.5
	c := b.steady()
	c.use = func() (float64, float64, error) { return use, 0, nil }
	b.gpus[0].card = c
	b.scan()
	g := b.gpus[0]
	start := b.now
	if n := b.until(start.Add(time.Second)); n < 5 {
		t.Errorf("%d samples in the first second", n)
	}
	b.until(start.Add(2 * time.Minute))
	if g.pace.step != 10*time.Second {
		t.Errorf("steps of %v when nothing changes", g.pace.step)
	}
	use = 0.9
	b.until(g.pace.due) // a step later at most it is seen
	if n := b.until(b.now.Add(time.Second)); n < 5 {
		t.Errorf("%d samples in the second after a change", n)
	}
	// Flickering for an hour.
	rng := rand.New(rand.NewPCG(1, 1))
	c.use = func() (float64, float64, error) { return rng.Float64(), 0, nil }
	samples := b.jobs[run{7, 0}].Samples
	b.until(b.now.Add(time.Hour))
	if n := b.jobs[run{7, 0}].Samples - samples; n > 3600+purse+1 || n < 3500 {
		t.Errorf("%d samples in an hour", n)
	}
}

// Uneven steps leave the integrals right: of what the card's use was, and of its power.
func TestIntegralsOfUnevenSteps(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0, 0)
	c := b.steady()
	start := b.now
	at := func() float64 { return b.now.Sub(start).Seconds() }
	high := func() bool { return int(at()/100)%2 == 1 } // 100 s low, 100 s high
	c.use = func() (float64, float64, error) {
		if high() {
			return 0.9, 0, nil
		}
		return 0.1, 0, nil
	}
	c.power = func() (float64, error) {
		if high() {
			return 200, nil
		}
		return 100, nil
	}
	b.gpus[0].card = c
	b.scan()
	b.until(start.Add(2000 * time.Second))
	b.end(7)
	r := b.closed(7)
	if math.Abs(r.Mean.GPU-0.5) > 0.02 || r.Peak.GPU != 0.9 {
		t.Errorf("mean %v, peak %v", r.Mean.GPU, r.Peak.GPU)
	}
	if math.Abs(r.Power.EnergyJ/300000-1) > 0.02 || r.Power.PeakW != 200 {
		t.Errorf("power %+v, want 300 kJ", r.Power)
	}
	if r.Samples > 1000 || r.MissedS != 0 || len(r.Unknown) != 0 || math.Abs(r.Mean.PCIeMBps-400) > 1e-6 {
		t.Errorf("%d samples, missed %v s, unknown %v, %v MB/s", r.Samples, r.MissedS, r.Unknown, r.Mean.PCIeMBps)
	}
}

// proc makes a /proc of processes in the control groups of jobs; job 0 is an MPS
// server, job −1 nobody's.
func (b *bench) proc(of map[int]int64) {
	b.t.Helper()
	b.Proc = b.t.TempDir()
	b.procAt(b.t, b.Proc, of)
}

func (b *bench) procAt(tb testing.TB, root string, of map[int]int64) {
	tb.Helper()
	for pid, job := range of {
		dir := filepath.Join(root, strconv.Itoa(pid))
		group, comm := "0::/system.slice/slurmstepd.scope/job_"+strconv.FormatInt(job, 10)+"/step_0/user/task_0\n", "app\n"
		if job <= 0 {
			group = "0::/system.slice/other.service\n"
		}
		if job == 0 {
			comm = "nvidia-cuda-mps\n"
		}
		must.OK(tb, os.MkdirAll(dir, 0o755))
		for name, text := range map[string]string{"cgroup": group, "comm": comm} {
			must.OK(tb, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
	}
}
