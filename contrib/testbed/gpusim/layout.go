package gpusim

import (
	"bytes"
	"unsafe"
)

// The state file's layout, which C gets from Header: one fileHeader, padded to headerSize, then the devices. Raise the
// version with a change.
//
// Writers hold an exclusive flock of the whole file, readers a shared one; the kernel drops the lock of a process that
// dies. What changes while a device is in use lies in two copies: a writer fills the one that is not current and then
// stores its number in Cur, so that a writer killed half way leaves the old state whole. The library writes only
// limits. Times are GPU seconds: (CLOCK_MONOTONIC − T0ns) · Scale.
const (
	magic      = "GPUSIMv\x00"
	version    = 14
	headerSize = 4096
	// MaxDevices a state file can hold.
	MaxDevices = 16
	// Slots is the number of processes a device can hold, MPS servers counted.
	Slots = 64
	// MaxPoints is the number of phases a process's demand can have.
	MaxPoints = 512
	maxFaults = 32
	// maxChanges of its utilisation that a device remembers.
	maxChanges = 256
	// MaxInstances a device can be cut into.
	MaxInstances = 8
	maxLimits    = 16
)

type fileHeader struct {
	Magic   [8]byte
	Version uint32
	Devices uint32
	Scale   float64
	T0ns    int64 // CLOCK_MONOTONIC when the file was made
	Driver  [32]byte
	Cuda    int32 // as cuDriverGetVersion: 12020 = 12.2
	_       uint32
}

// point is one phase of a process's demand when it runs alone.
type point struct {
	Until float64 // solo work at which the phase ends, s
	GPU   float64 // fraction of time a kernel runs, 0..1
	Core  float64 // fraction of the SMs busy, 0..1
	PCIe  float64 // MB/s, both directions
	Mem   float64 // MiB
}

// slot is what of a process does not change while it lives.
type slot struct {
	Pid      int32
	UID      uint32
	Start    uint64 // the process's start time, clock ticks since boot
	Server   int32  // pid of its MPS server, 0 = none
	Kind     Kind
	Points   uint32
	Instance uint32  // MIG instance + 1, 0 = the whole card
	Duration float64 // solo, s
	Step     float64 // one iteration alone, s; 0 = unknown
	App      [64]byte
	Point    [MaxPoints]point
}

// member is what of a process changes.
type member struct {
	Status   Status
	Point    uint32  // the phase it is in
	Done     float64 // solo work done, s
	Slowdown float64
	StartT   float64
	EndT     float64
	MemMax   float64
	Mem      float64 // held, MiB
	Busy     float64 // fraction of time its own kernels run
}

// change: from T on the device's utilisation was GPU.
type change struct {
	T, GPU float64
}

// Figures are a GPU at one moment, and its sums since the state file was made: the mean utilisation between two
// moments a and b is (b.BusyS−a.BusyS)/(b.T−a.T), the mean of the memory in use
// (b.MemMiBS−a.MemMiBS)/(b.T−a.T)/MemTotalMiB.
type Figures struct {
	T         float64 `json:"t_s"`         // GPU seconds since the file was made
	BusyS     float64 `json:"busy_s"`      // ∫ GPU dt
	CoreS     float64 `json:"core_s"`      // ∫ Core dt
	MemMiBS   float64 `json:"mem_mib_s"`   // ∫ MemMiB dt
	PCIeMB    float64 `json:"pcie_mb"`     // ∫ PCIeMBps dt
	MemMaxMiB float64 `json:"mem_max_mib"` // most memory ever held
	GPU       float64 `json:"gpu"`         // fraction of time any kernel runs, 0..1
	Core      float64 `json:"core"`        // fraction of the SMs busy, 0..1
	PCIeMBps  float64 `json:"pcie_mbps"`   // both directions
	MemMiB    float64 `json:"mem_mib"`     // memory held
	PowerW    float64 `json:"power_w"`
	Started   uint64  `json:"started"`  // applications that began
	Finished  uint64  `json:"finished"` // that did all their work
	OOM       uint64  `json:"oom"`      // that ran out of memory
	Killed    uint64  `json:"killed"`   // whose process died before its work was done
	Faults    uint64  `json:"faults"`   // that lost their context through a fault
}

type dyn struct {
	Figures
	// of each MIG instance, as fractions of the card
	InstBusyS, InstCoreS, InstGPU, InstCore [MaxInstances]float64
	Changes                                 uint32 // ever; the next one's place is their number modulo maxChanges
	_                                       uint32
	Change                                  [maxChanges]change
	Member                                  [Slots]member
}

// fault is how one NVML figure misbehaves: Mode is an index of faultModes.
type fault struct {
	Mode  uint32
	Value int32
}

// groupLimit is what the processes of a control group may hold together.
type groupLimit struct {
	Group [256]byte // the control group's folder, "" = no limit
	Hard  float64   // MiB
}

// instance is a MIG instance: a GPU instance with one compute instance that is all of it.
type instance struct {
	UUID            [48]byte
	Profile         [16]byte
	GPUInstance     uint32
	ComputeInstance uint32
	Slices          uint32
	SMs             uint32
	MemTotal        float64
}

// card is what a kind of GPU is.
type card struct {
	Arch        uint32
	CCMajor     uint32
	CCMinor     uint32
	Cores       uint32
	SMs         uint32
	PCIeGen     uint32
	PCIeWidth   uint32
	Caps        uint32
	MaxClients  uint32  // MPS clients at a time
	SameUser    uint32  // 1: MPS before Volta
	MemTotal    float64 // MiB, as NVML says it
	MemContext  float64 // MiB an MPS server takes for itself
	PCIeMBps    float64 // what the link carries, both directions, MB/s
	PowerIdle   float64 // W, no process there
	PowerActive float64 // W, a context is open and no kernel runs
	PowerMax    float64 // W
}

type deviceRec struct {
	card
	UUID        [48]byte
	Name        [64]byte
	Minor       uint32 // N of /dev/nvidiaN
	Lost        uint32 // 1: the GPU has fallen off the bus
	MIG         uint32 // 1: MIG mode is on
	_           uint32
	MemReserved float64 // MiB the driver keeps
	Instances   uint32
	ComputeMode uint32 // nvmlComputeMode_t: 0 = default, 3 = exclusive process
	Instance    [MaxInstances]instance
	Fault       [maxFaults]fault
	Limit       [maxLimits]groupLimit
	LookedNs    int64  // CLOCK_MONOTONIC when dead processes were last looked for
	Cur         uint32 // which of Dyn is current: 0 or 1
	_           uint32
	Dyn         [2]dyn
	Slot        [Slots]slot
}

const deviceSize = int(unsafe.Sizeof(deviceRec{}))

// fileSize is the size of a state file of n devices, bytes.
func fileSize(n int) int { return headerSize + n*deviceSize }

// cString returns the bytes before the first NUL.
func cString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// setCString writes s and NULs over dst; what doesn't fit is left out.
func setCString(dst []byte, s string) {
	n := copy(dst[:len(dst)-1], s)
	clear(dst[n:])
}
