// Package agent is the node agent: it watches the hooks' folder for jobs, samples
// their GPUs, and closes a record for each.
//
//	jobs/*.json ─► scan ─► tracked ◄── take ◄── observe ◄── Card (NVML)
//	                          │                  ▲
//	ended/*.json ─► finish ─► record            pace
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// Agent watches one node. It has one goroutine and owns all it holds.
type Agent struct {
	Dir     prolog.Dir
	Devices []nvml.Device
	Node    string
	// Period is the time between two samples, on average at least; see pace. Default 1 s.
	Period time.Duration
	// Driver opens and closes the GPUs, which others can neither reset nor cut up nor get another driver for while they
	// are open. The agent closes them while no job is there. nil = they stay open. Where their compute mode or their MIG
	// instances have changed, Devices are new.
	Driver interface {
		Acquire() (anew bool, err error)
		Release() error
		Devices() []nvml.Device
	}
	// DCGM has the activity of MIG instances for which NVML gives none; nil = no exporter is read.
	DCGM *DCGM
	// Keep takes a closed record; on an error the job's file stays and the record is closed again later.
	Keep    func(*gpuprof.Record) error
	Now     func() time.Time
	Log     *slog.Logger
	Metrics *Metrics // nil = not exported
	// Proc is /proc, and Groups /sys/fs/cgroup, unless a test sets it.
	Proc, Groups string

	jobs   map[run]*tracked
	gpus   map[int]*gpu  // by the agent's own number; a GPU that a job has and NVML hasn't has one below 0
	next   int           // the number of the next GPU or instance
	cards  int           // of NVML's
	listed []prolog.Card // as the hooks have them
	cut    string        // prolog.Cut as the GPUs were listed
	recut  string        // prolog.Cut at the last look
	before map[run]saved // what the agent before this one had, until the first scan
	// Failures of the last passes: reading job files, reading GPUs (GPUs that have answered since are removed).
	filesErr error
	broken   map[int]error
	released bool      // the GPUs are closed
	needed   time.Time // when they were needed last
	last     atomic.Pointer[pass]
	report   atomic.Pointer[gpuprof.IdleReport]
}

// Card is a GPU, or a MIG instance, as the agent reads it: an nvml.Device.
type Card interface {
	Utilisation() (gpu, mem float64, err error)
	Memory() (mib float64, err error)
	Power() (w float64, err error)
	PCIe() (mbps float64, err error)
	Activity() (nvml.Activity, error)
	Processes() ([]nvml.Process, error)
	ProcessUtilisation(since time.Time) ([]nvml.ProcessUse, error)
}

// run names one run of a job: a requeued job has several.
type run struct {
	ID      int64
	Restart int
}

func runOf(j *prolog.Job) run { return run{j.JobID, j.Restart} }

type gpu struct {
	index   int // the agent's own number
	dev     nvml.Device
	card    Card
	missing bool // a job's file names it, and there is none, or it was an instance and is none any more

	pace  pace
	last  observed
	fresh bool // last is of the last pass that was for it
	seen  time.Time

	traffic traffic
	counts  bool // performance monitoring measures PCIe

	uses      map[int]float64 // SM utilisation by process
	usesAt    time.Time       // up to when the driver's were read
	usesRead  time.Time
	samples   samples
	without   map[int]bool // processes that the last reading found to compute without MPS
	processes map[int]process
}

// process is a job's process that was on a GPU of late, when it was seen there last.
type process struct {
	job int64
	at  time.Time
}

// tracked is a run of a job with a record that isn't closed yet.
type tracked struct {
	job  *prolog.Job
	gpus []int // the agent's own numbers of the job's GPUs
	saved
	resume time.Time // from when on the next reading holds
	held   gpuprof.Reading
	// noEpilog: its file went away; job.End is when it was last seen.
	noEpilog bool
	told     bool      // that its record isn't kept yet
	idle     time.Time // since when its GPUs have done nothing; zero = they do something, or it isn't known
	seen     time.Time // when all of its GPUs were read last
	asked    time.Time // when its control group was read last
	// apart: at the last reading the job was to share its GPU through MPS, and a process of it didn't.
	apart bool
}

// runs reports whether the job's end isn't known yet.
func (t *tracked) runs() bool { return t.job.End.IsZero() }

func (t *tracked) has(gpu int) bool { return slices.Contains(t.gpus, gpu) }

// Start lists the library's GPUs for the hooks and takes up the data that a previous agent had gathered.
func (a *Agent) Start() error {
	if a.Period == 0 {
		a.Period = time.Second
	}
	if a.Metrics == nil {
		a.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	a.needed = a.Now()
	a.report.Store(&gpuprof.IdleReport{Node: a.Node})
	a.jobs, a.gpus, a.broken, a.next = map[run]*tracked{}, map[int]*gpu{}, map[int]error{}, 0
	// Process 1 has all capabilities, as slurmstepd has.
	if _, err := os.Readlink(filepath.Join(a.process(1), "exe")); errors.Is(err, os.ErrPermission) {
		a.Log.Warn("processes of other programs can't be looked at: where Slurm uses no control groups, none is known to "+
			"be a job's (CAP_SYS_PTRACE)", "err", err)
	}
	var err error
	if a.before, err = a.load(); err != nil {
		a.Log.Warn("what was gathered before is lost", "err", err)
	}
	return a.list()
}

// list lists the GPUs and MIG instances that there are, for the agent and for the hooks. Those of before keep their
// numbers.
func (a *Agent) list() error {
	a.cut = prolog.Cut(a.Proc)
	before := a.gpus
	a.gpus = map[int]*gpu{}
	var cards []prolog.Card
	add := func(d nvml.Device, in nvml.Instance, of []nvml.Instance) {
		g := &gpu{index: -1, pace: pace{period: a.Period}}
		for i, old := range before {
			if old.dev.UUID == d.UUID && old.dev.Model == d.Model && !old.missing {
				g = old
				delete(before, i)
				break
			}
		}
		if g.index < 0 {
			g.index = a.next
			a.next++
		}
		g.dev, g.card, a.gpus[g.index] = d, a.use(&d, in, of), g
		cards = append(cards, prolog.Card{
			NVMLIndex: d.Index, Minor: d.Minor, GI: in.GPUInstance, CI: in.ComputeInstance, UUID: d.UUID, Model: d.Model,
			MemMiB: d.MemMiB, Lost: d.Lost != "", Exclusive: d.Mode == nvml.Exclusive, Clients: d.MPS.MaxClients,
			MemLimits: d.MPS.MemoryLimit,
		})
		if d.Mode != "" {
			a.Metrics.mode.WithLabelValues(d.UUID, d.Mode).Set(1)
		}
		if d.Persistent != nil {
			a.Metrics.persistent.WithLabelValues(d.UUID).Set(map[bool]float64{true: 1}[*d.Persistent])
		}
	}
	a.Metrics.mode.Reset()
	a.Metrics.persistent.Reset()
	for _, d := range a.Devices {
		if d.Lost != "" {
			a.Log.Error("NVML has lost a GPU: its jobs share without MPS, and nothing is known of them", "gpu", d.Index, "why",
				d.Lost)
		}
		if d.NUMA {
			a.Log.Warn("what jobs hold of a GPU's memory isn't known, and nothing is learned of jobs that are alone there: "+
				"its memory is a NUMA node, where pages stay counted after a process has ended", "gpu", d.Index)
		}
		if d.MPS.NoMemLimits() {
			a.Metrics.noLimits.Set(1)
		}
		if !d.MIG.On || len(d.MIG.Instances) == 0 {
			add(d, nvml.Instance{}, nil)
			continue
		}
		for k := range d.MIG.Instances {
			add(d.Instance(k), d.MIG.Instances[k], d.MIG.Instances)
		}
	}
	a.cards, a.listed = len(cards), cards
	for i, g := range before {
		g.missing, a.gpus[i] = true, g
		a.forget(i)
	}
	return a.Dir.WriteCards(cards)
}

// tellLost lists the GPUs anew for the hooks where a reading shows that the driver has lost one, or has one back: until
// the GPUs are opened again, which they aren't while jobs run, prologs would count on it.
func (a *Agent) tellLost(g *gpu, lost bool) {
	i := slices.IndexFunc(a.listed, func(c prolog.Card) bool { return c.UUID == g.dev.UUID })
	if g.missing || g.dev.Lost != "" || i < 0 || a.listed[i].Lost == lost {
		return
	}
	a.listed[i].Lost = lost
	a.Log.Error("the driver has lost a GPU while jobs run, or has it back", "gpu", g.dev.UUID, "lost", lost)
	if err := a.Dir.WriteCards(a.listed); err != nil {
		a.Log.Warn("hooks still count on it", "err", err)
	}
}

// forget drops a GPU that is no more, and its failure, unless it is needed for the record of a job that had it.
func (a *Agent) forget(i int) {
	delete(a.broken, i)
	for _, t := range a.jobs {
		if t.has(i) {
			return
		}
	}
	delete(a.gpus, i)
}

// Run watches until ctx ends. While no job is there it sleeps.
func (a *Agent) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch jobs: %w", err)
	}
	defer w.Close()
	if err := errors.Join(w.Add(a.Dir.Jobs()), w.Add(a.Dir.Ended())); err != nil {
		return fmt.Errorf("watch jobs: %w", err)
	}
	a.scan()
	defer a.keepState()
	next := time.NewTimer(0)
	defer next.Stop()
	// A look now and then finds what an event was lost for, and records that could not be kept.
	slow := time.NewTicker(idlePeriod)
	defer slow.Stop()
	state := time.NewTicker(stateEvery)
	defer state.Stop()
	for {
		if due, ok := a.due(); ok {
			next.Reset(max(0, due.Sub(a.Now())))
		} else {
			next.Stop()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.Events:
			drain(w.Events)
			a.scan()
		case err := <-w.Errors:
			a.Log.Warn("watch jobs", "err", err)
			a.scan()
		case <-next.C:
			if err := a.acquire(); err != nil {
				return err
			}
			a.pass()
		case <-slow.C:
			a.scan()
			if err := errors.Join(a.look(), a.retry()); err != nil {
				return err
			}
			if err := a.Dir.BoundLogs(); err != nil {
				a.Log.Warn("logs of MPS servers grow", "err", err)
			}
			a.rest()
		case <-state.C:
			a.keepState()
		}
	}
}

// restAfter is how long no job has been there when the agent closes the GPUs.
const restAfter = time.Minute

// rest closes the GPUs where no job has needed them of late.
func (a *Agent) rest() {
	switch now := a.Now(); {
	case a.running() > 0:
		a.needed = now
	case now.Sub(a.needed) >= restAfter:
		a.release()
	}
}

func (a *Agent) release() {
	if a.Driver == nil || a.released {
		return
	}
	a.released = true
	if err := a.Driver.Release(); err != nil {
		a.Log.Warn("close the GPUs", "err", err)
	}
	a.Log.Debug("the GPUs are closed until a job comes")
}

func (a *Agent) acquire() error {
	a.needed = a.Now()
	if !a.released {
		return nil
	}
	return a.open()
}

// open opens the GPUs, or looks at them again, and lists them again if their compute mode or MIG instances have
// changed. It returns an error, and the agent has to be restarted, if there are other GPUs or another driver.
func (a *Agent) open() error {
	anew, err := a.Driver.Acquire()
	if err != nil {
		return fmt.Errorf("open the GPUs: %w", err)
	}
	a.released = false
	if a.cut = prolog.Cut(a.Proc); !anew {
		return nil
	}
	a.Devices = a.Driver.Devices()
	a.Log.Info("the GPUs have another compute mode, or are cut into other MIG instances", "instances", a.cut)
	err = a.list()
	a.scan()
	return err
}

// look opens the GPUs for a moment where /proc shows other MIG instances than are listed: hooks need the new ones with
// the next job. While somebody is at it they are left alone: two looks have to find them alike.
func (a *Agent) look() error {
	was := a.recut
	if a.recut = prolog.Cut(a.Proc); a.Driver == nil || a.recut == a.cut || a.recut != was {
		return nil
	}
	closed := a.released
	if err := a.open(); err != nil {
		return err
	}
	if closed {
		a.release()
	}
	return nil
}

// keepState writes down what was gathered, if there is anything.
func (a *Agent) keepState() {
	_, err := os.Stat(a.statePath())
	if len(a.jobs) == 0 && errors.Is(err, os.ErrNotExist) {
		return
	}
	if err := a.save(); err != nil {
		a.Log.Warn("a restart would lose what was gathered", "err", err)
	}
}

func (a *Agent) running() (n int) {
	for _, t := range a.jobs {
		if t.runs() {
			n++
		}
	}
	return n
}

func drain(events <-chan fsnotify.Event) {
	for {
		select {
		case <-events:
		default:
			return
		}
	}
}
