package nvml

import (
	"cmp"
	"fmt"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Capabilities is what a GPU and its driver can do, queried once, when the library is opened.
type Capabilities struct {
	Driver  string `json:"driver"`  // e.g. "535.183.01"; "" = unknown
	CUDA    string `json:"cuda"`    // the driver's, e.g. "12.2"; "" = unknown
	Compute string `json:"compute"` // compute capability, e.g. "6.1"; "" = unknown
	// Mode is the compute mode: default, exclusive_process, exclusive_thread or prohibited; "" = unknown.
	Mode string `json:"mode,omitempty"`
	// Persistent: the driver keeps the GPU initialised while nothing uses it; nil = unknown.
	Persistent *bool `json:"persistent,omitempty"`
	MPS        MPS   `json:"mps"`
	MIG        MIG   `json:"mig"`
	// NUMA: its memory is a NUMA node of the machine's (Grace Hopper). The operating system keeps pages of processes that
	// have ended (nvml.h, nvmlDeviceGetMemoryInfo), so what is counted as used isn't what jobs hold.
	NUMA bool `json:"numa,omitempty"`
	// Answers says which Sources this GPU has.
	Answers Answers `json:"answers"`
	// Refusals says of each figure that isn't given, or that failed when it was
	// queried, why. Its keys are the names of Sources.
	Refusals map[string]string `json:"refusals,omitempty"`
}

// MPS is what NVIDIA's Multi-Process Service does on a GPU.
type MPS struct {
	// MaxClients is how many client contexts a GPU serves at a time; 0 = unknown.
	MaxClients int `json:"max_clients"`
	// MemoryLimit: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT limits the memory a client holds.
	MemoryLimit bool `json:"memory_limit"`
	// OwnAddresses: each client has its own address space; without, a client can write into another's memory.
	OwnAddresses bool `json:"own_addresses"`
}

// NoMemLimits reports whether the driver is too old to limit the memory of clients on a card that could.
func (m *MPS) NoMemLimits() bool { return m.OwnAddresses && !m.MemoryLimit }

// mpsRules follows from the compute capability's major number (0 = unknown) and
// the driver's CUDA version as cuDriverGetVersion has it (12020 = 12.2).
//
// Sources: NVIDIA's manual of the Multi-Process Service (docs.nvidia.com/deploy/mps), "Volta MPS" and "Client-Server
// Connection Limits": 16 contexts before Volta, from Volta on 48, and 60 since the manual of release 590, which is CUDA
// 13.1's. Memory limits came with CUDA 11.5 (NVIDIA, "Revealing new features in the CUDA 11.5 toolkit"): the libcuda of
// 470 (CUDA 11.4) has no CUDA_MPS_PINNED_DEVICE_MEM_LIMIT in it, the one of 535 does. A card of unknown capability is
// taken for an old one.
func mpsRules(major, cuda int) MPS {
	m := MPS{MaxClients: 16}
	if major < 7 {
		return m
	}
	m.OwnAddresses = true
	m.MemoryLimit = cuda >= 11050
	m.MaxClients = 48
	if cuda >= 13010 {
		m.MaxClients = 60
	}
	return m
}

var modes = map[gonvml.ComputeMode]string{
	gonvml.COMPUTEMODE_DEFAULT: "default", gonvml.COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive_thread",
	gonvml.COMPUTEMODE_EXCLUSIVE_PROCESS: Exclusive, gonvml.COMPUTEMODE_PROHIBITED: "prohibited",
}

// mode is the compute mode of a GPU or an instance, "" = unknown.
func (l *Library) mode(h gonvml.Device) string {
	if mode, ok := ask(l, "nvmlDeviceGetComputeMode", h.GetComputeMode); ok {
		return modes[mode]
	}
	return ""
}

// Exclusive is the compute mode in which one process at a time has a context of its own on a GPU. An MPS server is such
// a process, and its clients are not.
const Exclusive = "exclusive_process"

// final reports whether a call's outcome stays as it is: the card or the driver can't, or this process may not.
func final(ret gonvml.Return) bool {
	switch ret {
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_NO_PERMISSION,
		gonvml.ERROR_ARGUMENT_VERSION_MISMATCH, gonvml.ERROR_DEPRECATED, gonvml.ERROR_INVALID_ARGUMENT:
		return true
	}
	return false
}

func (l *Library) capabilities(h gonvml.Device) Capabilities {
	c := Capabilities{Driver: l.driver}
	if l.cuda > 0 {
		c.CUDA = fmt.Sprintf("%d.%d", l.cuda/1000, l.cuda%1000/10)
	}
	major := 0
	if l.found("nvmlDeviceGetCudaComputeCapability") {
		if x, y, ret := h.GetCudaComputeCapability(); ret == gonvml.SUCCESS && x > 0 && x < 100 && y >= 0 && y < 10 {
			major = x
			c.Compute = fmt.Sprintf("%d.%d", x, y)
		}
	}
	c.MPS = mpsRules(major, l.cuda)
	c.Mode = l.mode(h)
	if mode, ok := ask(l, "nvmlDeviceGetPersistenceMode", h.GetPersistenceMode); ok {
		on := mode == gonvml.FEATURE_ENABLED
		c.Persistent = &on
	}
	c.Answers, c.Refusals = l.answers(h)
	if _, c.NUMA = ask(l, "nvmlDeviceGetNumaNodeId", h.GetNumaNodeId); c.NUMA {
		c.Answers[Memory], c.Refusals[Memory] = false, pagesStay
	}
	return c
}

// pagesStay is why there is no figure of memory in use.
const pagesStay = "its memory is a NUMA node, where pages stay counted after a process has ended"

// MIG is how a GPU is cut into instances (A100 and later).
type MIG struct {
	Can bool `json:"can"` // the card has MIG
	On  bool `json:"on"`
	Max int  `json:"max"` // instances at most
	// Instances are the instances that existed when the library was opened. A GPU in MIG mode
	// computes in them only; by itself it has neither utilisation nor PCIe figures.
	Instances []Instance `json:"instances,omitempty"`
}

// Instance is one MIG device.
type Instance struct {
	UUID            string  `json:"uuid"`
	Profile         string  `json:"profile"` // e.g. "1g.5gb"; "" = unknown
	GPUInstance     int     `json:"gpu_instance"`
	ComputeInstance int     `json:"compute_instance"`
	MemMiB          float64 `json:"mem_mib"`
	SMs             int     `json:"sms"`    // 0 = unknown
	Slices          int     `json:"slices"` // of the GPU's, which are MIG.Max; 0 = unknown
	// Clients is how many MPS client contexts it serves at a time.
	Clients int `json:"mps_clients"`

	model string // NVML's name of it
	mode  string // as Capabilities.Mode
	gpu   *gpu   // with the instance's own handle
}

// mostInstances is more than any card has: A100 to B200 have 7 at most.
const mostInstances = 64

func (l *Library) mig(h gonvml.Device, of *Device) MIG {
	var m MIG
	if !l.found("nvmlDeviceGetMigMode") {
		return m
	}
	mode, _, ret := h.GetMigMode()
	if m.Can = ret == gonvml.SUCCESS; !m.Can {
		return m
	}
	m.On = mode == gonvml.DEVICE_MIG_ENABLE
	if n, ok := ask(l, "nvmlDeviceGetMaxMigDeviceCount", h.GetMaxMigDeviceCount); ok {
		m.Max = max(0, min(n, mostInstances))
	}
	if !m.On || !l.found("nvmlDeviceGetMigDeviceHandleByIndex") {
		return m
	}
	for i := range m.Max {
		// Unused places are not found.
		if inst, ret := h.GetMigDeviceHandleByIndex(i); ret == gonvml.SUCCESS {
			m.Instances = append(m.Instances, l.instance(inst, of, m.Max))
		}
	}
	m.settle()
	return m
}

// settle sets the instances' parts of the card's figures, and which figures NVML gives of them: both depend on the
// card's other instances.
func (m *MIG) settle() {
	sms := 0                // of all instances
	within := map[int]int{} // compute instances by GPU instance
	for i := range m.Instances {
		in := &m.Instances[i]
		sms += in.SMs
		within[in.GPUInstance]++
	}
	for i := range m.Instances {
		in := &m.Instances[i]
		in.gpu.part = float64(in.SMs) / float64(max(1, sms))
		for _, source := range divided {
			in.gpu.answers[source] = in.gpu.of.answers[source] && in.SMs > 0
		}
		if within[in.GPUInstance] > 1 {
			// Compute instances share the GPU instance's memory and its performance monitoring.
			in.gpu.answers[Memory] = false
			in.gpu.answers[GPM] = false
		}
	}
}

func (l *Library) instance(h gonvml.Device, of *Device, slices int) Instance {
	card := of.gpu
	i := Instance{
		UUID: l.uuid(h), GPUInstance: -1, ComputeInstance: -1, MemMiB: l.memory(h),
		model: l.name(h), mode: l.mode(h),
	}
	// "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
	_, i.Profile, _ = strings.Cut(i.model, " MIG ")
	if n, ok := ask(l, "nvmlDeviceGetGpuInstanceId", h.GetGpuInstanceId); ok {
		i.GPUInstance = n
	}
	if n, ok := ask(l, "nvmlDeviceGetComputeInstanceId", h.GetComputeInstanceId); ok {
		i.ComputeInstance = n
	}
	compute := 1
	if l.found("nvmlDeviceGetAttributes_v2") || l.found("nvmlDeviceGetAttributes") {
		if a, ret := h.GetAttributes(); ret == gonvml.SUCCESS && a.MemorySizeMB <= mostMemory>>20 {
			i.MemMiB = cmp.Or(float64(a.MemorySizeMB), i.MemMiB)
			i.SMs = int(a.MultiprocessorCount)
			i.Slices = int(a.GpuInstanceSliceCount)
			compute = max(1, int(a.ComputeInstanceSliceCount))
		}
	}
	// NVIDIA's MIG User Guide, "Deployment Considerations": the card's number of clients is lowered in proportion to the
	// size of the compute instance. An unknown size counts as the smallest.
	i.Clients = max(1, of.MPS.MaxClients*compute/max(1, slices, compute))
	// NVML gives no utilisation of an instance.
	answers, _ := l.answers(h, Memory, Processes, MPSProcesses)
	answers[Memory] = answers[Memory] && !of.NUMA
	answers[GPM] = of.Answers[GPM] && i.GPUInstance >= 0 && l.found("nvmlGpmMigSampleGet")
	i.gpu = &gpu{
		lib: l, handle: h, minor: of.Minor, memMiB: i.MemMiB, answers: answers, of: card,
		gpm: func(s gonvml.GpmSample) gonvml.Return { return s.MigGet(card.handle, i.GPUInstance) },
	}
	return i
}

// Instance is a MIG instance as a Device: it has memory, processes and activity, in fractions of the instance, and its
// part of the card's power and PCIe traffic, by SMs.
func (d *Device) Instance(k int) Device {
	inst := &d.MIG.Instances[k]
	out := *d
	out.gpu = inst.gpu
	out.MIG = MIG{}
	out.Refusals = nil
	out.Answers = nil
	if inst.gpu != nil {
		out.Answers = inst.gpu.answers
	}
	out.UUID = inst.UUID
	out.Parent = d.UUID
	out.Model = cmp.Or(inst.model, d.Model+" MIG "+inst.Profile)
	out.MemMiB = inst.MemMiB
	out.SMs = inst.SMs
	out.Mode = inst.mode
	out.MPS.MaxClients = inst.Clients
	return out
}
