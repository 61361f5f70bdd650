// Package nvml reads GPUs through NVIDIA's management library. It is the only
// package with cgo, by way of go-nvml, which loads libnvidia-ml.so.1 when it is
// opened.
//
// Figures are checked. One that is slightly above the possible maximum is cut to it (a
// utilisation of 103 % is 1); one that can't be true (4e9 %, more memory in use than
// there is, an energy counter that falls) is ErrImplausible. A zero can't be
// distinguished from an idle GPU and is passed on.
//
// A function that the loaded library doesn't have is never called: the loader
// would end the process.
package nvml

import (
	"errors"
	"fmt"
	"slices"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Device is what doesn't change about a GPU, and the way to its finer figures:
// each of its methods returns ErrNotSupported where Capabilities says that the
// GPU doesn't give the figure, ErrLost if it has fallen off the bus, ErrImplausible
// for a figure that can't be true. Copies of a Device are the same GPU. One that
// wasn't made by Open gives no figure.
type Device struct {
	Index    int     `json:"nvml_index"` // NVML's order, which is not everybody's
	Minor    int     `json:"minor"`      // N of /dev/nvidiaN
	UUID     string  `json:"uuid"`
	Model    string  `json:"model"`
	Arch     string  `json:"arch"`
	MemMiB   float64 `json:"mem_mib"`
	PCIeMBps float64 `json:"pcie_mbps"` // of the link, both directions; 0 = unknown
	Capabilities

	gpu *gpu
}

// Sample is what a GPU does at a moment.
type Sample struct {
	GPU      float64 // 0..1
	MemMiB   float64
	PCIeMBps float64 // both directions
	PowerW   float64
}

// Library is NVML as the agent uses it.
type Library interface {
	// Devices lists the node's GPUs.
	Devices() []Device
	// Sample reads a GPU by its index in Devices. A figure that the GPU doesn't
	// give is 0. Returns an error if utilisation or memory, where the GPU gives
	// them, could not be read or can't be true, ErrLost if the GPU has fallen off
	// the bus. PCIe and power that fail are 0.
	Sample(i int) (Sample, error)
	Close() error
}

// Errors.
var (
	// ErrNone: there is no NVML on this machine, or no GPU.
	ErrNone = errors.New("no NVML")
	// ErrLost: the GPU doesn't answer any more.
	ErrLost = errors.New("the GPU is lost")
	// ErrNotSupported: this GPU, or this driver, doesn't give the figure.
	ErrNotSupported = errors.New("not given by this GPU and driver")
	// ErrImplausible: the driver gave a figure that can't be true.
	ErrImplausible = errors.New("implausible")
)

type library struct {
	api     gonvml.Interface
	driver  string
	cuda    int // as cuDriverGetVersion; 0 = unknown
	devices []Device
	has     map[string]bool
}

// Open loads the library at path ("" = libnvidia-ml.so.1 as the loader finds it) and queries each
// GPU's capabilities once. Returns ErrNone.
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
	l.driver = l.text("nvmlSystemGetDriverVersion", l.api.SystemGetDriverVersion)
	if l.found("nvmlSystemGetCudaDriverVersion") {
		if v, ret := l.api.SystemGetCudaDriverVersion(); ret == gonvml.SUCCESS && v > 0 {
			l.cuda = v
		}
	}
	for i := range n {
		h, ret := l.api.DeviceGetHandleByIndex(i)
		if ret != gonvml.SUCCESS {
			continue // a broken one doesn't hide the rest
		}
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

func (l *library) foundOne(symbols []string) bool { return slices.ContainsFunc(symbols, l.found) }

func (l *library) describe(i int, h gonvml.Device) Device {
	d := Device{Index: i, Minor: i}
	l.number("nvmlDeviceGetMinorNumber", h.GetMinorNumber, &d.Minor)
	d.UUID, d.Model = l.uuid(h), l.name(h)
	if l.found("nvmlDeviceGetArchitecture") {
		if a, ret := h.GetArchitecture(); ret == gonvml.SUCCESS {
			d.Arch = arches[a]
		}
	}
	d.PCIeMBps = l.link(h)
	d.gpu = &gpu{lib: l, handle: h, minor: d.Minor}
	if l.found("nvmlDeviceGetMemoryInfo") {
		if m, ret := h.GetMemoryInfo(); ret == gonvml.SUCCESS && m.Total <= mostMemory {
			d.MemMiB = float64(m.Total) / (1 << 20)
		}
	}
	d.Capabilities = l.capabilities(h)
	d.MIG = l.mig(h, d.gpu)
	d.gpu.memMiB, d.gpu.pcieMBps, d.gpu.answers = d.MemMiB, d.PCIeMBps, d.Answers
	return d
}

func (l *library) uuid(h gonvml.Device) string { return l.text("nvmlDeviceGetUUID", h.GetUUID) }

func (l *library) name(h gonvml.Device) string { return l.text("nvmlDeviceGetName", h.GetName) }

// text is what a call returns; "" = unknown.
func (l *library) text(symbol string, get func() (string, gonvml.Return)) string {
	if !l.found(symbol) {
		return ""
	}
	v, ret := get()
	if ret != gonvml.SUCCESS {
		return ""
	}
	return v
}

// number sets what a call returns; one that fails leaves it.
func (l *library) number(symbol string, get func() (int, gonvml.Return), to *int) {
	if l.found(symbol) {
		if v, ret := get(); ret == gonvml.SUCCESS {
			*to = v
		}
	}
}

// link is what the PCIe link carries at most, both directions, MB/s; 0 = unknown.
func (l *library) link(h gonvml.Device) float64 {
	if !l.found("nvmlDeviceGetMaxPcieLinkGeneration") || !l.found("nvmlDeviceGetMaxPcieLinkWidth") {
		return 0
	}
	gen, ret1 := h.GetMaxPcieLinkGeneration()
	width, ret2 := h.GetMaxPcieLinkWidth()
	if ret1 != gonvml.SUCCESS || ret2 != gonvml.SUCCESS || gen < 1 || width < 1 || width > 32 {
		return 0
	}
	// PCI Express base specifications 1.0 to 6.0: about 250 MB/s a lane and
	// direction in the first generation, doubling with each.
	return 2 * 250 * float64(int(1)<<min(gen-1, 5)) * float64(width)
}

func (l *library) Devices() []Device { return l.devices }

func (l *library) Sample(i int) (Sample, error) { return l.devices[i].sample() }

func (l *library) Close() error {
	if ret := l.api.Shutdown(); ret != gonvml.SUCCESS {
		return errors.New("close NVML: " + ret.Error())
	}
	return nil
}
