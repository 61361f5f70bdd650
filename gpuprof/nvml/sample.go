package nvml

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// slack is how far a percentage may be above 100 before it is a lie: averages of
// counters that were read at slightly different moments are.
const slack = 5

// share makes a percentage a fraction. Returns false for one that can't be.
func share(percent float64) (float64, bool) {
	// Written so that a NaN fails.
	if !(percent >= 0 && percent <= 100+slack) {
		return 0, false
	}
	return min(1, percent/100), true
}

// Utilisation is the fraction of the last sampling period (1/6 s to 1 s, by the
// card) in which a kernel ran, and in which the memory was read or written.
func (d *Device) Utilisation() (gpu, mem float64, err error) {
	g := d.gpu
	if !g.has(Utilisation) {
		return 0, 0, ErrNotSupported
	}
	u, ret := g.handle.GetUtilizationRates()
	if ret != gonvml.SUCCESS {
		return 0, 0, g.failure(Utilisation, ret)
	}
	gpu, ok1 := share(float64(u.Gpu))
	mem, ok2 := share(float64(u.Memory))
	if !ok1 || !ok2 {
		return 0, 0, g.lie(Utilisation, u.Gpu)
	}
	return gpu, mem, nil
}

// Memory is what processes hold of the GPU's memory, MiB.
func (d *Device) Memory() (mib float64, err error) {
	g := d.gpu
	if !g.has(Memory) {
		return 0, ErrNotSupported
	}
	total, used, ret := g.lib.memoryInfo(g.handle)
	if ret != gonvml.SUCCESS {
		return 0, g.failure(Memory, ret)
	}
	if total == 0 || total > mostMemory || used > total {
		return 0, g.lie(Memory, used)
	}
	return float64(used) / (1 << 20), nil
}

// Power is what the GPU draws, W, by card at this moment or over the last second.
func (d *Device) Power() (w float64, err error) {
	g := d.gpu
	if !g.has(Power) {
		return 0, ErrNotSupported
	}
	from, part := g.giver(Power)
	mw, ret := from.handle.GetPowerUsage()
	if ret != gonvml.SUCCESS {
		return 0, g.failure(Power, ret)
	}
	if w = float64(mw) / 1000 * part; w > mostPower {
		return 0, g.lie(Power, w)
	}
	return w, nil
}

// PCIe is the traffic from the host and to it together, MB/s. A driver counts for 20 ms each way, and only then answers
// (NVIDIA's manual of NVML, nvmlDeviceGetPcieThroughput).
func (d *Device) PCIe() (mbps float64, err error) {
	g := d.gpu
	if !g.has(PCIe) {
		return 0, ErrNotSupported
	}
	from, part := g.giver(PCIe)
	mbps, err = from.traffic(from != g)
	return mbps * part, err
}

// trafficHolds is for how long a GPU's traffic is all its MIG instances': reading it once for each would take too long.
const trafficHolds = 500 * time.Millisecond

// traffic reads a GPU's. held: what was read a moment ago will do.
func (g *gpu) traffic(held bool) (mbps float64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if held && time.Since(g.flowAt) < trafficHolds {
		return g.flow, nil
	}
	most := cmp.Or(g.pcieMBps/2, mostPCIe)
	for _, way := range []gonvml.PcieUtilCounter{gonvml.PCIE_UTIL_RX_BYTES, gonvml.PCIE_UTIL_TX_BYTES} {
		kbps, ret := g.handle.GetPcieThroughput(way)
		if ret != gonvml.SUCCESS {
			return 0, g.failure("PCIe throughput", ret)
		}
		one := float64(kbps) / 1000
		if one > most*(1+slack/100.) {
			return 0, g.lie("PCIe throughput, MB/s,", one)
		}
		mbps += min(one, most)
	}
	g.flow = mbps
	g.flowAt = time.Now()
	return mbps, nil
}

// Process is one process on a GPU. Before Volta the clients of an MPS server aren't seen: the server holds all.
type Process struct {
	PID    int
	MemMiB float64 // held; −1 = unknown
	// WithoutMPS: it is no client of an MPS server, nor known to be one; false where the card and its
	// driver can't say so. A server is without, too.
	WithoutMPS bool
}

// ProcessUse is how much of a GPU a process used in the sampling period that
// ended at At, as the driver measured it (1/6 s to 1 s long, by the card).
type ProcessUse struct {
	PID int
	At  time.Time
	SM  float64 // fraction of the time its kernels ran, 0..1
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
	// Before Volta no client is among the processes; from then on a second list has the clients alone.
	without := func(uint32) bool { return d.Compute != "" && !d.MPS.OwnAddresses }
	if g.has(MPSProcesses) {
		clients, ret := g.handle.GetMPSComputeRunningProcesses()
		without = func(pid uint32) bool {
			return ret == gonvml.SUCCESS &&
				!slices.ContainsFunc(clients, func(c gonvml.ProcessInfo) bool { return c.Pid == pid })
		}
	}
	out := make([]Process, 0, len(infos))
	for _, p := range infos {
		q := Process{PID: int(p.Pid), MemMiB: -1, WithoutMPS: without(p.Pid)}
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

// ProcessUtilisation gives what the driver measured of each process since then (zero = all it remembers): the newest of
// each, or several, by driver. None used the GPU where it is empty.
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
		sm, ok := share(float64(s.SmUtil))
		if !ok {
			return nil, g.lie(fmt.Sprintf("utilisation of process %d", s.Pid), s.SmUtil)
		}
		out = append(out, ProcessUse{PID: int(s.Pid), At: at, SM: sm})
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
			list = nil
			ret = gonvml.ERROR_INSUFFICIENT_SIZE
		}
	}()
	return h.GetProcessUtilization(since)
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

// Activity is what a GPU's performance monitoring (GPM, from Hopper on) saw between two readings.
type Activity struct {
	Over     time.Duration // between the two
	SM       float64       // fraction of the SMs that had work, over time, 0..1
	Graphics float64       // fraction of the time any engine computed, 0..1
	PCIeMBps float64       // both directions
}

// LeastActivity is how far two readings must lie apart at least (NVIDIA's manual
// of NVML, nvmlGpmMetricsGet, requires 100 ms).
const LeastActivity = 100 * time.Millisecond

// Activity gives the activity since the last reading; the first one is ErrNotYet. One that follows in less than
// LeastActivity gives what the last one gave. After an error the next reading begins where this one would have.
func (d *Device) Activity() (Activity, error) {
	g := d.gpu
	if !g.has(GPM) {
		return Activity{}, ErrNotSupported
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at.IsZero() {
		return Activity{}, g.beginActivity()
	}
	if g.seen.Over > 0 && time.Since(g.at) < LeastActivity {
		return g.seen, nil
	}
	if ret := g.gpm(g.now); ret != gonvml.SUCCESS {
		return Activity{}, g.failure("GPM", ret)
	}
	now := time.Now()
	q := gonvml.GpmMetricsGetType{Sample1: g.last, Sample2: g.now}
	a := Activity{Over: now.Sub(g.at)}
	rx := 0.0
	tx := 0.0
	figures := []struct {
		id   gonvml.GpmMetricId
		to   *float64
		most float64 // 0: a percentage
	}{
		{gonvml.GPM_METRIC_SM_UTIL, &a.SM, 0},
		{gonvml.GPM_METRIC_GRAPHICS_UTIL, &a.Graphics, 0},
		{gonvml.GPM_METRIC_PCIE_RX_PER_SEC, &rx, mostPCIe},
		{gonvml.GPM_METRIC_PCIE_TX_PER_SEC, &tx, mostPCIe},
	}
	for i, f := range figures {
		q.Metrics[i].MetricId = uint32(f.id)
	}
	q.NumMetrics = uint32(len(figures))
	ret := g.lib.api.GpmMetricsGet(&q)
	g.last, g.now, g.at, g.seen = g.now, g.last, now, Activity{}
	if ret != gonvml.SUCCESS {
		return Activity{}, g.failure("GPM", ret)
	}
	for i, f := range figures {
		got := &q.Metrics[i]
		if ret := gonvml.Return(got.NvmlReturn); ret != gonvml.SUCCESS { //nolint:gosec // an enum
			if i == 0 {
				return Activity{}, g.failure("SM activity", ret)
			}
			continue // a figure that this GPU lacks is 0
		}
		ok := got.Value >= 0 && got.Value <= f.most
		if f.most == 0 {
			*f.to, ok = share(got.Value)
		} else {
			*f.to = got.Value * (1 << 20) / 1e6 // NVML gives MiB/s
		}
		if !ok {
			return Activity{}, g.lie("GPM figure", got.Value)
		}
	}
	a.PCIeMBps = rx + tx
	g.seen = a
	return a, nil
}

// beginActivity takes the sample that the first activity is compared with. The library keeps both until it is closed.
func (g *gpu) beginActivity() error {
	for _, s := range []*gonvml.GpmSample{&g.last, &g.now} {
		if *s != nil {
			continue
		}
		made, ret := g.lib.api.GpmSampleAlloc()
		if ret != gonvml.SUCCESS {
			return g.failure("GPM", ret)
		}
		*s = made
	}
	if ret := g.gpm(g.last); ret != gonvml.SUCCESS {
		return g.failure("GPM", ret)
	}
	g.at = time.Now()
	return ErrNotYet
}
