package nvml

import (
	"cmp"
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

// PCIe is the traffic from the host and to it, MB/s. A driver counts for 20 ms
// each way, and only then answers (NVIDIA's manual of NVML,
// nvmlDeviceGetPcieThroughput).
func (d *Device) PCIe() (rx, tx float64, err error) {
	g := d.gpu
	if !g.has(PCIe) {
		return 0, 0, ErrNotSupported
	}
	most := cmp.Or(g.pcieMBps/2, mostPCIe)
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

// Sample is what a GPU does at a moment.
type Sample struct {
	GPU      float64 // 0..1
	MemMiB   float64
	PCIeMBps float64 // both directions
	PowerW   float64
}

// Sample reads the GPU. A figure that the GPU doesn't give is 0, as are PCIe and power that fail. Returns an error
// if utilisation or memory, where the GPU gives them, can't be read or can't be true, and ErrLost.
func (d *Device) Sample() (s Sample, err error) {
	if s.GPU, _, err = d.Utilisation(); err != nil && d.gpu.has(Utilisation) {
		return Sample{}, err
	}
	if s.MemMiB, err = d.Read(Memory); err != nil && d.gpu.has(Memory) {
		return Sample{}, err
	}
	rx, tx, err := d.PCIe()
	if errors.Is(err, ErrLost) {
		return Sample{}, err
	}
	s.PCIeMBps = rx + tx
	if s.PowerW, err = d.Read(Power); errors.Is(err, ErrLost) {
		return Sample{}, err
	}
	return s, nil
}
