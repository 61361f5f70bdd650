// Package nvml reads GPUs through NVIDIA's management library. It is the only
// package with cgo, by way of go-nvml, which loads libnvidia-ml.so.1 when it is
// opened.
package nvml

import (
	"errors"
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Device is what doesn't change about a GPU.
type Device struct {
	Index    int     `json:"nvml_index"` // NVML's order, which is not everybody's
	Minor    int     `json:"minor"`      // N of /dev/nvidiaN
	UUID     string  `json:"uuid"`
	Model    string  `json:"model"`
	Arch     string  `json:"arch"`
	MemMiB   float64 `json:"mem_mib"`
	PCIeMBps float64 `json:"pcie_mbps"` // of the link, both directions; 0 = unknown
	MIG      bool    `json:"mig"`
	// Answers says which figures this GPU gives.
	Answers Answers `json:"answers"`
}

// Answers says which figures a GPU gives.
type Answers struct {
	Utilisation bool `json:"utilisation"`
	Memory      bool `json:"memory"`
	PCIe        bool `json:"pcie"`
	Power       bool `json:"power"`
	Processes   bool `json:"processes"`
}

// Sample is what a GPU does at a moment.
type Sample struct {
	GPU      float64 // 0..1
	MemMiB   float64
	MemBusy  float64 // utilisation of the memory, 0..1
	PCIeMBps float64
	PowerW   float64
}

// Library is NVML as the agent uses it.
type Library interface {
	// Devices lists the node's GPUs.
	Devices() []Device
	// Sample reads a GPU by its index in Devices. A figure that the GPU doesn't
	// give is 0. Returns an error if none could be read, ErrLost if the GPU has
	// fallen off the bus.
	Sample(i int) (Sample, error)
	Close() error
}

// Errors.
var (
	// ErrNone: there is no NVML on this machine, or no GPU.
	ErrNone = errors.New("no NVML")
	// ErrLost: the GPU doesn't answer any more.
	ErrLost = errors.New("the GPU is lost")
)

type library struct {
	api     gonvml.Interface
	handles []gonvml.Device
	devices []Device
	has     map[string]bool
}

// Open loads the library at path ("" = libnvidia-ml.so.1 wherever the loader
// finds it) and asks each GPU once what it answers. Returns ErrNone.
func Open(path string) (Library, error) {
	var opts []gonvml.LibraryOption
	if path != "" {
		opts = append(opts, gonvml.WithLibraryPath(path))
	}
	l := &library{api: gonvml.New(opts...), has: map[string]bool{}}
	if ret := l.api.Init(); ret != gonvml.SUCCESS {
		return nil, fmt.Errorf("%w: %s", ErrNone, ret.Error())
	}
	n, ret := l.api.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return nil, errors.Join(fmt.Errorf("%w: count GPUs: %s", ErrNone, ret.Error()), l.Close())
	}
	for i := range n {
		h, ret := l.api.DeviceGetHandleByIndex(i)
		if ret != gonvml.SUCCESS {
			continue // one that is broken doesn't hide the others
		}
		l.handles = append(l.handles, h)
		l.devices = append(l.devices, l.describe(i, h))
	}
	return l, nil
}

// found reports whether the loaded library has a function: an old driver's lacks
// some, and calling one that is missing ends the process.
func (l *library) found(symbol string) bool {
	ok, seen := l.has[symbol]
	if !seen {
		ok = l.api.Extensions().LookupSymbol(symbol) == nil
		l.has[symbol] = ok
	}
	return ok
}

var arches = map[gonvml.DeviceArchitecture]string{
	gonvml.DEVICE_ARCH_KEPLER: "kepler", gonvml.DEVICE_ARCH_MAXWELL: "maxwell", gonvml.DEVICE_ARCH_PASCAL: "pascal",
	gonvml.DEVICE_ARCH_VOLTA: "volta", gonvml.DEVICE_ARCH_TURING: "turing", gonvml.DEVICE_ARCH_AMPERE: "ampere",
	gonvml.DEVICE_ARCH_ADA: "ada", gonvml.DEVICE_ARCH_HOPPER: "hopper",
}

func (l *library) describe(i int, h gonvml.Device) Device {
	d := Device{Index: i, Minor: i}
	if l.found("nvmlDeviceGetMinorNumber") {
		if m, ret := h.GetMinorNumber(); ret == gonvml.SUCCESS {
			d.Minor = m
		}
	}
	if u, ret := h.GetUUID(); ret == gonvml.SUCCESS {
		d.UUID = u
	}
	if n, ret := h.GetName(); ret == gonvml.SUCCESS {
		d.Model = n
	}
	if l.found("nvmlDeviceGetArchitecture") {
		if a, ret := h.GetArchitecture(); ret == gonvml.SUCCESS {
			d.Arch = arches[a]
		}
	}
	if l.found("nvmlDeviceGetMaxPcieLinkGeneration") && l.found("nvmlDeviceGetMaxPcieLinkWidth") {
		gen, ret1 := h.GetMaxPcieLinkGeneration()
		width, ret2 := h.GetMaxPcieLinkWidth()
		if ret1 == gonvml.SUCCESS && ret2 == gonvml.SUCCESS {
			// PCI Express base specifications 1.0 to 6.0: about 250 MB/s a lane and
			// direction in the first generation, doubling with each.
			d.PCIeMBps = 2 * 250 * float64(int(1)<<max(0, min(gen-1, 5))) * float64(width)
		}
	}
	if l.found("nvmlDeviceGetMigMode") {
		if mode, _, ret := h.GetMigMode(); ret == gonvml.SUCCESS {
			d.MIG = mode == gonvml.DEVICE_MIG_ENABLE
		}
	}
	if m, ret := h.GetMemoryInfo(); ret == gonvml.SUCCESS {
		d.MemMiB = float64(m.Total) / (1 << 20)
		d.Answers.Memory = true
	}
	_, ret := h.GetUtilizationRates()
	d.Answers.Utilisation = ret == gonvml.SUCCESS
	if l.found("nvmlDeviceGetPcieThroughput") {
		_, ret = h.GetPcieThroughput(gonvml.PCIE_UTIL_RX_BYTES)
		d.Answers.PCIe = ret == gonvml.SUCCESS
	}
	if l.found("nvmlDeviceGetPowerUsage") {
		_, ret = h.GetPowerUsage()
		d.Answers.Power = ret == gonvml.SUCCESS
	}
	if l.found("nvmlDeviceGetComputeRunningProcesses_v3") || l.found("nvmlDeviceGetComputeRunningProcesses_v2") || l.found("nvmlDeviceGetComputeRunningProcesses") {
		_, ret = h.GetComputeRunningProcesses()
		d.Answers.Processes = ret == gonvml.SUCCESS
	}
	return d
}

func (l *library) Devices() []Device { return l.devices }

func (l *library) Sample(i int) (Sample, error) {
	h, a := l.handles[i], l.devices[i].Answers
	var s Sample
	var failed error
	ok := false
	check := func(what string, ret gonvml.Return) bool {
		switch ret {
		case gonvml.SUCCESS:
			ok = true
			return true
		case gonvml.ERROR_GPU_IS_LOST:
			failed = fmt.Errorf("gpu %d: %w", l.devices[i].Minor, ErrLost)
		default:
			if failed == nil {
				failed = fmt.Errorf("gpu %d: read %s: %s", l.devices[i].Minor, what, ret.Error())
			}
		}
		return false
	}
	if a.Utilisation {
		u, ret := h.GetUtilizationRates()
		if check("utilisation", ret) {
			s.GPU, s.MemBusy = min(1, float64(u.Gpu)/100), min(1, float64(u.Memory)/100)
		}
	}
	if a.Memory {
		m, ret := h.GetMemoryInfo()
		if check("memory", ret) && m.Used <= m.Total {
			s.MemMiB = float64(m.Used) / (1 << 20)
		}
	}
	if a.PCIe {
		rx, ret1 := h.GetPcieThroughput(gonvml.PCIE_UTIL_RX_BYTES)
		tx, ret2 := h.GetPcieThroughput(gonvml.PCIE_UTIL_TX_BYTES)
		if check("PCIe throughput", ret1) && check("PCIe throughput", ret2) {
			s.PCIeMBps = float64(rx+tx) / 1000 // NVML gives KB/s
		}
	}
	if a.Power {
		p, ret := h.GetPowerUsage()
		if check("power", ret) {
			s.PowerW = float64(p) / 1000
		}
	}
	if errors.Is(failed, ErrLost) || !ok && failed != nil {
		return Sample{}, failed
	}
	return s, nil
}

func (l *library) Close() error {
	if ret := l.api.Shutdown(); ret != gonvml.SUCCESS {
		return errors.New("close NVML: " + ret.Error())
	}
	return nil
}
