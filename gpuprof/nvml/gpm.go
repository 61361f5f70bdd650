package nvml

import (
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Activity is what a GPU's performance monitoring (GPM, from Hopper on) saw
// between two readings.
type Activity struct {
	Over     time.Duration // between the two
	SM       float64       // fraction of the SMs that had work, over time, 0..1
	Graphics float64       // fraction of the time any engine computed, 0..1
	PCIeRx   float64       // MB/s from the host
	PCIeTx   float64       // MB/s to the host
}

// Meter reads a GPU's activity from one reading to the next. Its methods are not
// for several goroutines at once.
type Meter struct {
	g         *gpu
	instance  int // MIG GPU instance, −1 = the whole GPU
	last, now gonvml.GpmSample
	at        time.Time // of last
	seen      Activity
}

// LeastActivity is how far two readings must lie apart at least (NVIDIA's manual
// of NVML, nvmlGpmMetricsGet, requires 100 ms).
const LeastActivity = 100 * time.Millisecond

// Meter starts to measure the GPU's activity. Close it.
func (d *Device) Meter() (*Meter, error) { return d.meter(-1) }

func (d *Device) meter(instance int) (*Meter, error) {
	g := d.gpu
	if !g.has(GPM) {
		return nil, ErrNotSupported
	}
	m := &Meter{g: g, instance: instance}
	for _, s := range []*gonvml.GpmSample{&m.last, &m.now} {
		var ret gonvml.Return
		if *s, ret = g.lib.api.GpmSampleAlloc(); ret != gonvml.SUCCESS {
			*s = nil
			m.Close()
			return nil, g.failure("GPM", ret)
		}
	}
	if ret := m.take(m.last); ret != gonvml.SUCCESS {
		m.Close()
		return nil, g.failure("GPM", ret)
	}
	m.at = time.Now()
	return m, nil
}

func (m *Meter) take(s gonvml.GpmSample) gonvml.Return {
	if m.instance >= 0 {
		return s.MigGet(m.g.handle, m.instance)
	}
	return s.Get(m.g.handle)
}

// Read gives the activity since the last reading, or since the meter was made. One
// that follows in less than LeastActivity gives what the last one gave.
// After an error the next reading begins where this one would have.
func (m *Meter) Read() (Activity, error) {
	if m.now == nil {
		return Activity{}, ErrNotSupported
	}
	if m.seen.Over > 0 && time.Since(m.at) < LeastActivity {
		return m.seen, nil
	}
	if ret := m.take(m.now); ret != gonvml.SUCCESS {
		return Activity{}, m.g.failure("GPM", ret)
	}
	now := time.Now()
	q := gonvml.GpmMetricsGetType{Sample1: m.last, Sample2: m.now}
	a := Activity{Over: now.Sub(m.at)}
	figures := []struct {
		id   gonvml.GpmMetricId
		to   *float64
		most float64 // 0: a percentage
	}{
		{gonvml.GPM_METRIC_SM_UTIL, &a.SM, 0},
		{gonvml.GPM_METRIC_GRAPHICS_UTIL, &a.Graphics, 0},
		{gonvml.GPM_METRIC_PCIE_RX_PER_SEC, &a.PCIeRx, mostPCIe},
		{gonvml.GPM_METRIC_PCIE_TX_PER_SEC, &a.PCIeTx, mostPCIe},
	}
	for i, f := range figures {
		q.Metrics[i].MetricId = uint32(f.id)
	}
	q.NumMetrics = uint32(len(figures))
	ret := m.g.lib.api.GpmMetricsGet(&q)
	m.last, m.now, m.at, m.seen = m.now, m.last, now, Activity{}
	if ret != gonvml.SUCCESS {
		return Activity{}, m.g.failure("GPM", ret)
	}
	for i, f := range figures {
		got := &q.Metrics[i]
		if ret := gonvml.Return(got.NvmlReturn); ret != gonvml.SUCCESS { //nolint:gosec // an enum
			if i == 0 {
				return Activity{}, m.g.failure("SM activity", ret)
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
			return Activity{}, m.g.lie("GPM figure", got.Value)
		}
	}
	m.seen = a
	return a, nil
}

// Close frees what the meter holds.
func (m *Meter) Close() {
	for _, s := range []*gonvml.GpmSample{&m.last, &m.now} {
		if *s != nil {
			_ = (*s).Free() // memory of the library's: nothing is left to be done
			*s = nil
		}
	}
}

// gpmProbe reports whether the GPU has GPM and the library all that a Meter calls.
func gpmProbe(h gonvml.Device, found func(string) bool) gonvml.Return {
	for _, s := range []string{"nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"} {
		if !found(s) {
			return gonvml.ERROR_FUNCTION_NOT_FOUND
		}
	}
	s, ret := h.GpmQueryDeviceSupport()
	if ret == gonvml.SUCCESS && s.IsSupportedDevice == 0 {
		return gonvml.ERROR_NOT_SUPPORTED
	}
	return ret
}
