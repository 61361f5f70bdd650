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
	pid   int
	start uint64
}

// Claim puts an application on the GPU, from now on, with profile p. It returns
// ErrOOM, ErrLost, ErrExclusive, ErrFull, ErrNoInstance or ErrGone (its server has), or an error of the lock.
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
		if !d.rec.SameUser {
			c.Limits.apply(pts)
		}
	}
	// An instance's fewer SMs make kernels longer, as a thread percentage does.
	Limits{Threads: d.rec.part(c.Instance)}.apply(pts)
	return d.claim(p.App, &slot{Claimant: c, Kind: kind, StepS: p.StepS}, pts)
}

// ClaimServer puts an MPS server's own context on the GPU.
func (d *Device) ClaimServer(c Claimant) (*Slot, error) {
	ever := []point{{Until: math.Inf(1), Use: rlcore.Use{MemMiB: d.rec.MemContext}}}
	return d.claim("nvidia-cuda-mps-server", &slot{Claimant: c, Kind: Server}, ever)
}

func (d *Device) claim(app string, rec *slot, pts []point) (*Slot, error) {
	if rec.PID == 0 {
		rec.PID = os.Getpid()
	}
	st, err := procStat(rec.PID)
	if err != nil {
		return nil, fmt.Errorf("claim GPU: process %d: %w", rec.PID, err)
	}
	rec.Start, rec.Points, rec.DurationS = st.Starttime, len(pts), pts[len(pts)-1].Until
	setCString(rec.App[:], app)
	copy(rec.Point[:], pts)
	s := &Slot{dev: d, pid: rec.PID, start: rec.Start}
	return s, d.update(func(v *view) error {
		s.place = slices.IndexFunc(v.Member[:], func(m member) bool { return m.Status == Free })
		in, served, inUse := rec.Instance, false, false
		for _, s := range v.present {
			served = served || s.Kind == Server && s.PID == rec.Server
			inUse = inUse || s.Kind != Client && s.Instance == in
		}
		switch {
		case v.Lost:
			return ErrLost
		case v.MIG && in == 0:
			return ErrNoInstance
		case rec.Kind == Client && !served:
			return ErrGone
		case rec.Kind != Client && inUse && v.ComputeMode == exclusiveProcess:
			return ErrExclusive
		case s.place < 0:
			return ErrFull
		case v.room(in) < pts[0].MemMiB:
			v.OOM++
			return ErrOOM
		}
		v.Slot[s.place] = *rec
		v.Member[s.place] = member{Status: Running, Slowdown: 1, StartT: v.T}
		return nil
	})
}

// phases turns a profile into phases: equal neighbours become one.
func phases(p *rlcore.Profile) (pts []point) {
	for i, u := range p.Series {
		u.MemBusy = 0 // counts for no law here
		if i > 0 && float64(i)*p.PeriodS >= p.DurationS {
			break
		}
		if n := len(pts); n == 0 || pts[n-1].Use != u {
			pts = append(pts, point{Use: u})
		}
		pts[len(pts)-1].Until = float64(i+1) * p.PeriodS
	}
	pts[len(pts)-1].Until = p.DurationS
	return pts
}

// Progress advances the GPU to now and says how the process fares. It returns
// ErrGone when the slot was taken from it, ErrLost when the GPU is lost.
func (s *Slot) Progress() (p Process, err error) {
	err = s.dev.update(func(v *view) error {
		switch {
		case v.Lost:
			return ErrLost
		case !s.mine(v):
			return ErrGone
		}
		p = v.process(s.place)
		return nil
	})
	return p, err
}

func (s *Slot) mine(v *view) bool {
	rec := &v.Slot[s.place]
	return v.Member[s.place].Status != Free && rec.PID == s.pid && rec.Start == s.start
}

// Release gives the slot back. A process that still runs ends here, before its
// work is done. A server takes its clients' contexts along.
func (s *Slot) Release() error {
	return s.dev.update(func(v *view) error {
		if s.mine(v) {
			v.drop(s.place)
		}
		return nil
	})
}

// Fault destroys the process's context, as a memory fault in a kernel does, and gives the slot back. A client of an
// MPS server takes all other clients' contexts along, on all of the server's GPUs.
func (s *Slot) Fault() error {
	server := s.dev.rec.Slot[s.place].Server
	err := s.Release()
	for _, d := range s.dev.state.devs {
		if server != 0 {
			err = errors.Join(err, d.update(func(v *view) error { v.fault(server); return nil }))
		}
	}
	return err
}

// present yields the processes that hold memory, by their places.
func (v *view) present(yield func(i int, s *slot) bool) {
	for i := range v.Member {
		if v.Member[i].Status.present() && !yield(i, &v.Slot[i]) {
			return
		}
	}
}

// Clients counts the clients that an MPS server has on all GPUs.
func (s *State) Clients(server int) (n int) {
	for _, d := range s.devs {
		snap, _ := d.Snapshot()
		for _, p := range snap.Processes {
			if p.Server == server {
				n++
			}
		}
	}
	return n
}
