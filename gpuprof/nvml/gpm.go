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
