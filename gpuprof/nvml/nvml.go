// Package nvml reads GPUs through NVIDIA's management library. It is the only package with cgo, by way of go-nvml,
// which loads libnvidia-ml.so.1 when it is opened.
//
// Figures are checked. One that is slightly above the possible maximum is cut to it (a utilisation of 103 % is 1); one
// that can't be true (4e9 %, more memory in use than there is) is ErrImplausible. A zero can't be distinguished from an
// idle GPU and is passed on.
//
// A function that the loaded library doesn't have is never called: the loader would end the process.
package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Device is what doesn't change about a GPU, and the way to its finer figures: each of its methods returns
// ErrNotSupported where Capabilities says that the GPU doesn't give the figure, ErrLost if it has fallen off the bus,
// ErrImplausible for a figure that can't be true. Copies of a Device are the same GPU. One that wasn't made by Open, or
// is Lost, gives no figure.
type Device struct {
	Index int    `json:"nvml_index"` // NVML's order, which is not everybody's
	Minor int    `json:"minor"`      // N of /dev/nvidiaN
	UUID  string `json:"uuid"`
	Model string `json:"model"`
	// Parent is the UUID of the GPU that it is a MIG instance of; "" = it is a GPU.
	Parent   string  `json:"parent,omitempty"`
	SMs      int     `json:"sms,omitempty"` // of an instance; 0 = unknown
	MemMiB   float64 `json:"mem_mib"`       // that processes can have
	PCIeMBps float64 `json:"pcie_mbps"`     // of the link, both directions; 0 = unknown
	// Lost says why NVML can't use the GPU, which most likely has fallen off the bus; "" = it can. Nothing else is known
	// of a lost GPU; its Minor is the lowest unused number.
	Lost string `json:"lost,omitempty"`
	Capabilities

	gpu *gpu
}

// gpu is the handle of a GPU or of a MIG instance, and the past values that readings are compared with.
type gpu struct {
	lib      *Library
	handle   gonvml.Device
	minor    int
	memMiB   float64 // 0 = unknown
	pcieMBps float64 // both directions; 0 = unknown
	answers  Answers
	gpm      func(s gonvml.GpmSample) gonvml.Return // fills a sample of performance monitoring
	// of is the GPU that it is an instance of, nil = it is none. Of what NVML gives for whole GPUs alone, such as power,
	// this part of the GPU's figure counts as the instance's.
	of   *gpu
	part float64

	mu     sync.Mutex
	flow   float64 // PCIe's last traffic, both directions, MB/s
	flowAt time.Time
	// Performance monitoring compares two samples.
	last, now gonvml.GpmSample
	at        time.Time // of last
	seen      Activity
}

// Bounds far above any card of today; a larger value is implausible.
const (
	mostMemory = 4 << 40 // bytes
	mostPower  = 20e3    // W
	mostPCIe   = 1e6     // MB/s, where the link isn't known
)

func (g *gpu) has(source string) bool { return g != nil && g.answers[source] }

func (g *gpu) failure(what string, ret gonvml.Return) error {
	switch ret {
	case gonvml.ERROR_GPU_IS_LOST:
		return fmt.Errorf("gpu %d: %w", g.minor, ErrLost)
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND:
		return fmt.Errorf("gpu %d: read %s: %w", g.minor, what, ErrNotSupported)
	}
	return fmt.Errorf("gpu %d: read %s: %s", g.minor, what, ret.Error())
}

func (g *gpu) lie(what string, value any) error {
	return fmt.Errorf("gpu %d: %s of %v: %w", g.minor, what, value, ErrImplausible)
}

// Errors.
var (
	// ErrNone: there is no NVML on this machine, or it finds no driver.
	ErrNone = errors.New("no GPU can be read")
	// ErrLost: the GPU doesn't answer any more.
	ErrLost = errors.New("the GPU is lost")
	// ErrNotSupported: this GPU, or this driver, doesn't give the figure.
	ErrNotSupported = errors.New("not given by this GPU and driver")
	// ErrImplausible: the driver gave a figure that can't be true.
	ErrImplausible = errors.New("implausible")
	// ErrNotYet: there is nothing to compare with yet.
	ErrNotYet = errors.New("no earlier reading")
)

// Library is NVML.
type Library struct {
	api     gonvml.Interface
	path    string         // "" = as the loader finds it
	held    unsafe.Pointer // the loader's handle of it
	driver  string
	cuda    int // as cuDriverGetVersion; 0 = unknown
	devices []Device
	has     map[string]bool
	// released: see Release.
	released bool
}

// Open loads the library at path ("" = libnvidia-ml.so.1 as the loader finds it) and queries each
// GPU's capabilities once. Returns ErrNone.
func Open(path string) (*Library, error) {
	var opts []gonvml.LibraryOption
	if path != "" {
		opts = append(opts, gonvml.WithLibraryPath(path))
	}
	l := &Library{api: gonvml.New(opts...), path: path, has: map[string]bool{}}
	if ret := l.api.Init(); ret != gonvml.SUCCESS {
		return nil, fmt.Errorf("%w: %s", ErrNone, cmp.Or(whyNone[ret], ret.Error()))
	}
	l.hold()
	n, ret := l.api.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return nil, errors.Join(fmt.Errorf("%w: count GPUs: %s", ErrNone, ret.Error()), l.Close())
	}
	l.driver, _ = ask(l, "nvmlSystemGetDriverVersion", l.api.SystemGetDriverVersion)
	if v, ok := ask(l, "nvmlSystemGetCudaDriverVersion", l.api.SystemGetCudaDriverVersion); ok && v > 0 {
		l.cuda = v
	}
	for i := range n {
		h, ret := l.api.DeviceGetHandleByIndex(i)
		if ret != gonvml.SUCCESS {
			l.devices = append(l.devices, Device{Index: i, Minor: -1, Lost: ret.Error()})
			continue
		}
		l.devices = append(l.devices, l.describe(i, h))
	}
	placeLost(l.devices)
	return l, nil
}

// whyNone says in plain words why NVML can't be initialised.
var whyNone = map[gonvml.Return]string{
	gonvml.ERROR_LIBRARY_NOT_FOUND: "the library of NVIDIA's driver (libnvidia-ml.so.1) is not on this machine, " +
		"or not where the loader looks",
	gonvml.ERROR_DRIVER_NOT_LOADED: "NVIDIA's driver is installed on this machine, but not loaded",
	gonvml.ERROR_LIB_RM_VERSION_MISMATCH: "the loaded driver of NVIDIA's and its library are of two releases: reboot, " +
		"or load the new driver",
	gonvml.ERROR_NO_PERMISSION: "NVIDIA's driver lets this user open no GPU (/dev/nvidia*)",
}

// placeLost gives lost GPUs the unused minor numbers, so that the GPUs after them keep the right position.
func placeLost(devices []Device) {
	minor := 0
	for i := range devices {
		if devices[i].Lost == "" {
			continue
		}
		for slices.ContainsFunc(devices, func(d Device) bool { return d.Minor == minor }) {
			minor++
		}
		devices[i].Minor = minor
	}
}

// found reports whether the loaded library has a function: an old driver's lacks
// some, and calling one that is missing ends the process.
func (l *Library) found(symbol string) bool {
	ok, seen := l.has[symbol]
	if !seen {
		ok = l.api.Extensions().LookupSymbol(symbol) == nil
		l.has[symbol] = ok
	}
	return ok
}

// ask returns what a call returns; false = the library lacks it, or it fails.
func ask[T any](l *Library, symbol string, call func() (T, gonvml.Return)) (v T, ok bool) {
	if !l.found(symbol) {
		return v, false
	}
	got, ret := call()
	if ret != gonvml.SUCCESS {
		return v, false
	}
	return got, true
}

func (l *Library) describe(i int, h gonvml.Device) Device {
	d := Device{
		Index: i, Minor: i, UUID: l.uuid(h), Model: l.name(h), PCIeMBps: l.link(h), MemMiB: l.memory(h),
		Capabilities: l.capabilities(h),
	}
	if minor, ok := ask(l, "nvmlDeviceGetMinorNumber", h.GetMinorNumber); ok {
		d.Minor = minor
	}
	d.gpu = &gpu{lib: l, handle: h, minor: d.Minor, memMiB: d.MemMiB, pcieMBps: d.PCIeMBps, answers: d.Answers}
	d.gpu.gpm = func(s gonvml.GpmSample) gonvml.Return { return s.Get(d.gpu.handle) }
	d.MIG = l.mig(h, &d)
	return d
}

func (l *Library) uuid(h gonvml.Device) string {
	v, _ := ask(l, "nvmlDeviceGetUUID", h.GetUUID)
	return v
}

func (l *Library) name(h gonvml.Device) string {
	v, _ := ask(l, "nvmlDeviceGetName", h.GetName)
	return v
}

// memory is the memory of a GPU or an instance that processes can have, MiB; 0 = unknown.
func (l *Library) memory(h gonvml.Device) float64 {
	if total, _, ret := l.memoryInfo(h); ret == gonvml.SUCCESS && total <= mostMemory {
		return float64(total) / (1 << 20)
	}
	return 0
}

// memoryInfo is how much of a GPU's or an instance's memory processes can have, and how much they hold, bytes. From
// driver 510 on, which has the second version of the call, the first counts what the driver reserves as used, 912 MB on
// an idle A100: each profile would carry that, and a group's sum as often as the group has members.
func (l *Library) memoryInfo(h gonvml.Device) (total, used uint64, ret gonvml.Return) {
	if l.found("nvmlDeviceGetMemoryInfo_v2") {
		m, ret := h.GetMemoryInfo_v2()
		if ret == gonvml.SUCCESS {
			return m.Total - min(m.Total, m.Reserved), m.Used, ret
		}
		if !final(ret) {
			return 0, 0, ret
		}
	}
	if !l.found(memoryV1) {
		return 0, 0, gonvml.ERROR_FUNCTION_NOT_FOUND
	}
	m, ret := h.GetMemoryInfo()
	return m.Total, m.Used, ret
}

// link is what the PCIe link carries at most, both directions, MB/s; 0 = unknown.
func (l *Library) link(h gonvml.Device) float64 {
	gen, ok1 := ask(l, "nvmlDeviceGetMaxPcieLinkGeneration", h.GetMaxPcieLinkGeneration)
	width, ok2 := ask(l, "nvmlDeviceGetMaxPcieLinkWidth", h.GetMaxPcieLinkWidth)
	if !ok1 || !ok2 || gen < 1 || width < 1 || width > 32 {
		return 0
	}
	// PCI Express base specifications 1.0 to 6.0: about 250 MB/s a lane and
	// direction in the first generation, doubling with each.
	return 2 * 250 * float64(int(1)<<min(gen-1, 5)) * float64(width)
}

// Devices lists the node's GPUs.
func (l *Library) Devices() []Device { return l.devices }

// Close ends the use of NVML.
func (l *Library) Close() error {
	if l.released {
		return nil
	}
	return l.shutdown()
}

func (l *Library) shutdown() error {
	if ret := l.api.Shutdown(); ret != gonvml.SUCCESS {
		return errors.New("close NVML: " + ret.Error())
	}
	return nil
}
