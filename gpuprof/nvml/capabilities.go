package nvml

import (
	"fmt"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Capabilities is what a GPU and its driver can do. It is asked once, when the
// library is opened.
type Capabilities struct {
	Driver  string `json:"driver"`  // e.g. "535.183.01"; "" = unknown
	CUDA    string `json:"cuda"`    // the driver's, e.g. "12.2"; "" = unknown
	Compute string `json:"compute"` // compute capability, e.g. "6.1"; "" = unknown
	Cores   int    `json:"cores"`   // CUDA cores; 0 = unknown
	MPS     MPS    `json:"mps"`
	MIG     MIG    `json:"mig"`
	// Answers says which figures this GPU gives.
	Answers Answers `json:"answers"`
	// Refusals says of each figure that isn't given, or that failed when it was
	// asked for, why. Its keys are those of Answers in JSON.
	Refusals map[string]string `json:"refusals,omitempty"`
}

// Answers says which figures a GPU gives. A figure that failed for a reason that
// may pass (a timeout, a GPU that was being reset) counts as given: it is asked
// for again at each reading.
type Answers struct {
	Utilisation        bool `json:"utilisation"`
	Memory             bool `json:"memory"`
	PCIe               bool `json:"pcie"`
	Power              bool `json:"power"`
	Energy             bool `json:"energy"`
	Processes          bool `json:"processes"`
	MPSProcesses       bool `json:"mps_processes"`
	ProcessUtilisation bool `json:"process_utilisation"`
	Samples            bool `json:"samples"`    // the driver's buffer of utilisations
	Accounting         bool `json:"accounting"` // accounting mode is on
	GPM                bool `json:"gpm"`
}

// MPS is what NVIDIA's Multi-Process Service does on a GPU.
type MPS struct {
	// OneUser: the clients of a server belong to one user, and one user at a time
	// has a server. It is so on every architecture: a control daemon that wasn't
	// started with -multiuser-server lets a second user's clients wait until the
	// first's have gone.
	OneUser bool `json:"one_user"`
	// MultiUser: the control daemon takes -multiuser-server, with which one server,
	// root's, serves every user.
	MultiUser bool `json:"multi_user"`
	// MaxClients is how many client contexts a GPU serves at a time; 0 = unknown.
	MaxClients int `json:"max_clients"`
	// ThreadPercentage: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE limits the SMs a client uses.
	ThreadPercentage bool `json:"thread_percentage"`
	// MemoryLimit: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT limits the memory a client holds.
	MemoryLimit bool `json:"memory_limit"`
	// OwnAddresses: each client has its own address space; without, a client can
	// write into another's memory.
	OwnAddresses bool `json:"own_addresses"`
}

// mpsRules follows from the compute capability's major number (0 = unknown) and
// the driver's CUDA version as cuDriverGetVersion has it (12020 = 12.2).
//
// Sources: NVIDIA's manual of the Multi-Process Service (docs.nvidia.com/deploy/mps),
// "Volta MPS", "Limitations" (one user with an active server, clients under the
// server's UID) and "Client-Server Connection Limits": 16 contexts before Volta,
// from Volta on 48, and 60 since the manual of release 590, which is CUDA 13.1's.
// -multiuser-server is for Volta and later; on Pascal the daemon takes it and its
// clients fail (kubernetes-sigs/dra-driver-nvidia-gpu pull request 1153, tried on
// compute capability 6.1). Memory limits came with CUDA 11.5 (NVIDIA, "Revealing
// new features in the CUDA 11.5 toolkit"). A card of unknown capability is taken
// for an old one.
func mpsRules(major, cuda int) MPS {
	m := MPS{OneUser: true, MaxClients: 16}
	if major < 7 {
		return m
	}
	m.MultiUser, m.ThreadPercentage, m.OwnAddresses = true, true, true
	m.MemoryLimit = cuda >= 11050
	m.MaxClients = 48
	if cuda >= 13010 {
		m.MaxClients = 60
	}
	return m
}

var arches = map[gonvml.DeviceArchitecture]string{
	gonvml.DEVICE_ARCH_KEPLER: "kepler", gonvml.DEVICE_ARCH_MAXWELL: "maxwell", gonvml.DEVICE_ARCH_PASCAL: "pascal",
	gonvml.DEVICE_ARCH_VOLTA: "volta", gonvml.DEVICE_ARCH_TURING: "turing", gonvml.DEVICE_ARCH_AMPERE: "ampere",
	gonvml.DEVICE_ARCH_ADA: "ada", gonvml.DEVICE_ARCH_HOPPER: "hopper", gonvml.DEVICE_ARCH_BLACKWELL: "blackwell",
	gonvml.DEVICE_ARCH_RUBIN: "rubin",
}

// final reports whether a call's outcome stays as it is: the card or the driver
// can't, or this process may not.
func final(ret gonvml.Return) bool {
	switch ret {
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_NO_PERMISSION,
		gonvml.ERROR_ARGUMENT_VERSION_MISMATCH, gonvml.ERROR_DEPRECATED, gonvml.ERROR_INVALID_ARGUMENT:
		return true
	}
	return false
}

// asked is one figure of the matrix.
type asked struct {
	name    string // as in Answers' JSON
	answers *bool
	symbols []string // one of them must be in the library
	call    func() gonvml.Return
}

func (l *library) capabilities(h gonvml.Device) Capabilities {
	c := Capabilities{Driver: l.driver, Refusals: map[string]string{}}
	if l.cuda > 0 {
		c.CUDA = fmt.Sprintf("%d.%d", l.cuda/1000, l.cuda%1000/10)
	}
	major := 0
	if l.found("nvmlDeviceGetCudaComputeCapability") {
		if x, y, ret := h.GetCudaComputeCapability(); ret == gonvml.SUCCESS && x > 0 && x < 100 && y >= 0 && y < 10 {
			major, c.Compute = x, fmt.Sprintf("%d.%d", x, y)
		}
	}
	if l.found("nvmlDeviceGetNumGpuCores") {
		// The largest card of today has 24064.
		if n, ret := h.GetNumGpuCores(); ret == gonvml.SUCCESS && n > 0 && n < 1<<20 {
			c.Cores = n
		}
	}
	c.MPS = mpsRules(major, l.cuda)
	for _, f := range l.figures(h, &c.Answers) {
		if !l.foundOne(f.symbols) {
			c.Refusals[f.name] = "the driver's library has no " + f.symbols[0]
			continue
		}
		ret := f.call()
		*f.answers = !final(ret)
		if ret != gonvml.SUCCESS {
			c.Refusals[f.name] = strings.ToLower(ret.Error())
		}
	}
	return c
}

func (l *library) figures(h gonvml.Device, a *Answers) []asked {
	return []asked{
		{"utilisation", &a.Utilisation, []string{"nvmlDeviceGetUtilizationRates"}, func() gonvml.Return {
			_, ret := h.GetUtilizationRates()
			return ret
		}},
		{"memory", &a.Memory, []string{"nvmlDeviceGetMemoryInfo"}, func() gonvml.Return {
			_, ret := h.GetMemoryInfo()
			return ret
		}},
		{"pcie", &a.PCIe, []string{"nvmlDeviceGetPcieThroughput"}, func() gonvml.Return {
			_, ret := h.GetPcieThroughput(gonvml.PCIE_UTIL_RX_BYTES)
			return ret
		}},
		{"power", &a.Power, []string{"nvmlDeviceGetPowerUsage"}, func() gonvml.Return {
			_, ret := h.GetPowerUsage()
			return ret
		}},
		{"energy", &a.Energy, []string{"nvmlDeviceGetTotalEnergyConsumption"}, func() gonvml.Return {
			_, ret := h.GetTotalEnergyConsumption()
			return ret
		}},
		{"processes", &a.Processes, versions("nvmlDeviceGetComputeRunningProcesses"), func() gonvml.Return {
			_, ret := h.GetComputeRunningProcesses()
			return ret
		}},
		{"mps_processes", &a.MPSProcesses, versions("nvmlDeviceGetMPSComputeRunningProcesses"), func() gonvml.Return {
			_, ret := h.GetMPSComputeRunningProcesses()
			return ret
		}},
		{"process_utilisation", &a.ProcessUtilisation, []string{"nvmlDeviceGetProcessUtilization"}, func() gonvml.Return {
			_, ret := processUtilisation(h, 0)
			return nothingNew(ret)
		}},
		{"samples", &a.Samples, []string{"nvmlDeviceGetSamples"}, func() gonvml.Return {
			_, _, ret := h.GetSamples(gonvml.GPU_UTILIZATION_SAMPLES, 0)
			return nothingNew(ret)
		}},
		{"accounting", &a.Accounting, []string{"nvmlDeviceGetAccountingMode"}, func() gonvml.Return {
			mode, ret := h.GetAccountingMode()
			if ret == gonvml.SUCCESS && (mode != gonvml.FEATURE_ENABLED || !l.found("nvmlDeviceGetAccountingStats")) {
				return gonvml.ERROR_NOT_SUPPORTED
			}
			return ret
		}},
		{"gpm", &a.GPM, []string{"nvmlGpmQueryDeviceSupport"}, func() gonvml.Return {
			if !l.gpmFound() {
				return gonvml.ERROR_FUNCTION_NOT_FOUND
			}
			s, ret := h.GpmQueryDeviceSupport()
			if ret == gonvml.SUCCESS && s.IsSupportedDevice == 0 {
				return gonvml.ERROR_NOT_SUPPORTED
			}
			return ret
		}},
	}
}

// versions are the names under which drivers have had a list of processes.
func versions(name string) []string { return []string{name + "_v3", name + "_v2", name} }

// nothingNew makes success of "no sample yet": the figure is given, nobody used
// the GPU of late.
func nothingNew(ret gonvml.Return) gonvml.Return {
	if ret == gonvml.ERROR_NOT_FOUND {
		return gonvml.SUCCESS
	}
	return ret
}
