package nvml

import (
	"errors"

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
	if d.gpu == nil {
		return 0, 0, ErrNotSupported
	}
	return d.gpu.utilisation()
}

// Memory is what is in use of the GPU's memory, MiB.
func (d *Device) Memory() (float64, error) {
	if d.gpu == nil {
		return 0, ErrNotSupported
	}
	return d.gpu.memory()
}

// PCIe is the traffic from the host and to it, MB/s. A driver counts for 20 ms
// each way, and only then answers (NVIDIA's manual of NVML,
// nvmlDeviceGetPcieThroughput).
func (d *Device) PCIe() (rx, tx float64, err error) {
	if d.gpu == nil {
		return 0, 0, ErrNotSupported
	}
	return d.gpu.pcie()
}

// Power is what the GPU draws, W; by card at this moment or over the last second.
func (d *Device) Power() (float64, error) {
	if d.gpu == nil {
		return 0, ErrNotSupported
	}
	return d.gpu.power()
}

func (g *gpu) sample() (Sample, error) {
	var s Sample
	var err error
	if s.GPU, s.MemBusy, err = g.utilisation(); err != nil && g.answers.Utilisation {
		return Sample{}, err
	}
	if s.MemMiB, err = g.memory(); err != nil && g.answers.Memory {
		return Sample{}, err
	}
	if s.PCIeRxMBps, s.PCIeTxMBps, err = g.pcie(); errors.Is(err, ErrLost) {
		return Sample{}, err
	}
	s.PCIeMBps, s.Failed.PCIe = s.PCIeRxMBps+s.PCIeTxMBps, g.answers.PCIe && err != nil
	if s.PowerW, err = g.power(); errors.Is(err, ErrLost) {
		return Sample{}, err
	}
	s.Failed.Power = g.answers.Power && err != nil
	return s, nil
}

func (g *gpu) utilisation() (gpu, mem float64, err error) {
	if !g.answers.Utilisation {
		return 0, 0, ErrNotSupported
	}
	u, ret := g.handle.GetUtilizationRates()
	if ret != gonvml.SUCCESS {
		return 0, 0, g.failure("utilisation", ret)
	}
	gpu, ok1 := share(float64(u.Gpu))
	mem, ok2 := share(float64(u.Memory))
	if !ok1 || !ok2 {
		return 0, 0, g.lie("utilisation", u.Gpu)
	}
	return gpu, mem, nil
}

func (g *gpu) memory() (float64, error) {
	if !g.answers.Memory {
		return 0, ErrNotSupported
	}
	m, ret := g.handle.GetMemoryInfo()
	if ret != gonvml.SUCCESS {
		return 0, g.failure("memory", ret)
	}
	if m.Total == 0 || m.Total > mostMemory || m.Used > m.Total {
		return 0, g.lie("memory in use", m.Used)
	}
	return float64(m.Used) / (1 << 20), nil
}

// pcie is what comes from the host and goes to it, MB/s.
func (g *gpu) pcie() (rx, tx float64, err error) {
	if !g.answers.PCIe {
		return 0, 0, ErrNotSupported
	}
	most := g.pcieMBps / 2
	if most == 0 {
		most = mostPCIe
	}
	for _, way := range []struct {
		counter gonvml.PcieUtilCounter
		to      *float64
	}{{gonvml.PCIE_UTIL_RX_BYTES, &rx}, {gonvml.PCIE_UTIL_TX_BYTES, &tx}} {
		kbps, ret := g.handle.GetPcieThroughput(way.counter)
		if ret != gonvml.SUCCESS {
			return 0, 0, g.failure("PCIe throughput", ret)
		}
		mbps := float64(kbps) / 1000
		if mbps > most*(1+slack/100.) {
			return 0, 0, g.lie("PCIe throughput, MB/s,", mbps)
		}
		*way.to = min(mbps, most)
	}
	return rx, tx, nil
}

// power is the GPU's, W.
func (g *gpu) power() (float64, error) {
	if !g.answers.Power {
		return 0, ErrNotSupported
	}
	mw, ret := g.handle.GetPowerUsage()
	if ret != gonvml.SUCCESS {
		return 0, g.failure("power", ret)
	}
	if w := float64(mw) / 1000; w <= mostPower {
		return w, nil
	}
	return 0, g.lie("power, mW,", mw)
}
