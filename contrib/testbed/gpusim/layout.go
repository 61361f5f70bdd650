package gpusim

import (
	"bytes"
	"hash/fnv"
	"unsafe"
)

// The state file's layout: nvmlsim/state.h in Go, field by field.
const (
	magic      = "GPUSIMv\x00"
	version    = 4
	headerSize = 4096
	// MaxDevices a state file can hold.
	MaxDevices = 16
	// Slots is the number of processes a device can hold, MPS servers counted.
	Slots = 64
	// MaxPoints is the number of phases a process's demand can have; a finer
	// profile is made coarser.
	MaxPoints = 512
	maxFaults = 32
	// maxChanges of its utilisation that a device remembers.
	maxChanges = 256
	// MaxInstances a device can be cut into.
	MaxInstances = 8
)

type fileHeader struct {
	Magic   [8]byte
	Version uint32
	Devices uint32
	Size    uint64
	Scale   float64
	T0ns    int64
	Driver  [32]byte
	Cuda    int32
	Check   uint32
}

type point struct {
	Until float64 // solo work at which the phase ends, s
	GPU   float64
	Core  float64
	PCIe  float64 // MB/s
	Mem   float64 // MiB
}

type slot struct {
	Pid      int32
	UID      uint32
	Start    uint64
	Server   int32
	Kind     Kind
	Points   uint32
	Instance uint32 // MIG instance + 1, 0 = the whole card
	Duration float64
	Step     float64
	App      [64]byte
	Point    [MaxPoints]point
}

type member struct {
	Status   Status
	Point    uint32
	Done     float64
	Slowdown float64
	StartT   float64
	EndT     float64
	MemMax   float64
}

type change struct {
	T, GPU float64
}

type dyn struct {
	T        float64
	BusyS    float64
	CoreS    float64
	MemMiBS  float64
	PCIeMB   float64
	EnergyJ  float64
	Occupied float64
	MemMax   float64
	GPU      float64
	Core     float64
	PCIe     float64
	Mem      float64
	Power    float64
	Started  uint64
	Finished uint64
	OOM      uint64
	Killed   uint64
	Faults   uint64
	// of each MIG instance, as fractions of the card
	InstBusyS, InstCoreS, InstGPU, InstCore [MaxInstances]float64
	Changes                                 uint32
	_                                       uint32
	Change                                  [maxChanges]change
	Member                                  [Slots]member
}

type fault struct {
	Mode  uint32
	Value int32
}

type instance struct {
	UUID            [48]byte
	Profile         [16]byte
	GPUInstance     uint32
	ComputeInstance uint32
	Slices          uint32
	SMs             uint32
	MemTotal        float64
}

type deviceRec struct {
	UUID        [48]byte
	Name        [64]byte
	Model       [16]byte
	Minor       uint32
	Arch        uint32
	CCMajor     uint32
	CCMinor     uint32
	Cores       uint32
	SMs         uint32
	Bus         uint32
	PCIID       uint32
	PCIeGen     uint32
	PCIeWidth   uint32
	Caps        uint32
	MaxClients  uint32
	SameUser    uint32
	Lost        uint32
	Accounting  uint32
	MIG         uint32
	MemTotal    float64
	MemReserved float64
	MemContext  float64
	PCIeMBps    float64
	PowerIdle   float64
	PowerActive float64
	PowerMax    float64
	TempIdle    float64
	TempMax     float64
	BusBits     uint32
	Instances   uint32
	Instance    [MaxInstances]instance
	Fault       [maxFaults]fault
	LookedNs    int64
	Cur         uint32
	_           uint32
	Dyn         [2]dyn
	Slot        [Slots]slot
}

const deviceSize = int(unsafe.Sizeof(deviceRec{}))

// fileSize is the size of a state file of n devices, bytes.
func fileSize(n int) int { return headerSize + n*deviceSize }

// checksum is the header's.
func checksum(b []byte) uint32 {
	h := fnv.New32a()
	h.Write(b)
	return h.Sum32()
}

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
