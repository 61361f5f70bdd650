package nvml

import (
	"encoding/binary"
	"fmt"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Process is one process on a GPU. Before Volta the clients of an MPS server
// aren't seen: the server holds all.
type Process struct {
	PID    int
	MemMiB float64 // held; −1 = not told
	// GPUInstance is the MIG GPU instance it runs in, −1 without MIG.
	GPUInstance int
}

// ProcessUse is how much of a GPU a process used in the sampling period that
// ended at At, as the driver measured it (1/6 s to 1 s long, by the card).
type ProcessUse struct {
	PID int
	At  time.Time
	SM  float64 // fraction of the time its kernels ran, 0..1
	Mem float64 // fraction of the time the memory was busy for it, 0..1
}

// Point is one of the driver's own utilisation samples.
type Point struct {
	At  time.Time
	GPU float64 // 0..1
}

// Accounting is the driver's account of one process.
type Accounting struct {
	Running   bool
	GPU       float64       // mean utilisation over its life, 0..1
	PeakMiB   float64       // most memory held
	Start     time.Time     // when it was first seen
	Lifetime  time.Duration // 0 while it runs
	MemActive float64       // mean utilisation of the memory, 0..1
}

// Energy is what the GPU has consumed since its driver was loaded, J. A counter
// that is lower than at the last call is ErrImplausible, once; what comes then is
// compared with the lower value, so that a driver that was loaded anew does no
// lasting harm.
func (d *Device) Energy() (float64, error) {
	g := d.gpu
	if g == nil || !g.answers.Energy {
		return 0, ErrNotSupported
	}
	mj, ret := g.handle.GetTotalEnergyConsumption()
	if ret != gonvml.SUCCESS {
		return 0, g.failure("energy", ret)
	}
	if mj > mostEnergy {
		return 0, g.lie("energy, mJ,", mj)
	}
	g.mu.Lock()
	last := g.energy
	g.energy = mj
	g.mu.Unlock()
	if mj < last {
		return 0, fmt.Errorf("%w: it fell from %d", g.lie("energy, mJ,", mj), last)
	}
	return float64(mj) / 1000, nil
}

// Processes lists who computes on the GPU.
func (d *Device) Processes() ([]Process, error) {
	g := d.gpu
	if g == nil || !g.answers.Processes {
		return nil, ErrNotSupported
	}
	infos, ret := g.handle.GetComputeRunningProcesses()
	return g.processes("processes", infos, ret)
}

// MPSProcesses lists the clients of the GPU's MPS servers (Volta and later).
func (d *Device) MPSProcesses() ([]Process, error) {
	g := d.gpu
	if g == nil || !g.answers.MPSProcesses {
		return nil, ErrNotSupported
	}
	infos, ret := g.handle.GetMPSComputeRunningProcesses()
	return g.processes("MPS processes", infos, ret)
}

// notTold is NVML's NVML_VALUE_NOT_AVAILABLE.
const notTold = ^uint64(0)

// noInstance is the GPU instance of a process without MIG.
const noInstance = 0xFFFFFFFF

func (g *gpu) processes(what string, infos []gonvml.ProcessInfo, ret gonvml.Return) ([]Process, error) {
	if ret != gonvml.SUCCESS {
		return nil, g.failure(what, ret)
	}
	out := make([]Process, 0, len(infos))
	for _, p := range infos {
		q := Process{PID: int(p.Pid), MemMiB: -1, GPUInstance: -1}
		if p.UsedGpuMemory != notTold {
			q.MemMiB = float64(p.UsedGpuMemory) / (1 << 20)
			if g.memMiB > 0 && q.MemMiB > g.memMiB || p.UsedGpuMemory > mostMemory {
				return nil, g.lie(fmt.Sprintf("memory of process %d, bytes,", p.Pid), p.UsedGpuMemory)
			}
		}
		if p.GpuInstanceId != noInstance {
			q.GPUInstance = int(p.GpuInstanceId)
		}
		out = append(out, q)
	}
	return out, nil
}

// ProcessUtilisation gives what the driver measured of each process since then
// (zero = all it remembers): the newest of each, or several, by driver. None used
// the GPU where it is empty.
func (d *Device) ProcessUtilisation(since time.Time) ([]ProcessUse, error) {
	g := d.gpu
	if g == nil || !g.answers.ProcessUtilisation {
		return nil, ErrNotSupported
	}
	list, ret := processUtilisation(g.handle, stamp(since))
	if ret = nothingNew(ret); ret != gonvml.SUCCESS {
		return nil, g.failure("process utilisation", ret)
	}
	var out []ProcessUse
	for _, s := range list {
		at, ok := moment(s.TimeStamp)
		if !ok {
			continue // the buffer's empty places
		}
		sm, ok1 := share(float64(s.SmUtil))
		mem, ok2 := share(float64(s.MemUtil))
		if !ok1 || !ok2 {
			return nil, g.lie(fmt.Sprintf("utilisation of process %d", s.Pid), s.SmUtil)
		}
		out = append(out, ProcessUse{PID: int(s.Pid), At: at, SM: sm, Mem: mem})
	}
	return out, nil
}

// processUtilisation asks again where the number of processes changed between
// go-nvml's two calls: it then cuts its slice to more than there is, and panics.
func processUtilisation(h gonvml.Device, since uint64) (list []gonvml.ProcessUtilizationSample, ret gonvml.Return) {
	for range 3 {
		if list, ret = processUtilisationOnce(h, since); ret != gonvml.ERROR_INSUFFICIENT_SIZE {
			break
		}
	}
	return list, ret
}

func processUtilisationOnce(h gonvml.Device, since uint64) (list []gonvml.ProcessUtilizationSample, ret gonvml.Return) {
	defer func() {
		if recover() != nil {
			list, ret = nil, gonvml.ERROR_INSUFFICIENT_SIZE
		}
	}()
	return h.GetProcessUtilization(since)
}

// Samples gives the utilisations that the driver has measured by itself since
// then (zero = all it remembers), oldest first. It keeps some hundred, 1/6 s to
// 1 s apart by card: what is asked for every 10 s is still seen at that pace.
func (d *Device) Samples(since time.Time) ([]Point, error) {
	g := d.gpu
	if g == nil || !g.answers.Samples {
		return nil, ErrNotSupported
	}
	kind, list, ret := g.handle.GetSamples(gonvml.GPU_UTILIZATION_SAMPLES, stamp(since))
	if ret = nothingNew(ret); ret != gonvml.SUCCESS {
		return nil, g.failure("utilisation samples", ret)
	}
	var out []Point
	for _, s := range list {
		at, ok := moment(s.TimeStamp)
		// go-nvml hands on the places that the driver left empty.
		if !ok || !since.IsZero() && !at.After(since) {
			continue
		}
		v := binary.NativeEndian.Uint64(s.SampleValue[:])
		if kind == gonvml.VALUE_TYPE_UNSIGNED_INT {
			v = uint64(binary.NativeEndian.Uint32(s.SampleValue[:]))
		}
		use, ok := share(float64(v))
		if !ok {
			return nil, g.lie("utilisation sample", v)
		}
		if n := len(out); n > 0 && at.Before(out[n-1].At) {
			return nil, g.lie("utilisation sample's time", at.UTC())
		}
		out = append(out, Point{At: at, GPU: use})
	}
	return out, nil
}

// Account is the driver's account of a process (accounting mode must be on).
func (d *Device) Account(pid int) (Accounting, error) {
	g := d.gpu
	if g == nil || !g.answers.Accounting || pid < 0 {
		return Accounting{}, ErrNotSupported
	}
	st, ret := g.handle.GetAccountingStats(uint32(pid)) //nolint:gosec // a pid
	if ret != gonvml.SUCCESS {
		return Accounting{}, g.failure("accounting", ret)
	}
	gpu, ok1 := share(float64(st.GpuUtilization))
	mem, ok2 := share(float64(st.MemoryUtilization))
	peak := float64(st.MaxMemoryUsage) / (1 << 20)
	start, ok3 := moment(st.StartTime)
	switch {
	case !ok1 || !ok2:
		return Accounting{}, g.lie("accounted utilisation", st.GpuUtilization)
	case g.memMiB > 0 && peak > g.memMiB || st.MaxMemoryUsage > mostMemory:
		return Accounting{}, g.lie("accounted memory, bytes,", st.MaxMemoryUsage)
	case !ok3 || st.Time > uint64(decade/time.Millisecond):
		return Accounting{}, g.lie("accounted time, ms,", st.Time)
	}
	return Accounting{
		Running: st.IsRunning != 0, GPU: gpu, MemActive: mem, PeakMiB: peak,
		Start: start, Lifetime: time.Duration(st.Time) * time.Millisecond, //nolint:gosec // below a decade
	}, nil
}

const decade = 10 * 365 * 24 * time.Hour

// stamp is NVML's time: µs since 1970 on the node's clock.
func stamp(t time.Time) uint64 {
	if t.IsZero() || t.UnixMicro() < 0 {
		return 0
	}
	return uint64(t.UnixMicro())
}

// moment reads NVML's time; false for one that isn't of this century.
func moment(us uint64) (time.Time, bool) {
	const y2000, y2100 = 946684800e6, 4102444800e6
	if us < y2000 || us > y2100 {
		return time.Time{}, false
	}
	return time.UnixMicro(int64(us)), true //nolint:gosec // of this century
}
