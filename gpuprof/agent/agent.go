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

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// Agent watches one node. One goroutine owns all of it.
type Agent struct {
	Dir     prolog.Dir
	Devices []nvml.Device
	Node    string
	// Period is the time between two samples, on average at least; see pace.
	Period time.Duration
	// Driver opens and closes the GPUs. An open GPU can't be reset or cut into instances, and the driver can't be
	// replaced, so the agent closes the GPUs while no job is there. nil = they stay open. Acquire returns true, and
	// Devices are new, if compute modes or MIG instances have changed.
	Driver interface {
		Acquire() (anew bool, err error)
		Release() error
		Devices() []nvml.Device
	}
	// DCGM gives the activity of MIG instances for which NVML gives none; nil = no exporter is read.
	DCGM *DCGM
	// Keep takes a closed record; on an error the job's file stays and the record is closed again later.
	Keep    func(*gpuprof.Record) error
	Now     func() time.Time
	Log     *slog.Logger
	Metrics *Metrics
	// Proc is /proc, and Groups /sys/fs/cgroup, unless a test sets it.
	Proc, Groups string

	jobs   map[run]*tracked
	gpus   map[int]*gpu  // by the agent's number, which is negative for a job's GPU that NVML doesn't have
	next   int           // the number of the next GPU or instance
	cards  int           // number of cards in NVML
	listed []prolog.Card // the list for the hooks
	cut    string        // prolog.Cut when the GPUs were listed
	recut  string        // prolog.Cut at the last look
	before map[run]saved // the previous agent's data, until the first scan
	// Failures of the last passes to read job files, and to read GPUs.
	filesErr error
	broken   map[int]error
	released bool      // the GPUs are closed
	needed   time.Time // when a job last needed them
	last     atomic.Pointer[pass]
	report   atomic.Pointer[gpuprof.IdleReport]
}

// Device is a GPU, or a MIG instance, as the agent reads it: an nvml.Device.
type Device interface {
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

func runOf(j *prolog.JobFile) run { return run{j.JobID, j.Restart} }

type gpu struct {
	index   int // the agent's own number
	dev     nvml.Device
	card    Device
	missing bool // NVML doesn't have it: a job's file names it, or it was a MIG instance

	pace  pace
	last  observed
	fresh bool // last is from the GPU's latest pass
	seen  time.Time

	traffic traffic
	counts  bool // performance monitoring measures PCIe

	uses      map[int]float64 // SM utilisation by process
	usesAt    time.Time       // the newest sample read from the driver
	usesRead  time.Time
	samples   samples
	without   map[int]bool // processes without MPS in the last reading
	processes map[int]process
}

// process names the job of a process, and when the process was last seen on the GPU.
type process struct {
	job int64
	at  time.Time
}

// tracked is a run with an open record.
type tracked struct {
	job  *prolog.JobFile
	gpus []int // the agent's own numbers of the job's GPUs
	saved
	resume time.Time // the start of the time for which the next reading counts
	held   gpuprof.Reading
	// noEpilog: the job's file vanished; job.End is when it was last seen.
	noEpilog bool
	told     bool      // it was logged that the record can't be kept yet
	idle     time.Time // since when the GPUs have been idle; zero = busy or unknown
	seen     time.Time // when all of the GPUs were last read
	asked    time.Time // when the control group was last read
	// apart: in the last reading a process of a job that shares its GPU computed without MPS.
	apart bool
}

// runs reports whether no end of the job is known.
func (t *tracked) runs() bool { return t.job.End.IsZero() }

func (t *tracked) has(gpu int) bool { return slices.Contains(t.gpus, gpu) }

// Start lists the GPUs for the hooks and loads the data of a previous agent.
func (a *Agent) Start() error {
	a.needed = a.Now()
	a.report.Store(&gpuprof.IdleReport{Node: a.Node})
	a.jobs = map[run]*tracked{}
	a.gpus = map[int]*gpu{}
	a.broken = map[int]error{}
	a.next = 0
	// Process 1 has all capabilities, like slurmstepd.
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

// list lists the present GPUs and MIG instances for the agent and the hooks. A GPU that was listed before keeps its
// number.
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
		g.dev = d
		g.card = a.use(&d, in, of)
		a.gpus[g.index] = g
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
	a.cards = len(cards)
	a.listed = cards
	for i, g := range before {
		g.missing = true
		a.gpus[i] = g
		a.forget(i)
	}
	return a.Dir.WriteCards(cards)
}

// tellLost updates the hooks' list if a reading shows that the driver has lost a GPU or has it back. The GPUs are not
// opened again while jobs run, and until then prologs would use the old list.
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

// forget drops a GPU that no longer exists, and its failure, unless the record of a job needs it.
func (a *Agent) forget(i int) {
	delete(a.broken, i)
	for _, t := range a.jobs {
		if t.has(i) {
			return
		}
	}
	delete(a.gpus, i)
}

// Run watches until ctx ends. It sleeps while no job is there.
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
	// Looking now and then finds jobs after a lost event, and records that couldn't be kept.
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

// restAfter is the time without jobs after which the agent closes the GPUs.
const restAfter = time.Minute

// rest closes the GPUs if no job has needed them for restAfter.
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

// open opens the GPUs or, if they are open, checks them. It lists them again if their compute mode or MIG instances
// have changed. It returns an error, after which the agent must restart, if the GPUs or the driver are others.
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

// look opens the GPUs for a moment if /proc shows other MIG instances than are listed, because the next job's hooks
// need the new ones. The GPUs are left alone while instances are being made: two looks in a row must see the same ones.
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

// keepState saves the gathered data, if there is any.
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
