// Package agent is the node agent's work: it sees jobs come and go in the hooks'
// folder, samples their GPUs, and closes a record for each.
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
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Agent watches one node. It has one goroutine and owns all it holds.
type Agent struct {
	Dir  prolog.Dir
	Lib  nvml.Library
	Node string
	// Period is the time between two samples, s. Default 1 s.
	Period time.Duration
	// Keep takes a closed record; on an error the job's file stays and the record
	// is closed again later.
	Keep    func(*gpuprof.Record) error
	Now     func() time.Time
	Log     *slog.Logger
	Metrics *Metrics

	jobs map[run]*tracked
	gpus map[int]gpu // by gres.conf's index
	// What the last passes failed at: reading job files, reading GPUs (those that
	// have answered since are not there).
	filesErr error
	broken   map[int]error
	last     atomic.Pointer[pass]
}

// run names one run of a job: a requeued job has several.
type run struct {
	id      int64
	restart int
}

func runOf(j *prolog.Job) run { return run{j.JobID, j.Restart} }

type gpu struct {
	at  int // index in Lib.Devices
	dev nvml.Device
	// sample is of the last pass, where that has one.
	sample nvml.Sample
	fresh  bool
}

// tracked is a job that runs.
type tracked struct {
	job        *prolog.Job
	tally      *gpuprof.Tally
	samples    int
	failed     int
	seen       time.Time // up to when it was sampled
	late       bool      // the agent came when it had been running for a while
	neighbours map[run]*gpuprof.Neighbour
}

// runs reports whether the job's end isn't known yet.
func (t *tracked) runs() bool { return t.job.End.IsZero() }

// Start reads what the library knows and tells the hooks which GPU is which.
func (a *Agent) Start() error {
	if a.Period == 0 {
		a.Period = time.Second
	}
	a.jobs, a.gpus, a.broken = map[run]*tracked{}, map[int]gpu{}, map[int]error{}
	devices := a.Lib.Devices()
	// gres.conf's order is that of the device files, whose numbers can have gaps.
	order := make([]int, len(devices))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return devices[x].Minor - devices[y].Minor })
	var cards []prolog.Card
	for index, i := range order {
		d := devices[i]
		a.gpus[index] = gpu{at: i, dev: d}
		cards = append(cards, prolog.Card{
			Index: index, NVMLIndex: d.Index, Minor: d.Minor, UUID: d.UUID, Model: d.Model, Arch: d.Arch, MemMiB: d.MemMiB,
		})
	}
	return a.Dir.WriteCards(cards)
}

// Run watches until ctx ends. While no job is there it sleeps.
func (a *Agent) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch jobs: %w", err)
	}
	defer w.Close()
	for _, dir := range []string{a.Dir.Jobs(), a.Dir.Ended()} {
		if err := w.Add(dir); err != nil {
			return fmt.Errorf("watch jobs: %w", err)
		}
	}
	a.scan()
	tick := time.NewTicker(a.Period)
	defer tick.Stop()
	// A look now and then finds what an event was lost for, and records that could
	// not be kept.
	slow := time.NewTicker(idlePeriod)
	defer slow.Stop()
	for {
		ticks := tick.C
		if !a.busy() {
			ticks = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, ok := <-w.Events:
			if !ok {
				return errors.New("watch jobs: the watcher ended")
			}
			drain(w.Events)
			a.sample() // up to the change, with who was there before it
			a.scan()
			tick.Reset(a.Period)
		case err, ok := <-w.Errors:
			if !ok {
				return errors.New("watch jobs: the watcher ended")
			}
			a.Log.Warn("watch jobs", "err", err)
			a.scan()
		case <-ticks:
			a.sample()
		case <-slow.C:
			a.scan()
			a.retry()
		}
	}
}

// busy reports whether a job runs.
func (a *Agent) busy() bool {
	for _, t := range a.jobs {
		if t.runs() {
			return true
		}
	}
	return false
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

// scan takes up jobs that came and closes those that went.
func (a *Agent) scan() {
	wasBusy := a.busy()
	running, rerr := prolog.List(a.Dir.Jobs())
	now := a.Now()
	for _, j := range running {
		t := a.jobs[runOf(j)]
		if t != nil && t.job.Start.Equal(j.Start) {
			continue
		}
		t = &tracked{job: j, seen: now, neighbours: map[run]*gpuprof.Neighbour{}}
		t.tally = gpuprof.NewTally(a.Period.Seconds(), 0, 0)
		if late := now.Sub(j.Start); late < max(2*a.Period, time.Second) {
			t.seen = j.Start
		} else {
			t.late = true
		}
		a.jobs[runOf(j)] = t
	}
	a.meet(now)
	ended, eerr := prolog.List(a.Dir.Ended())
	if a.filesErr = errors.Join(rerr, eerr); a.filesErr != nil {
		a.Log.Warn("job files", "err", a.filesErr)
	}
	for _, j := range ended {
		a.finish(j)
	}
	// A job that is in neither folder ended without an epilog: the node was
	// restarted, or its file was removed.
	for r, t := range a.jobs {
		if eerr != nil || listed(running, r) || listed(ended, r) {
			continue
		}
		if _, err := os.Stat(filepath.Join(a.Dir.Jobs(), fmt.Sprintf("%d.json", r.id))); err == nil && !a.requeued(r) {
			continue
		}
		t.job.End = now
		if again, err := prolog.List(a.Dir.Ended()); err == nil && !listed(again, r) {
			a.Log.Warn("a job's file went away without an epilog; no record", "job", r.id)
			delete(a.jobs, r)
		}
	}
	n := 0
	for _, t := range a.jobs {
		if t.runs() {
			n++
		}
	}
	a.Metrics.running(n)
	a.Metrics.show(a.uses())
	// While jobs run only a sample shows that sampling goes on.
	if n == 0 || !wasBusy {
		a.passed(now)
	}
}

func listed(list []*prolog.Job, r run) bool {
	return slices.ContainsFunc(list, func(j *prolog.Job) bool { return runOf(j) == r })
}

// requeued reports whether a later run of the job is known.
func (a *Agent) requeued(r run) bool {
	for other := range a.jobs {
		if other.id == r.id && other.restart > r.restart {
			return true
		}
	}
	return false
}

// meet notes who is on the same GPU at present.
func (a *Agent) meet(now time.Time) {
	for r, t := range a.jobs {
		for other, o := range a.jobs {
			if r.id == other.id || !t.runs() || !o.runs() || !slices.ContainsFunc(t.job.GPUs, func(g int) bool { return slices.Contains(o.job.GPUs, g) }) {
				continue
			}
			n := t.neighbours[other]
			if n == nil {
				from := t.job.Start
				if o.job.Start.After(from) {
					from = o.job.Start
				}
				n = &gpuprof.Neighbour{JobID: other.id, User: o.job.User, From: from}
				t.neighbours[other] = n
			}
			n.To = now
		}
	}
}

// sample reads the GPUs that have jobs, once each.
func (a *Agent) sample() {
	if !a.busy() {
		return
	}
	a.meet(a.Now())
	read := map[int]error{}
	for _, t := range a.jobs {
		if !t.runs() {
			continue // its record could not be kept yet
		}
		var sum rlcore.Use
		var failed error
		for _, g := range t.job.GPUs {
			err, done := read[g]
			if !done {
				err = a.read(g)
				read[g] = err
			}
			if err != nil {
				failed = err
				continue
			}
			dev := a.gpus[g]
			n := float64(len(t.job.GPUs))
			sum.GPU += dev.sample.GPU / n
			sum.Core += dev.sample.GPU / n // the nearest figure where NVML gives no other
			sum.MemMiB += dev.sample.MemMiB
			sum.PCIeMBps += dev.sample.PCIeMBps
		}
		now := a.Now()
		if failed != nil {
			t.failed++
			if t.failed == 1 {
				a.Log.Warn("sample", "job", t.job.JobID, "err", failed)
			}
			continue
		}
		t.samples++
		t.tally.Add(t.seen.Sub(t.job.Start).Seconds(), now.Sub(t.job.Start).Seconds(), gpuprof.Reading{Use: sum, Has: gpuprof.AllFigures &^ gpuprof.FigPower})
		t.seen = now
	}
	a.Metrics.show(a.uses())
	a.passed(a.Now())
}

// read samples a GPU.
func (a *Agent) read(g int) error {
	dev, ok := a.gpus[g]
	if !ok {
		a.broken[g] = fmt.Errorf("NVML has no gpu %d", g)
		return a.broken[g]
	}
	var err error
	dev.sample, err = a.Lib.Sample(dev.at)
	dev.fresh = err == nil
	a.gpus[g] = dev
	a.Metrics.sampled(err)
	if err != nil {
		a.broken[g] = fmt.Errorf("gpu %d: %w", g, err)
		return a.broken[g]
	}
	delete(a.broken, g)
	return nil
}

// finish closes an ended job's record.
func (a *Agent) finish(j *prolog.Job) {
	t := a.jobs[runOf(j)]
	if t == nil {
		// The agent was not there while it ran: who and when is still worth keeping.
		t = &tracked{job: j, late: true}
		t.tally = gpuprof.NewTally(a.Period.Seconds(), 0, 0)
	}
	t.job.End = j.End
	r := a.record(t, j)
	if err := a.Keep(r); err != nil {
		a.Log.Error("record not kept; tried again later", "job", j.JobID, "err", err)
		return
	}
	delete(a.jobs, runOf(j))
	for _, o := range a.jobs {
		if n := o.neighbours[runOf(j)]; n != nil {
			n.To = j.End
		}
	}
	if err := a.Dir.Forget(j); err != nil {
		a.Log.Warn("job file", "job", j.JobID, "err", err)
	}
	a.Metrics.closed()
}

func (a *Agent) record(t *tracked, j *prolog.Job) *gpuprof.Record {
	r := &gpuprof.Record{
		JobID: j.JobID, ArrayJobID: j.ArrayJobID, ArrayTaskID: j.ArrayTaskID, Restart: j.Restart,
		Node: a.Node, UID: j.UID, User: j.User, Comment: j.Comment, Start: j.Start, End: j.End,
		Shared: j.Percent > 0 && j.Percent < 100, Samples: t.samples, Failed: t.failed,
		// What an agent that came late saw is no profile of the whole run.
		Cut: t.late || t.samples == 0,
	}
	if j.Node != "" {
		r.Node = j.Node
	}
	for _, g := range j.GPUs {
		dev := a.gpus[g].dev
		r.GPUs = append(r.GPUs, gpuprof.GPU{
			Index: g, UUID: dev.UUID, Model: dev.Model, Arch: dev.Arch, MemMiB: dev.MemMiB, PCIeMBps: dev.PCIeMBps,
		})
	}
	t.tally.Fill(r)
	for _, n := range t.neighbours {
		if n.To.After(r.End) {
			n.To = r.End
		}
		r.Neighbours = append(r.Neighbours, *n)
	}
	slices.SortFunc(r.Neighbours, func(x, y gpuprof.Neighbour) int { return x.From.Compare(y.From) })
	return r
}
