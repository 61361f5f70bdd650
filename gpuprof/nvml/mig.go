package nvml

import (
	"cmp"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

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
	Slices          int     `json:"slices"` // of the GPU's seven; 0 = unknown

	gpu *gpu // with the instance's own handle
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
			m.Instances = append(m.Instances, l.instance(inst, h, of))
		}
	}
	return m
}

func (l *Library) instance(h, card gonvml.Device, of *Device) Instance {
	i := Instance{UUID: l.uuid(h), GPUInstance: -1, ComputeInstance: -1, MemMiB: l.memory(h)}
	// "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
	_, i.Profile, _ = strings.Cut(l.name(h), " MIG ")
	if n, ok := ask(l, "nvmlDeviceGetGpuInstanceId", h.GetGpuInstanceId); ok {
		i.GPUInstance = n
	}
	if n, ok := ask(l, "nvmlDeviceGetComputeInstanceId", h.GetComputeInstanceId); ok {
		i.ComputeInstance = n
	}
	if l.foundOne([]string{"nvmlDeviceGetAttributes_v2", "nvmlDeviceGetAttributes"}) {
		if a, ret := h.GetAttributes(); ret == gonvml.SUCCESS && a.MemorySizeMB <= mostMemory>>20 {
			i.MemMiB = cmp.Or(float64(a.MemorySizeMB), i.MemMiB)
			i.SMs, i.Slices = int(a.MultiprocessorCount), int(a.GpuInstanceSliceCount)
		}
	}
	// NVML gives neither utilisation nor PCIe and power of an instance.
	answers, _ := l.answers(h, Memory, Processes)
	answers[GPM] = of.Answers[GPM] && i.GPUInstance >= 0 && l.found("nvmlGpmMigSampleGet")
	i.gpu = &gpu{
		lib: l, handle: h, minor: of.Minor, memMiB: i.MemMiB, answers: answers,
		gpm: func(s gonvml.GpmSample) gonvml.Return { return s.MigGet(card, i.GPUInstance) },
	}
	return i
}

// Instance is a MIG instance as a Device: it has memory, processes and activity, in fractions of the instance.
func (d *Device) Instance(k int) Device {
	inst, out := &d.MIG.Instances[k], *d
	out.gpu = inst.gpu
	if out.MemMiB = inst.MemMiB; inst.SMs > 0 {
		out.Cores = 0 // of the whole card; the instance has some of them
	}
	return out
}
