package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// driver notes whether the GPUs are open.
type driver struct {
	closed  bool
	opened  int // times
	changed error
	devices []nvml.Device // what the GPUs were cut into since they were opened last; nil = nothing
}

func (d *driver) Release() error { d.closed = true; return nil }

func (d *driver) Acquire() (recut bool, err error) {
	if d.changed == nil {
		d.closed = false
		d.opened++
	}
	recut = d.devices != nil
	return recut, d.changed
}

func (d *driver) Devices() []nvml.Device {
	out := d.devices
	d.devices = nil
	return out
}

// rests is a bench whose GPUs fail a test that reads them while they are closed.
func rests(t *testing.T) (*bench, *driver) {
	b, d := newBench(t), new(driver)
	b.Driver = d
	c := b.steady()
	c.use = func() (float64, float64, error) {
		if d.closed {
			t.Error("a closed GPU is read")
		}
		return 0.5, 0.2, nil
	}
	b.gpus[0].card = c
	return b, d
}

// tick is what the agent does every ten seconds.
func (b *bench) tick() {
	b.t.Helper()
	b.now = b.now.Add(idlePeriod)
	b.scan()
	must.OK(b.t, b.retry())
	b.rest()
	if b.running() > 0 {
		must.OK(b.t, b.acquire())
		b.pass()
	}
}

// The GPUs are closed a minute after the last job, and open while one is there.
func TestGPUsAreClosedWithoutJobs(t *testing.T) {
	b, d := rests(t)
	for range 5 {
		b.tick()
	}
	if d.closed {
		t.Error("closed within the first minute")
	}
	b.tick()
	if !d.closed {
		t.Error("open for a minute without a job")
	}
	b.begin(1, 0, 0)
	for range 20 {
		b.tick()
	}
	if d.closed || d.opened != 1 {
		t.Errorf("a job runs, and the GPUs are closed: %v, opened %d times", d.closed, d.opened)
	}
	b.end(1)
	for range 8 {
		b.tick()
	}
	if !d.closed {
		t.Error("open long after the job")
	}
	if r := b.closed(1); r.Samples < 15 || r.Failed > 0 {
		t.Errorf("%d samples, %d failed", r.Samples, r.Failed)
	}
	b.wants()
}

// On request the GPUs are closed at once, unless a job runs.
func TestGPUsAreClosedOnRequest(t *testing.T) {
	for _, busy := range []bool{false, true} {
		b := newBench(t)
		closed, asked, log := make(chan bool, 1), make(chan os.Signal), new(bytes.Buffer)
		b.Driver, b.LetGo, b.Now = closes(closed), asked, time.Now
		b.Log = slog.New(slog.NewTextHandler(log, nil))
		if busy {
			must.OK(t, b.Dir.Begin(&prolog.Job{JobID: 1, GPUs: []int{0}, Start: time.Now()}))
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- b.Run(ctx) }()
		asked <- syscall.SIGHUP
		if !busy {
			<-closed
		} else {
			asked <- syscall.SIGHUP // the first was served
		}
		stop()
		<-ended
		if busy && (len(closed) > 0 || !strings.Contains(log.String(), "jobs run: the GPUs stay open")) {
			t.Errorf("a job runs, closed %v: %s", len(closed) > 0, log)
		}
	}
}

// closes is a driver that tells when it closes.
type closes chan bool

func (c closes) Release() error         { c <- true; return nil }
func (c closes) Acquire() (bool, error) { return false, nil }
func (c closes) Devices() []nvml.Device { return nil }

// A GPU that failed is looked at again, and closed between: it may be about to be reset.
func TestBrokenGPUIsClosedBetweenLooks(t *testing.T) {
	b, d := rests(t)
	broken := errors.New("it hangs")
	good := b.gpus[0].card
	b.gpus[0].card = &card{use: func() (float64, float64, error) { return 0, 0, broken }}
	b.begin(1, 0, 0)
	b.tick()
	b.end(1)
	for range 60 {
		b.tick()
	}
	b.wants("it hangs")
	if !d.closed || d.opened < 2 || d.opened > 6 {
		t.Errorf("in ten minutes it was opened %d times; closed now: %v", d.opened, d.closed)
	}
	b.gpus[0].card = good
	for range 20 {
		b.tick()
	}
	b.wants()
	if !d.closed {
		t.Error("still open")
	}
}

// Where the GPUs have become others the agent ends, to start anew.
func TestChangedGPUsEndTheAgent(t *testing.T) {
	b, d := rests(t)
	b.release()
	d.changed = nvml.ErrChanged
	if err := b.acquire(); !errors.Is(err, nvml.ErrChanged) || !b.released {
		t.Errorf("%v", err)
	}
	// One that is to keep them open does.
	b.Driver = nil
	b.released = false
	b.now = b.now.Add(time.Hour)
	b.rest()
	if b.released {
		t.Error("released without a driver to release")
	}
}

// cutAs has /proc show so many instances of the first GPU, as their makers leave them.
func (b *bench) cutAs(instances int) {
	b.t.Helper()
	folder := filepath.Join(b.Proc, "driver/nvidia/capabilities/gpu1/mig")
	must.OK(b.t, os.RemoveAll(folder))
	for gi := range instances {
		must.OK(b.t, os.MkdirAll(filepath.Join(folder, fmt.Sprintf("gi%d/ci0", gi)), 0o755))
	}
}

// listed are the cards that the hooks know.
func (b *bench) listed() (uuids []string) {
	b.t.Helper()
	for _, c := range must.Get(b.Dir.Cards(b.Proc))(b.t) {
		uuids = append(uuids, c.UUID)
	}
	return uuids
}

// Where a MIG manager has cut a GPU the hooks know the new instances before a job comes, by the same agent, and the
// GPUs are closed again. While the manager is at it, between one look and the next, it is left alone.
func TestInstancesAreListedAnew(t *testing.T) {
	b, d := rests(t)
	b.Proc = t.TempDir()
	b.Devices = []nvml.Device{{Minor: 1, UUID: "GPU-a"}}
	must.OK(t, b.Start())
	b.release()
	must.Equal(t, b.listed(), []string{"GPU-a"})
	cut := migged()[:1]
	look := func() { t.Helper(); must.OK(t, b.look()) }
	look()
	for n := range 3 {
		b.cutAs(n)
		d.devices = cut
		look()
		must.Equal(t, d.opened, 0, "opened while the instances come and go")
	}
	look()
	must.Equal(t, d.opened, 1)
	must.Equal(t, b.listed(), []string{"MIG-1", "MIG-2"})
	must.Equal(t, b.released && d.closed, true, "closed again")
	look()
	must.Equal(t, d.opened, 1, "opened without need")
}

// A job that comes with other instances than the agent knows has its own in its record; the record of one that has
// ended is of what it ran on.
func TestJobsAroundACut(t *testing.T) {
	b, d := rests(t)
	b.Proc = t.TempDir()
	b.Devices = migged()[1:]
	must.OK(t, b.Start())
	keeps := b.Keep
	b.Keep = func(*gpuprof.Record) error { return errors.New("the disk is full") }
	b.begin(1, 0, 0)
	b.scan()
	b.end(1)
	b.scan()
	b.release()
	d.devices = []nvml.Device{migged()[0]}
	must.OK(t, b.Dir.Begin(&prolog.Job{JobID: 2, GPUs: []int{0}, UUIDs: []string{"MIG-2"}, Start: b.now}))
	b.scan()
	must.OK(t, b.acquire())
	b.Keep = keeps
	b.scan()
	must.Equal(t, b.closed(1).GPUs[0].UUID, "GPU-b")
	b.end(2)
	b.scan()
	g := b.closed(2).GPUs[0]
	must.Equal(t, g.UUID+" of "+g.Parent, "MIG-2 of GPU-a")
}
