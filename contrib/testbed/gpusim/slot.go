package gpusim

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Slot is a process's place on a GPU.
type Slot struct {
	dev   *Device
	place int
	pid   int32
	start uint64
}

// Claimant is a process that claims a place on a GPU. PID 0 means the caller's process.
type Claimant struct {
	PID    int
	UID    int
	Server int // pid of the MPS server it is a client of; 0 = context of its own
	// Instance is the UUID of the MIG instance it runs in; "" = the whole card,
	// which a GPU in MIG mode doesn't give.
	Instance string
	// Limits hold for clients on cards from Volta on.
	Limits Limits
}

// Claim puts an application on the GPU, from now on, with profile p. It returns
// ErrOOM, ErrLost, ErrExclusive or ErrFull, or an error of the lock.
func (d *Device) Claim(c Claimant, p *rlcore.Profile) (*Slot, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	kind, pts := Own, phases(p)
	if len(pts) > MaxPoints {
		return nil, fmt.Errorf("claim GPU: %d phases, more than %d", len(pts), MaxPoints)
	}
	if c.Server != 0 {
		kind = Client
		if !d.SameUser() {
			c.Limits.apply(pts)
		}
	}
	if in, err := d.instance(c.Instance); err == nil && in > 0 {
		// Fewer SMs make kernels longer, as a thread percentage does.
		small := Limits{Threads: d.rec.part(in)}
		small.apply(pts)
	}
	return d.claim(c, kind, p.App, pts, pts[len(pts)-1].Until, p.StepS)
}

// ClaimServer puts an MPS server's own context on the GPU.
func (d *Device) ClaimServer(c Claimant) (*Slot, error) {
	ever := []point{{Until: math.Inf(1), Mem: d.rec.MemContext}}
	return d.claim(c, Server, "nvidia-cuda-mps-server", ever, math.Inf(1), 0)
}

func (d *Device) claim(c Claimant, kind Kind, app string, pts []point, duration, step float64) (*Slot, error) {
	if c.PID == 0 {
		c.PID = os.Getpid()
	}
	start, err := startTime(c.PID)
	if err != nil {
		return nil, fmt.Errorf("claim GPU: process %d: %w", c.PID, err)
	}
	in, err := d.instance(c.Instance)
	if err != nil {
		return nil, err
	}
	s := &Slot{dev: d, pid: int32(c.PID), start: start}
	var oom bool
	err = d.update(func(v *view) error {
		if d.rec.Lost != 0 {
			return ErrLost
		}
		if kind == Client && !v.any(func(s *slot) bool { return s.Kind == Server && s.Pid == int32(c.Server) }) {
			return ErrGone
		}
		if kind != Client && d.rec.ComputeMode == exclusiveProcess &&
			v.any(func(s *slot) bool { return s.Kind != Client && s.Instance == in }) {
			return ErrExclusive
		}
		s.place = slices.IndexFunc(v.dyn.Member[:], func(m member) bool { return m.Status == Free })
		if s.place < 0 {
			return ErrFull
		}
		if kind != Server {
			v.dyn.Started++
		}
		if v.room(in) < pts[0].Mem || !v.allows(s.pid, pts[0].Mem) {
			// It never gets a slot, but that it tried is counted.
			oom = true
			v.dyn.OOM++
			return nil
		}
		rec := &d.rec.Slot[s.place]
		*rec = slot{
			Pid: s.pid, UID: uint32(c.UID), Start: start, Server: int32(c.Server), Kind: kind,
			Points: uint32(len(pts)), Instance: in, Duration: duration, Step: step,
		}
		setCString(rec.App[:], app)
		copy(rec.Point[:], pts)
		v.dyn.Member[s.place] = member{Status: Running, Slowdown: 1, StartT: v.dyn.T}
		return nil
	})
	if oom && err == nil {
		err = ErrOOM
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Progress is how far a process has come.
type Progress struct {
	Status Status
	DoneS  float64 // solo work done, s
	// DurationS is what all of it takes alone, under the claimant's limits, s.
	DurationS float64
	// StartT, EndT and NowT are on the GPU's clock, s; EndT is 0 while it runs.
	StartT, EndT float64
	NowT         float64
	Slowdown     float64 // at this moment
	MemMaxMiB    float64
}

// Progress advances the GPU to now and says how the process fares. It returns
// ErrGone when the slot was taken from it, ErrLost when the GPU is lost.
func (s *Slot) Progress() (p Progress, err error) {
	err = s.dev.update(func(v *view) error {
		if v.rec.Lost != 0 {
			return ErrLost
		}
		if err := s.mine(v); err != nil {
			return err
		}
		v.speeds()
		m := &v.dyn.Member[s.place]
		p = Progress{
			Status: m.Status, DoneS: m.Done, StartT: m.StartT, EndT: m.EndT, NowT: v.dyn.T,
			DurationS: v.rec.Slot[s.place].Duration, Slowdown: m.Slowdown, MemMaxMiB: m.MemMax,
		}
		return nil
	})
	return p, err
}

func (s *Slot) mine(v *view) error {
	rec := &s.dev.rec.Slot[s.place]
	if v.dyn.Member[s.place].Status == Free || rec.Pid != s.pid || rec.Start != s.start {
		return ErrGone
	}
	return nil
}

// Release gives the slot back. A process that still runs ends here, before its
// work is done. A server takes its clients' contexts along.
func (s *Slot) Release() error {
	return s.leave(func(v *view) {
		if rec := &s.dev.rec.Slot[s.place]; rec.Kind == Server {
			v.fault(rec.Pid)
		} else if v.dyn.Member[s.place].Status.present() {
			v.dyn.Killed++
		}
	})
}

// Fault destroys the process's context, as a memory fault in a kernel does, and gives the slot back. A client of an
// MPS server takes all other clients' contexts along, on all of the server's GPUs.
func (s *Slot) Fault() error {
	server := s.dev.rec.Slot[s.place].Server
	err := s.leave(func(v *view) {
		if v.dyn.Member[s.place].Status.present() {
			v.dyn.Faults++
		}
	})
	for _, d := range s.dev.state.devs {
		if server != 0 {
			err = errors.Join(err, d.update(func(v *view) error { v.fault(server); return nil }))
		}
	}
	return err
}

// leave gives the slot back, after how has counted why, where it is the process's still.
func (s *Slot) leave(how func(v *view)) error {
	return s.dev.update(func(v *view) error {
		if s.mine(v) == nil {
			how(v)
			v.dyn.Member[s.place] = member{}
		}
		return nil
	})
}

// present yields the processes that hold memory, by their places.
func (v *view) present(yield func(i int, s *slot) bool) {
	for i := range v.dyn.Member {
		if v.dyn.Member[i].Status.present() && !yield(i, &v.rec.Slot[i]) {
			return
		}
	}
}

// any reports whether a process that holds memory is so.
func (v *view) any(is func(s *slot) bool) bool {
	for _, s := range v.present {
		if is(s) {
			return true
		}
	}
	return false
}

// Clients counts the clients that an MPS server has on all GPUs.
func (s *State) Clients(server int) (n int) {
	for _, d := range s.devs {
		snap, err := d.Snapshot()
		if err != nil {
			return 0
		}
		for _, p := range snap.Processes {
			if p.Server == server {
				n++
			}
		}
	}
	return n
}
