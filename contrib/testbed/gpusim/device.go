package gpusim

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// What Claim and Progress can answer besides the errors of the lock.
var (
	// ErrOOM: the process's first allocation doesn't fit.
	ErrOOM = errors.New("out of memory")
	// ErrLost: the GPU has fallen off the bus.
	ErrLost = errors.New("GPU is lost")
	// ErrExclusive: the GPU is another process's alone.
	ErrExclusive = errors.New("the GPU is in exclusive use")
	// ErrFull: no slot is free.
	ErrFull = errors.New("too many processes on the simulated GPU")
	// ErrNoInstance: the GPU is in MIG mode and no instance was named.
	ErrNoInstance = errors.New("no such MIG instance")
	// ErrGone: the slot isn't the process's any more.
	ErrGone = errors.New("slot lost")
)

// Device is one GPU of a State.
type Device struct {
	state *State
	index int
	rec   *deviceRec
}

// Index returns the GPU's NVML index.
func (d *Device) Index() int { return d.index }

// UUID returns the GPU's UUID, as NVML and CUDA_VISIBLE_DEVICES have it.
func (d *Device) UUID() string { return cString(d.rec.UUID[:]) }

// SameUser reports whether MPS is as before Volta: a fault or a second user concerns all clients.
func (d *Device) SameUser() bool { return d.rec.SameUser }

// MemMiB returns the card's memory, MiB.
func (d *Device) MemMiB() float64 { return d.rec.MemTotal }

// update advances the device to now, drops dead processes, runs f and keeps the outcome. An error of f's is returned.
func (d *Device) update(f func(v *view) error) error {
	return d.state.locked(func() error {
		now := atomic.LoadUint32(&d.rec.Cur)
		v := &view{d.rec, d.rec.Dyn[now]}
		v.advance(max(d.state.Now(), v.T))
		v.reap()
		v.speeds()
		err := f(v)
		v.speeds()
		d.rec.Dyn[1-now] = v.dyn
		atomic.StoreUint32(&d.rec.Cur, 1-now)
		return err
	})
}

// reap looks for processes that died, were stopped or go on.
func (v *view) reap() {
	for i := range v.Member {
		m, s := &v.Member[i], &v.Slot[i]
		if m.Status == Free {
			continue
		}
		if now := status(s.PID, s.Start); now == Free {
			v.drop(i)
		} else if m.Status.present() {
			m.Status = now
		}
	}
}

// status tells whether the process that started at the given time is still there: Running, Paused, or Free = it isn't.
func status(pid int, start uint64) Status {
	st, err := procStat(pid)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return Free
	case err != nil: // another user's that /proc hides
		return Running
	case st.Starttime != start, strings.Contains("ZX", st.State):
		return Free
	case strings.Contains("Tt", st.State):
		return Paused
	}
	return Running
}

func procStat(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// drop takes the process at a place off the device. An MPS server takes its clients' contexts along.
func (v *view) drop(i int) {
	v.Member[i] = member{}
	if s := &v.Slot[i]; s.Kind == Server {
		v.fault(s.PID)
	}
}

// fault destroys the contexts of an MPS server's clients.
func (v *view) fault(server int) {
	for i, s := range v.present {
		if s.Server == server {
			v.end(i, Faulted)
		}
	}
}

// Snapshot is a GPU at one moment.
type Snapshot struct {
	Index       int
	UUID        string
	Name        string
	MemTotalMiB float64
	Lost        bool
	ComputeMode int

	Figures
	Processes []Process
}

// Process is one process on a GPU. Its EndT is now while it runs.
type Process struct {
	Claimant
	member
	Kind      Kind
	App       string
	DurationS float64 // what all of its work takes alone, under its limits
}

// Snapshot looks at the GPU now.
func (d *Device) Snapshot() (s Snapshot, err error) {
	err = d.update(func(v *view) error {
		s = Snapshot{
			Index: d.index, UUID: d.UUID(), Name: cString(v.Name[:]), MemTotalMiB: v.MemTotal, Lost: v.Lost,
			ComputeMode: v.ComputeMode, Figures: v.Figures,
		}
		for i := range v.present {
			s.Processes = append(s.Processes, v.process(i))
		}
		return nil
	})
	return s, err
}

func (v *view) process(i int) Process {
	s := &v.Slot[i]
	p := Process{s.Claimant, v.Member[i], s.Kind, cString(s.App[:]), s.DurationS}
	if p.Status.present() {
		p.EndT = v.T
	}
	return p
}

// figures are the NVML figures a fault can be set for.
var figures = []string{
	"handle", "name", "uuid", "minor", "arch", "memory", "utilization", "pcie-throughput",
	"pcie-link", "power", "processes", "mps-processes", "process-utilization", "gpm", "mig",
}

// faultModes are the ways in which a figure can be wrong: the call fails, or what it returns is 0, near its type's
// largest number, or falls as time passes.
var faultModes = []string{"none", "return", "zero", "huge", "backwards"}

// SetFault makes an NVML figure of the GPU misbehave: mode is zero, huge, backwards, return=CODE (the call returns that
// nvmlReturn_t) or none. The figure "all" means every one.
func (d *Device) SetFault(figure, mode string) error {
	name, arg, _ := strings.Cut(mode, "=")
	f := fault{Mode: slices.Index(faultModes, name)}
	_, _ = fmt.Sscan(arg, &f.Value)
	if f.Mode < 0 || figure != "all" && !slices.Contains(figures, figure) {
		return fmt.Errorf("no fault %q of %q", mode, figure)
	}
	return d.state.locked(func() error {
		for i, known := range figures {
			if figure == "all" || figure == known {
				d.rec.Fault[i] = f
			}
		}
		return nil
	})
}

// SetComputeMode puts the GPU into a compute mode: an nvmlComputeMode_t.
func (d *Device) SetComputeMode(mode int) error {
	return d.state.locked(func() error { d.rec.ComputeMode = mode; return nil })
}

// SetLost makes the GPU fall off the bus, or brings it back. Applications on a lost GPU fail at once.
func (d *Device) SetLost(lost bool) error {
	return d.state.locked(func() error { d.rec.Lost = lost; return nil })
}
