package nvml

import (
	"slices"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// The names of Sources.
const (
	Utilisation        = "utilisation"
	Memory             = "memory"
	PCIe               = "pcie"
	Power              = "power"
	Processes          = "processes"
	MPSProcesses       = "mps_processes"
	ProcessUtilisation = "process_utilisation"
	GPM                = "gpm"
)

// divided lists the sources that NVML gives for whole GPUs only. A MIG instance gets its part of them.
var divided = []string{Power, PCIe}

// giver is the GPU or instance that a source is read from, and which part of its figure counts.
func (g *gpu) giver(source string) (from *gpu, part float64) {
	if g.of != nil && slices.Contains(divided, source) {
		return g.of, g.part
	}
	return g, 1
}

// Source is something that NVML can report of a GPU.
type Source struct {
	Name    string   // in Answers and Refusals
	Symbols []string // one of them must be in the library,
	Also    []string // and all of these
	// Probe reads it, to see whether the GPU has it.
	Probe func(h gonvml.Device) gonvml.Return
}

// Sources is the table of what NVML is queried for, as gpuprof info shows it.
var Sources = []Source{
	{
		Name: Utilisation, Symbols: []string{"nvmlDeviceGetUtilizationRates"},
		Probe: probe(gonvml.Device.GetUtilizationRates),
	},
	{
		Name: Memory, Symbols: []string{memoryV1}, Probe: probe(gonvml.Device.GetMemoryInfo),
	},
	{
		Name: PCIe, Symbols: []string{"nvmlDeviceGetPcieThroughput"},
		Probe: func(h gonvml.Device) gonvml.Return {
			_, ret := h.GetPcieThroughput(gonvml.PCIE_UTIL_RX_BYTES)
			return ret
		},
	},
	{
		Name: Power, Symbols: []string{"nvmlDeviceGetPowerUsage"}, Probe: probe(gonvml.Device.GetPowerUsage),
	},
	{
		Name: Processes, Symbols: versions("nvmlDeviceGetComputeRunningProcesses"),
		Probe: probe(gonvml.Device.GetComputeRunningProcesses),
	},
	{
		Name: MPSProcesses, Symbols: versions("nvmlDeviceGetMPSComputeRunningProcesses"),
		Probe: probe(gonvml.Device.GetMPSComputeRunningProcesses),
	},
	{
		Name: ProcessUtilisation, Symbols: []string{"nvmlDeviceGetProcessUtilization"},
		Probe: func(h gonvml.Device) gonvml.Return {
			_, ret := processUtilisation(h, 0)
			return nothingNew(ret)
		},
	},
	{
		Name: GPM, Symbols: []string{"nvmlGpmQueryDeviceSupport"},
		Also: []string{"nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"},
		Probe: func(h gonvml.Device) gonvml.Return {
			s, ret := h.GpmQueryDeviceSupport()
			if ret == gonvml.SUCCESS && s.IsSupportedDevice == 0 {
				return gonvml.ERROR_NOT_SUPPORTED
			}
			return ret
		},
	},
}

// memoryV1 is what all drivers have; see memoryInfo.
const memoryV1 = "nvmlDeviceGetMemoryInfo"

// probe makes a Probe of a call and ignores its value.
func probe[T any](call func(gonvml.Device) (T, gonvml.Return)) func(gonvml.Device) gonvml.Return {
	return func(h gonvml.Device) gonvml.Return {
		_, ret := call(h)
		return ret
	}
}

// versions are the names under which drivers have had a list of processes.
func versions(name string) []string { return []string{name + "_v3", name + "_v2", name} }

// nothingNew makes success of "no sample yet": the figure is given, nothing has used the GPU of late.
func nothingNew(ret gonvml.Return) gonvml.Return {
	if ret == gonvml.ERROR_NOT_FOUND {
		return gonvml.SUCCESS
	}
	return ret
}

// Answers says which Sources a GPU has, by name. One that failed for a reason that may pass (a timeout, a GPU that was
// being reset) counts as there: it is tried again at each reading.
type Answers map[string]bool

// answers queries a GPU once for the sources of these names, or for all, and says of each that isn't given why.
func (l *Library) answers(h gonvml.Device, names ...string) (a Answers, refusals map[string]string) {
	a = Answers{}
	refusals = map[string]string{}
	for i := range Sources {
		s := &Sources[i]
		if len(names) > 0 && !slices.Contains(names, s.Name) {
			continue
		}
		missing := slices.DeleteFunc(slices.Clone(s.Also), l.found)
		if !slices.ContainsFunc(s.Symbols, l.found) {
			missing = s.Symbols
		}
		if len(missing) > 0 {
			a[s.Name] = false
			refusals[s.Name] = "the driver's library has no " + missing[0]
			continue
		}
		ret := s.Probe(h)
		a[s.Name] = !final(ret)
		if ret != gonvml.SUCCESS {
			refusals[s.Name] = strings.ToLower(ret.Error())
		}
	}
	return a, refusals
}
