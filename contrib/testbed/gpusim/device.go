package gpusim

import (
	"errors"
	"sync/atomic"
)

// What Claim can answer besides the errors of the lock.
var (
	// ErrOOM: the process's first allocation doesn't fit.
	ErrOOM = errors.New("out of memory")
	// ErrLost: the GPU has fallen off the bus.
	ErrLost = errors.New("GPU is lost")
	// ErrExclusive: the GPU is another process's alone.
	ErrExclusive = errors.New("the GPU is in exclusive use")
	// ErrFull: no slot is free.
	ErrFull = errors.New("too many processes on the simulated GPU")
	// ErrNoInstance: the GPU has no such MIG instance, or is in MIG mode and none
	// was named.
	ErrNoInstance = errors.New("no such MIG instance")
	// ErrGone: the slot isn't the process's any more.
	ErrGone = errors.New("slot lost")
)

// Device is one GPU of a State.
type Device struct {
	state *State
	index int
	rec   *deviceRec
	view  view // guarded by the state's lock
}

// Index returns the GPU's NVML index.
func (d *Device) Index() int { return d.index }

// UUID returns the GPU's UUID, as NVML and CUDA_VISIBLE_DEVICES have it.
func (d *Device) UUID() string { return cString(d.rec.UUID[:]) }

// SameUser reports whether MPS is as before Volta: a fault or a second user
// concerns all clients.
func (d *Device) SameUser() bool { return d.rec.SameUser != 0 }

// MemMiB returns the card's memory, MiB.
func (d *Device) MemMiB() float64 { return d.rec.MemTotal }

// MaxClients returns how many MPS clients the card serves at a time.
func (d *Device) MaxClients() int { return int(d.rec.MaxClients) }

// update advances the device to now, drops dead processes, runs f and keeps the
// outcome; after an error from f nothing is kept.
func (d *Device) update(f func(v *view) error) error {
	return d.state.locked(func() error {
		d.view.rec, d.view.dyn = d.rec, d.rec.Dyn[atomic.LoadUint32(&d.rec.Cur)]
		d.view.advance(max(d.state.Now(), d.view.dyn.T))
		d.reap()
		if err := f(&d.view); err != nil {
			return err
		}
		d.view.speeds()
		d.rec.commit(&d.view.dyn)
		return nil
	})
}

// fault destroys the contexts of an MPS server's clients.
func (v *view) fault(server int32) {
	for i, s := range v.present {
		if s.Server == server {
			v.dyn.Faults++
			v.end(i, Faulted)
		}
	}
}

// reap looks for processes that died or were stopped.
func (d *Device) reap() {
	v := &d.view
	for i := range v.dyn.Member {
		m, s := &v.dyn.Member[i], &d.rec.Slot[i]
		if m.Status == Free {
			continue
		}
		switch l := lifeOf(s.Pid, s.Start); {
		case l == dead:
			if m.Status.present() && s.Kind != Server {
				v.dyn.Killed++
			}
			*m = member{}
			if s.Kind == Server {
				v.fault(s.Pid)
			}
		case l == stopped && m.Status == Running:
			m.Status = Paused
		case l == alive && m.Status == Paused:
			m.Status = Running
		}
	}
	d.rec.LookedNs = d.state.clock()
}
