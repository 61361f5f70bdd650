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
	MemMiB float64 // held; −1 = unknown
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

// unknownMemory is NVML's NVML_VALUE_NOT_AVAILABLE.
const unknownMemory = ^uint64(0)

// Processes lists the processes that compute on the GPU.
func (d *Device) Processes() ([]Process, error) {
	g := d.gpu
	if !g.has(Processes) {
		return nil, ErrNotSupported
	}
	infos, ret := g.handle.GetComputeRunningProcesses()
	if ret != gonvml.SUCCESS {
		return nil, g.failure(Processes, ret)
	}

	out := make([]Process, 0, len(infos))
	for _, p := range infos {
		q := Process{PID: int(p.Pid), MemMiB: -1}
		if p.UsedGpuMemory != unknownMemory {
			q.MemMiB = float64(p.UsedGpuMemory) / (1 << 20)
			if g.memMiB > 0 && q.MemMiB > g.memMiB || p.UsedGpuMemory > mostMemory {
				return nil, g.lie(fmt.Sprintf("memory of process %d, bytes,", p.Pid), p.UsedGpuMemory)
			}
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
	if !g.has(ProcessUtilisation) {
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

// processUtilisation retries where the number of processes changed between go-nvml's
// two calls: go-nvml then slices past the end, and panics.
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
// 1 s apart by card: a reader that comes every 10 s still sees every sample.
func (d *Device) Samples(since time.Time) ([]Point, error) {
	g := d.gpu
	if !g.has(SampleBuffer) {
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
