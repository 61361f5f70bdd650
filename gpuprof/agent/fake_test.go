package agent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// card is a Card made of functions. What is nil isn't supported.
type card struct {
	err                      error // of every call
	use, memory, pcie, power func() (float64, error)
	memBusy                  float64
	act                      func() (nvml.Activity, error)
	procs                    func() ([]nvml.Process, error)
	uses                     func() ([]nvml.ProcessUse, error)
	since                    time.Time // from when on the agent asks for uses
}

func given[T any](c *card, f func() (T, error)) (v T, err error) {
	switch {
	case c.err != nil:
		return v, c.err
	case f == nil:
		return v, nvml.ErrNotSupported
	}
	return f()
}

func (c *card) Utilisation() (gpu, mem float64, err error) {
	gpu, err = given(c, c.use)
	return gpu, c.memBusy, err
}

func (c *card) Memory() (float64, error)           { return given(c, c.memory) }
func (c *card) Power() (float64, error)            { return given(c, c.power) }
func (c *card) PCIe() (float64, error)             { return given(c, c.pcie) }
func (c *card) Activity() (nvml.Activity, error)   { return given(c, c.act) }
func (c *card) Processes() ([]nvml.Process, error) { return given(c, c.procs) }

func (c *card) ProcessUtilisation(since time.Time) ([]nvml.ProcessUse, error) {
	c.since = since
	return given(c, c.uses)
}

func is(v float64) func() (float64, error) { return func() (float64, error) { return v, nil } }

// runs are processes of one MiB each.
func runs(pids ...int) func() (list []nvml.Process, err error) {
	return func() (list []nvml.Process, err error) {
		for _, pid := range pids {
			list = append(list, nvml.Process{PID: pid, MemMiB: 1})
		}
		return list, nil
	}
}

// kept are the records that the agent has closed.
type kept struct {
	recs []*gpuprof.Record
	fail bool
}

func (k *kept) keep(r *gpuprof.Record) error {
	if k.fail {
		return errors.New("disk full")
	}
	k.recs = append(k.recs, r)
	return nil
}

// bench is an agent that a test drives pass by pass, with a clock of its own.
type bench struct {
	*Agent
	t    testing.TB
	now  time.Time
	kept kept
	reg  *prometheus.Registry
}

// newBench has these GPUs, or two. Each gives everything but what is by process, and never changes.
func newBench(t testing.TB, devices ...nvml.Device) *bench {
	t.Helper()
	if len(devices) == 0 {
		devices = []nvml.Device{{UUID: "GPU-0", MemMiB: 12000}, {Minor: 1, Index: 1, UUID: "GPU-1", MemMiB: 12000}}
	}
	b := &bench{t: t, now: time.Unix(1e9, 0), reg: prometheus.NewPedanticRegistry()}
	b.Agent = &Agent{
		Dir: prolog.Dir(t.TempDir()), Devices: devices, Node: "n1", Keep: b.kept.keep, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return b.now }, Metrics: NewMetrics(b.reg), Proc: t.TempDir(), Period: time.Second,
	}
	must.OK(t, b.Start(), b.Dir.Make())
	for _, g := range b.gpus {
		g.card = &card{use: is(0.5), memBusy: 0.2, memory: is(1000), pcie: is(400), power: is(150)}
	}
	return b
}

// card is a GPU's, for a test to change.
func (b *bench) card(gpu int) *card { return b.gpus[gpu].card.(*card) }

// uuids are the cards at these places of the agent's list, as a prolog finds them there.
func uuids(t must.T, dir prolog.Dir, gpus ...int) (out []string) {
	t.Helper()
	cards := must.Get(dir.Cards(""))(t)
	for _, i := range gpus {
		if i < len(cards) {
			out = append(out, cards[i].UUID)
		} else {
			out = append(out, "")
		}
	}
	return out
}

// prolog announces a job, which begins now.
func (b *bench) prolog(j prolog.JobFile) {
	b.t.Helper()
	j.UID, j.User, j.UUIDs, j.Start = 1000, "ann", uuids(b.t, b.Dir, j.GPUs...), b.now
	must.OK(b.t, b.Dir.Begin(&j))
}

// begin has sharers begin on GPUs, and the agent see them.
func (b *bench) begin(id int64, gpus ...int) {
	b.t.Helper()
	b.prolog(prolog.JobFile{JobID: id, GPUs: gpus, Percent: 50})
	b.scan()
}

// end is a job's epilog, which the agent hasn't seen yet.
func (b *bench) end(id int64) {
	b.t.Helper()
	must.Get(b.Dir.End(id, b.now))(b.t)
}

// ended ends a job and returns its record.
func (b *bench) ended(id int64) *gpuprof.Record {
	b.t.Helper()
	b.end(id)
	return b.closed(id)
}

// closed has the agent look for ended jobs, and returns the record of one.
func (b *bench) closed(id int64) *gpuprof.Record {
	b.t.Helper()
	b.scan()
	for _, r := range b.kept.recs {
		if r.JobID == id {
			must.OK(b.t, r.Validate())
			return r
		}
	}
	b.t.Fatalf("no record of job %d", id)
	return nil
}

// sample reads every GPU that has jobs.
func (b *bench) sample() {
	for _, g := range b.gpus {
		g.pace.due = time.Time{}
	}
	b.pass()
}

// elapse runs the agent's loop for so long, as Run would, and returns how many passes there were.
func (b *bench) elapse(d time.Duration) (passes int) {
	b.t.Helper()
	for end := b.now.Add(d); ; passes++ {
		due, ok := b.due()
		if !ok || due.After(end) {
			b.now = end
			return passes
		}
		if due.After(b.now) {
			b.now = due
		}
		if b.pass(); passes > 1e6 {
			b.t.Fatal("the loop spins")
		}
	}
}

// wants fails the test unless Health complains with these words; none = it must not complain.
func (b *bench) wants(words ...string) {
	b.t.Helper()
	err := b.Health()
	if (err != nil) != (len(words) > 0) {
		b.t.Fatalf("health: %v, want %q", err, words)
	}
	for _, w := range words {
		must.Contain(b.t, err.Error(), w, "health")
	}
}

// idleFor is for how long the agent tells that a job has done nothing.
func (b *bench) idleFor(id int64) time.Duration {
	for _, j := range b.Idle().Jobs {
		if j.JobID == id {
			return time.Duration(j.IdleS * float64(time.Second))
		}
	}
	return 0
}

// inProc has /proc show processes in the control groups of jobs; job 0 is an MPS server, job −1 nobody's.
func (b *bench) inProc(of map[int]int64) {
	b.t.Helper()
	for pid, job := range of {
		dir := filepath.Join(b.Proc, strconv.Itoa(pid))
		group, comm := "0::/system.slice/slurmstepd.scope/job_"+strconv.FormatInt(job, 10)+"/step_0/user/task_0\n", "app\n"
		if job <= 0 {
			group = "0::/system.slice/other.service\n"
		}
		if job == 0 {
			comm = "nvidia-cuda-mps\n"
		}
		must.OK(b.t, os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "cgroup"), []byte(group), 0o600),
			os.WriteFile(filepath.Join(dir, "comm"), []byte(comm), 0o600))
	}
}
