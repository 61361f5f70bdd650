package gpusim

import (
	"bytes"
	"unsafe"

	"github.com/slurmbridge/slurmbridge/rlcore"
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
	version    = 17
	headerSize = 4096
	// MaxDevices a state file can hold.
	MaxDevices = 16
	// Slots is the number of processes a device can hold, MPS servers counted.
	Slots = 64
	// MaxPoints is the number of phases a process's demand can have.
	MaxPoints = 512
	maxFaults = 32
	// MaxInstances a device can be cut into.
	MaxInstances = 8
)

type fileHeader struct {
	Magic   [8]byte
	Version int
	Devices int
	Scale   float64
	T0ns    int64 // CLOCK_MONOTONIC when the file was made
	Driver  [32]byte
	Cuda    int // as cuDriverGetVersion: 12020 = 12.2
}

// Kind is what a process on a GPU is.
type Kind uint32

// The kinds.
const (
	Own    Kind = 1 // has a context of its own: time-slicing
	Client Kind = 2 // of an MPS server
	Server Kind = 3 // an MPS server
)

// String returns the kind in a word.
func (k Kind) String() string { return []string{"", "own", "mps-client", "mps-server"}[k] }

// Status is how a process on a GPU fares.
type Status uint32

// The statuses. Of those after Paused the GPU holds nothing any more.
const (
	Free     Status = 0 // there is no process
	Running  Status = 1
	Paused   Status = 2 // stopped by a signal: holds memory, demands nothing
	Finished Status = 3
	OOM      Status = 4 // an allocation failed
	Faulted  Status = 5 // its context was destroyed
)

// String returns the status in a word, as reports have it.
func (s Status) String() string {
	return []string{"free", "running", "paused", "finished", "oom", "fault"}[s]
}

// present reports whether a process of this status holds memory.
func (s Status) present() bool { return s == Running || s == Paused }

// Claimant is a process that claims a place on a GPU.
type Claimant struct {
	PID    int // 0 = the caller's process
	UID    int
	Server int // pid of the MPS server it is a client of; 0 = context of its own
	// Instance is the MIG instance it runs in, counted from 1 in NVML's order; 0 = the whole card, which a GPU in MIG
	// mode doesn't give.
	Instance int
	// Limits hold for clients on cards from Volta on.
	Limits Limits
}

// point is one phase of a process's demand when it runs alone.
type point struct {
	rlcore.Use
	Until float64 // solo work at which the phase ends, s
}

// slot is what of a process does not change while it lives.
type slot struct {
	Claimant
	Start     uint64 // the process's start time, clock ticks since boot
	Kind      Kind
	Points    int
	DurationS float64 // solo, under the claimant's limits
	StepS     float64 // one iteration alone; 0 = unknown
	App       [64]byte
	Point     [MaxPoints]point
}

// member is what of a process changes.
type member struct {
	Status    Status
	Point     int     // the phase it is in
	DoneS     float64 // solo work done
	Slowdown  float64 // at this moment
	StartT    float64
	EndT      float64
	MemMiB    float64 // held
	MemMaxMiB float64
	Busy      float64 // fraction of time its own kernels run
}

// Figures are a GPU at one moment, and its sums since the state file was made: the mean utilisation between two moments
// a and b is (b.BusyS−a.BusyS)/(b.T−a.T), the mean of the memory in use (b.MemMiBS−a.MemMiBS)/(b.T−a.T)/MemTotalMiB.
type Figures struct {
	T        float64 // GPU seconds since the file was made
	BusyS    float64 // ∫ GPU dt
	CoreS    float64 // ∫ Core dt
	MemMiBS  float64 // ∫ MemMiB dt
	PCIeMB   float64 // ∫ PCIeMBps dt
	GPU      float64 // fraction of time any kernel runs, 0..1
	Core     float64 // fraction of the SMs busy, 0..1
	PCIeMBps float64 // both directions
	MemMiB   float64 // memory held
	PowerW   float64
	OOM      int // applications that ran out of memory
}

type dyn struct {
	Figures
	// of each MIG instance, as fractions of the card
	InstBusyS, InstCoreS, InstGPU, InstCore [MaxInstances]float64
	Member                                  [Slots]member
}

// fault is how one NVML figure misbehaves: Mode is an index of faultModes.
type fault struct {
	Mode, Value int
}

// instance is a MIG instance: a GPU instance with one compute instance, 0, that is all of it.
type instance struct {
	UUID        [48]byte
	Profile     [16]byte
	GPUInstance int
	Slices      int
	SMs         int
	MemTotal    float64
}

// card is what a kind of GPU is.
type card struct {
	CCMajor     int
	CCMinor     int
	SMs         int
	PCIeGen     int
	PCIeWidth   int
	Caps        int
	MaxClients  int     // MPS clients at a time
	SameUser    bool    // MPS before Volta
	MemTotal    float64 // MiB that processes can have
	MemReserved float64 // MiB that the driver keeps beside that
	MemContext  float64 // MiB an MPS server takes for itself
	LinkMBps    float64 // what PCIe carries, both directions
	PowerIdle   float64 // W, no process there
	PowerActive float64 // W, a context is open and no kernel runs
	PowerMax    float64 // W
}

type deviceRec struct {
	card
	UUID        [48]byte
	Name        [64]byte
	Minor       int  // N of /dev/nvidiaN
	Lost        bool // the GPU has fallen off the bus
	MIG         bool // MIG mode is on
	ComputeMode int  // nvmlComputeMode_t: 0 = default, 3 = exclusive process
	Instances   int
	Instance    [MaxInstances]instance
	Fault       [maxFaults]fault
	Cur         uint32 // which of Dyn is current: 0 or 1
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

// setCString writes s over dst, which is all NULs; what doesn't fit is left out.
func setCString(dst []byte, s string) { copy(dst[:len(dst)-1], s) }
