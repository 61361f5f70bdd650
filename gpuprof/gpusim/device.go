package gpusim

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// What Claim can answer besides the errors of the lock.
var (
	// ErrOOM: the process's first allocation doesn't fit.
	ErrOOM = errors.New("out of memory")
	// ErrLost: the GPU has fallen off the bus.
	ErrLost = errors.New("GPU is lost")
	// ErrFull: no slot is free.
	ErrFull = errors.New("too many processes on the simulated GPU")
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

// ModelName returns the card's gres.conf Type.
func (d *Device) ModelName() string { return cString(d.rec.Model[:]) }

// Minor returns N of /dev/nvidiaN.
func (d *Device) Minor() int { return int(d.rec.Minor) }

// MemMiB returns the card's memory, MiB.
func (d *Device) MemMiB() float64 { return d.rec.MemTotal }

// SameUser reports whether MPS is as before Volta: a fault or a second user
// concerns everyone.
func (d *Device) SameUser() bool { return d.rec.SameUser != 0 }

// MaxClients returns how many MPS clients the card serves at a time.
func (d *Device) MaxClients() int { return int(d.rec.MaxClients) }

// ContextMiB returns what an MPS server takes for itself, MiB.
func (d *Device) ContextMiB() float64 { return d.rec.MemContext }

// update advances the device to now, drops dead processes, runs f and keeps the
// outcome; after an error from f nothing is kept.
func (d *Device) update(f func(v *view) error) error {
	return d.state.locked(func() error {
		if err := d.load(); err != nil {
			return err
		}
		now := max(d.state.Now(), d.view.dyn.T)
		d.view.advance(now)
		d.reap()
		if err := f(&d.view); err != nil {
			return err
		}
		d.view.settle()
		d.rec.commit(&d.view.dyn)
		return nil
	})
}

func (d *Device) load() error {
	cur, err := d.rec.current()
	if err != nil {
		return err
	}
	d.view.rec = d.rec
	d.view.dyn = *cur
	return d.view.sane()
}

// reap looks for processes that died or were stopped.
func (d *Device) reap() (changed bool) {
	v := &d.view
	for i := range v.dyn.Member {
		m, s := &v.dyn.Member[i], &d.rec.Slot[i]
		if m.Status == Free {
			continue
		}
		switch l := look(s.Pid, s.Start); {
		case l == dead:
			if m.Status.present() {
				if s.Kind != Server {
					v.dyn.Killed++
				}
				v.end(i, Faulted)
			}
			*m = member{}
			changed = true
		case l == stopped && m.Status == Running:
			m.Status, changed = Paused, true
		case l == alive && m.Status == Paused:
			m.Status, changed = Running, true
		}
	}
	d.rec.LookedNs = d.state.clock()
	return changed
}

// Snapshot is a GPU at one moment, with what it has summed up since the state
// file was made: the mean utilisation between two snapshots a and b is
// (b.BusyS−a.BusyS)/(b.T−a.T), the mean of the memory in use
// (b.MemMiBS−a.MemMiBS)/(b.T−a.T)/MemTotalMiB.
type Snapshot struct {
	Index       int     `json:"index"`
	UUID        string  `json:"uuid"`
	Name        string  `json:"name"`
	Model       string  `json:"model"`
	Minor       int     `json:"minor"`
	MemTotalMiB float64 `json:"mem_total_mib"`
	Lost        bool    `json:"lost"`

	T        float64 `json:"t_s"`       // GPU seconds since the file was made
	GPU      float64 `json:"gpu"`       // fraction of time any kernel runs, 0..1
	Core     float64 `json:"core"`      // fraction of the SMs busy, 0..1
	MemMiB   float64 `json:"mem_mib"`   // memory held
	PCIeMBps float64 `json:"pcie_mbps"` // both directions
	PowerW   float64 `json:"power_w"`

	BusyS     float64 `json:"busy_s"`      // ∫ GPU dt
	CoreS     float64 `json:"core_s"`      // ∫ Core dt
	MemMiBS   float64 `json:"mem_mib_s"`   // ∫ MemMiB dt
	PCIeMB    float64 `json:"pcie_mb"`     // ∫ PCIeMBps dt
	EnergyJ   float64 `json:"energy_j"`    // ∫ PowerW dt
	OccupiedS float64 `json:"occupied_s"`  // seconds with at least one application
	MemMaxMiB float64 `json:"mem_max_mib"` // most memory ever held

	Started  uint64 `json:"started"`  // applications that began
	Finished uint64 `json:"finished"` // that did all their work
	OOM      uint64 `json:"oom"`      // that ran out of memory
	Killed   uint64 `json:"killed"`   // whose process died before its work was done
	Faults   uint64 `json:"faults"`   // that lost their context through a fault

	Processes []Process `json:"processes"`
}

// Process is one process on a GPU.
type Process struct {
	PID       int     `json:"pid"`
	UID       int     `json:"uid"`
	App       string  `json:"app"`
	Kind      string  `json:"kind"`
	Server    int     `json:"server,omitempty"` // pid of its MPS server
	Status    string  `json:"status"`
	GPU       float64 `json:"gpu"`     // what it asks for alone, 0..1
	MemMiB    float64 `json:"mem_mib"` // held
	DoneS     float64 `json:"done_s"`  // solo work done
	DurationS float64 `json:"duration_s,omitempty"`
	Slowdown  float64 `json:"slowdown"` // at this moment
	StartT    float64 `json:"start_t_s"`
}

// Snapshot looks at the GPU now.
func (d *Device) Snapshot() (Snapshot, error) {
	var s Snapshot
	err := d.update(func(v *view) error {
		v.settle()
		s = d.snapshot(v)
		return nil
	})
	return s, err
}

func (d *Device) snapshot(v *view) Snapshot {
	y := &v.dyn
	s := Snapshot{
		Index: d.index, UUID: d.UUID(), Name: cString(d.rec.Name[:]), Model: d.ModelName(), Minor: d.Minor(),
		MemTotalMiB: d.rec.MemTotal, Lost: d.rec.Lost != 0,
		T: y.T, GPU: y.GPU, Core: y.Core, MemMiB: y.Mem, PCIeMBps: y.PCIe, PowerW: y.Power,
		BusyS: y.BusyS, CoreS: y.CoreS, MemMiBS: y.MemMiBS, PCIeMB: y.PCIeMB, EnergyJ: y.EnergyJ,
		OccupiedS: y.Occupied, MemMaxMiB: y.MemMax,
		Started: y.Started, Finished: y.Finished, OOM: y.OOM, Killed: y.Killed, Faults: y.Faults,
		Processes: []Process{},
	}
	for i := range y.Member {
		m, sl := &y.Member[i], &d.rec.Slot[i]
		if !m.Status.present() {
			continue
		}
		p := Process{
			PID: int(sl.Pid), UID: int(sl.UID), App: cString(sl.App[:]), Kind: sl.Kind.String(), Server: int(sl.Server),
			Status: m.Status.String(), GPU: v.now(i).GPU, MemMiB: v.now(i).Mem, DoneS: m.Done, Slowdown: m.Slowdown, StartT: m.StartT,
		}
		if finite(sl.Duration) {
			p.DurationS = sl.Duration
		}
		s.Processes = append(s.Processes, p)
	}
	return s
}

// Slot is a process's place on a GPU.
type Slot struct {
	dev   *Device
	place int
	pid   int32
	start uint64
}

// Claimant is who asks for a place on a GPU. PID 0 means the caller's process.
type Claimant struct {
	PID    int
	UID    int
	Server int // pid of the MPS server it is a client of; 0 = context of its own
	// Limits hold for clients on cards from Volta on.
	Limits Limits
}

// Claim puts an application on the GPU, from now on, with profile p. It returns
// ErrOOM, ErrLost or ErrFull, or an error of the lock.
func (d *Device) Claim(c Claimant, p *rlcore.Profile) (*Slot, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	kind, pts := Own, phases(p)
	if c.Server != 0 {
		kind = Client
		if !d.SameUser() {
			c.Limits.apply(pts)
		}
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
		c.PID = ownPID()
	}
	start, err := startTime(c.PID)
	if err != nil {
		return nil, fmt.Errorf("claim GPU: process %d: %w", c.PID, err)
	}
	s := &Slot{dev: d, pid: int32(c.PID), start: start}
	var oom bool
	err = d.update(func(v *view) error {
		if d.rec.Lost != 0 {
			return ErrLost
		}
		s.place = -1
		for i := range v.dyn.Member {
			if v.dyn.Member[i].Status == Free {
				s.place = i
				break
			}
		}
		if s.place < 0 {
			return ErrFull
		}
		if kind != Server {
			v.dyn.Started++
		}
		if v.held()+pts[0].Mem > d.rec.MemTotal {
			// It never gets a slot, but that it tried is counted.
			oom = true
			v.dyn.OOM++
			return nil
		}
		rec := &d.rec.Slot[s.place]
		*rec = slot{
			Pid: s.pid, UID: uint32(c.UID), Start: start, Server: int32(c.Server), Kind: kind,
			Points: uint32(len(pts)), Duration: duration, Step: step,
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
	BusyS        float64
	// LeftS is how long it still runs when nobody's demand changes, GPU seconds.
	LeftS float64
}

// reapEvery is how often, in real time, a device's users look for dead ones
// among them.
const reapEvery = 20 * time.Millisecond

// Progress advances the GPU to now and says how the process fares. It returns
// ErrGone when the slot was taken from it, ErrLost when the GPU is lost.
func (s *Slot) Progress() (Progress, error) {
	var p Progress
	d := s.dev
	err := d.state.locked(func() error {
		if d.rec.Lost != 0 {
			return ErrLost
		}
		if err := d.load(); err != nil {
			return err
		}
		v := &d.view
		if err := s.mine(v); err != nil {
			return err
		}
		now := max(d.state.Now(), v.dyn.T)
		if d.due(now) {
			v.advance(now)
			if d.state.clock()-d.rec.LookedNs > int64(reapEvery) && d.reap() {
				v.settle()
			}
			d.rec.commit(&v.dyn)
		} else {
			// Nothing happened since: what is stored stays true.
			v.advance(now)
		}
		m := &v.dyn.Member[s.place]
		p = Progress{
			Status: m.Status, DoneS: m.Done, StartT: m.StartT, EndT: m.EndT, NowT: v.dyn.T,
			DurationS: d.rec.Slot[s.place].Duration, Slowdown: m.Slowdown, MemMaxMiB: m.MemMax, BusyS: m.BusyS,
			LeftS: (d.rec.Slot[s.place].Duration - m.Done) * m.Slowdown,
		}
		return nil
	})
	return p, err
}

// due reports whether something happens on the device up to now.
func (d *Device) due(now float64) bool {
	if d.state.clock()-d.rec.LookedNs > int64(reapEvery) {
		return true
	}
	for i := range d.view.dyn.Member {
		if d.view.computes(i) && d.view.next(i) <= now {
			return true
		}
	}
	return false
}

func (s *Slot) mine(v *view) error {
	rec := &s.dev.rec.Slot[s.place]
	if v.dyn.Member[s.place].Status == Free || rec.Pid != s.pid || rec.Start != s.start {
		return ErrGone
	}
	return nil
}

// Release gives the slot back. A process that still runs ends here, before its
// work is done.
func (s *Slot) Release() error { return s.leave(Free) }

// Fault destroys the process's context, as a memory fault in a kernel does, and
// gives the slot back.
func (s *Slot) Fault() error { return s.leave(Faulted) }

func (s *Slot) leave(how Status) error {
	return s.dev.update(func(v *view) error {
		if err := s.mine(v); err != nil {
			if errors.Is(err, ErrGone) {
				return nil
			}
			return err
		}
		m := &v.dyn.Member[s.place]
		if m.Status.present() {
			if how == Faulted {
				v.dyn.Faults++
			} else if s.dev.rec.Slot[s.place].Kind != Server {
				v.dyn.Killed++
			}
			v.end(s.place, how)
		}
		*m = member{}
		return nil
	})
}
