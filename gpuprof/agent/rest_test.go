package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
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

func (d *driver) Acquire() (anew bool, err error) {
	if d.changed == nil {
		d.closed = false
		d.opened++
	}
	return d.devices != nil, d.changed
}

func (d *driver) Devices() []nvml.Device {
	out := d.devices
	d.devices = nil
	return out
}

// rests is a bench whose GPUs fail a test that reads them while they are closed.
func rests(t *testing.T, devices ...nvml.Device) (*bench, *driver) {
	b, d := newBench(t, devices...), new(driver)
	b.Driver = d
	b.card(0).use = func() (float64, error) {
		if d.closed {
			t.Error("a closed GPU is read")
		}
		return 0.5, nil
	}
	return b, d
}

// ticks is what the agent does every ten seconds, so many times.
func (b *bench) ticks(n int) {
	b.t.Helper()
	for range n {
		b.now = b.now.Add(idlePeriod)
		b.scan()
		must.OK(b.t, b.retry())
		b.rest()
		if b.running() > 0 {
			must.OK(b.t, b.acquire())
			b.pass()
		}
	}
}

// The GPUs are closed a minute after the last job, and open while one is there.
func TestGPUsAreClosedWithoutJobs(t *testing.T) {
	b, d := rests(t)
	b.ticks(5)
	must.Equal(t, d.closed, false, "within the first minute")
	b.ticks(1)
	must.Equal(t, d.closed, true, "a minute without a job")
	b.begin(1, 0)
	b.ticks(20)
	must.Equal(t, *d, driver{opened: 1}, "while a job runs")
	if r := b.ended(1); r.Samples < 15 || r.Failed > 0 {
		t.Errorf("%d samples, %d failed", r.Samples, r.Failed)
	}
	b.ticks(7)
	must.Equal(t, d.closed, true, "a minute after the last")
	b.wants()
}

// A GPU that failed is looked at again, and closed between: it may be about to be reset.
func TestBrokenGPUIsClosedBetweenLooks(t *testing.T) {
	b, d := rests(t)
	b.card(0).err = errors.New("it hangs")
	b.begin(1, 0)
	b.ticks(1)
	b.end(1)
	b.ticks(60)
	b.wants("it hangs")
	if !d.closed || d.opened < 2 || d.opened > 6 {
		t.Errorf("in ten minutes it was opened %d times; closed now: %v", d.opened, d.closed)
	}
	b.card(0).err = nil
	b.ticks(20)
	b.wants()
	must.Equal(t, d.closed, true)
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
	must.Equal(t, b.released, false, "without a driver to release")
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

// Where a MIG manager has cut a GPU the hooks know the new instances before a job comes, by the same agent, and the
// GPUs are closed again. While the manager is at it, between one look and the next, it is left alone.
func TestInstancesAreListedAnew(t *testing.T) {
	b, d := rests(t, nvml.Device{Minor: 1, UUID: "GPU-a"})
	b.release()
	must.Equal(t, uuids(t, b.Dir, 0, 1), []string{"GPU-a", ""})
	must.OK(t, b.look())
	for n := range 3 {
		b.cutAs(n)
		d.devices = migged()[:1]
		must.OK(t, b.look())
		must.Equal(t, d.opened, 0, "opened while the instances come and go")
	}
	must.OK(t, b.look())
	must.Equal(t, uuids(t, b.Dir, 0, 1, 2), []string{"MIG-1", "MIG-2", ""})
	must.Equal(t, b.released, true)
	must.OK(t, b.look())
	must.Equal(t, *d, driver{closed: true, opened: 1}, "closed again, and not opened without need")
}

// A job that comes with other instances than the agent knows has its own in its record; the record of one that has
// ended is of what it ran on.
func TestJobsAroundACut(t *testing.T) {
	b, d := rests(t, migged()[1:]...)
	b.kept.fail = true
	b.begin(1, 0)
	b.end(1)
	b.scan()
	b.release()
	d.devices = []nvml.Device{migged()[0]}
	must.OK(t, b.Dir.Begin(&prolog.JobFile{JobID: 2, GPUs: []int{0}, UUIDs: []string{"MIG-2"}, Start: b.now}))
	b.scan()
	must.OK(t, b.acquire())
	b.kept.fail = false
	must.Equal(t, b.closed(1).GPUs[0].UUID, "GPU-b")
	g := b.ended(2).GPUs[0]
	must.Equal(t, g.UUID+" of "+g.Parent, "MIG-2 of GPU-a")
}
