package nvml

import (
	"fmt"
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

func (l *library) mig(h gonvml.Device, of *gpu) MIG {
	var m MIG
	if !l.found("nvmlDeviceGetMigMode") {
		return m
	}
	mode, _, ret := h.GetMigMode()
	if m.Can = ret == gonvml.SUCCESS; !m.Can {
		return m
	}
	m.On = mode == gonvml.DEVICE_MIG_ENABLE
	if !l.found("nvmlDeviceGetMaxMigDeviceCount") {
		return m
	}
	if n, ret := h.GetMaxMigDeviceCount(); ret == gonvml.SUCCESS {
		m.Max = max(0, min(n, mostInstances))
	}
	if !m.On || !l.found("nvmlDeviceGetMigDeviceHandleByIndex") {
		return m
	}
	for i := range m.Max {
		// Unused places are not found.
		if inst, ret := h.GetMigDeviceHandleByIndex(i); ret == gonvml.SUCCESS {
			m.Instances = append(m.Instances, l.instance(inst, of))
		}
	}
	return m
}

func (l *library) instance(h gonvml.Device, of *gpu) Instance {
	i := Instance{GPUInstance: -1, ComputeInstance: -1}
	i.UUID = l.uuid(h)
	// "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
	_, i.Profile, _ = strings.Cut(l.name(h), " MIG ")
	l.number("nvmlDeviceGetGpuInstanceId", h.GetGpuInstanceId, &i.GPUInstance)
	l.number("nvmlDeviceGetComputeInstanceId", h.GetComputeInstanceId, &i.ComputeInstance)
	if l.foundOne([]string{"nvmlDeviceGetAttributes_v2", "nvmlDeviceGetAttributes"}) {
		if a, ret := h.GetAttributes(); ret == gonvml.SUCCESS && a.MemorySizeMB <= mostMemory>>20 {
			i.MemMiB, i.SMs, i.Slices = float64(a.MemorySizeMB), int(a.MultiprocessorCount), int(a.GpuInstanceSliceCount)
		}
	}
	i.gpu = &gpu{lib: l, handle: h, minor: of.minor, memMiB: i.MemMiB, answers: Answers{}}
	if l.found("nvmlDeviceGetMemoryInfo") {
		m, ret := h.GetMemoryInfo()
		i.gpu.answers[Memory] = !final(ret)
		if ret == gonvml.SUCCESS && i.MemMiB == 0 && m.Total <= mostMemory {
			i.MemMiB = float64(m.Total) / (1 << 20)
			i.gpu.memMiB = i.MemMiB
		}
	}
	if l.foundOne(versions("nvmlDeviceGetComputeRunningProcesses")) {
		_, ret := h.GetComputeRunningProcesses()
		i.gpu.answers[Processes] = !final(ret)
	}
	return i
}

// Instance finds a MIG instance by its UUID; ErrNotSupported where there is none.
func (d *Device) Instance(uuid string) (*Instance, error) {
	for i := range d.MIG.Instances {
		if d.MIG.Instances[i].UUID == uuid {
			return &d.MIG.Instances[i], nil
		}
	}
	return nil, fmt.Errorf("gpu %d: no MIG instance %q: %w", d.Minor, uuid, ErrNotSupported)
}

// Read is Device.Read of an instance, which has memory only.
func (i *Instance) Read(source string) (float64, error) { return i.gpu.read(source) }

// Processes lists what computes in the instance.
func (i *Instance) Processes() ([]Process, error) {
	d := Device{gpu: i.gpu}
	return d.Processes()
}

// InstanceMeter starts to measure an instance's activity, in fractions of the
// instance. Close it.
func (d *Device) InstanceMeter(i *Instance) (*Meter, error) {
	if i.GPUInstance < 0 || d.gpu == nil || !d.gpu.lib.found("nvmlGpmMigSampleGet") {
		return nil, ErrNotSupported
	}
	return d.meter(i.GPUInstance)
}
