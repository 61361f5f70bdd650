package gpusim

import (
	"maps"
	"slices"
)

// What a card reports.
const (
	capMPSList = 1 << iota // MPS clients as processes of their own (Volta and later)
	capGPM                 // GPU performance monitoring (Hopper and later)
	capMIG                 // MIG can be switched on (A100 and later)
	capNUMA                // its memory is a NUMA node of the machine's (Grace Hopper)
)

// model is a card the simulator knows.
type model struct {
	name string // as NVML says it
	card

	instances map[string]instance // MIG's, by profile; nil = it has no MIG
}

// clientsRecent is how many MPS clients driver 590 serves, from Volta on.
const clientsRecent = 60

// models: cores, memory, bus, compute capability and power limit are NVIDIA's
// published figures; 12196 MiB and 9–10 W idle are what nvidia-smi prints of a TITAN Xp; what drivers reserve are
// figures of `nvidia-smi -q` in public reports, of the TITAN Xp and the GH200 assumed; 80 W between bursts and about
// 250 W at full load are pengfei-zou/PowerBound's measurements of one. PCIe counts 16 GB/s a direction for gen 3 x16 as
// the thesis does, and twice that a generation. Client limits are the MPS manual's, "Client-Server Connection Limits"
// (16 before Volta, 48 after, 60 since its release 590). GPM begins with Hopper (nvml.h, nvmlGpmMetricsGet). Idle and
// context figures of the other cards are assumptions of the right size.
var models = map[string]model{
	"titanxp": {
		name: "TITAN Xp", card: card{
			CCMajor: 6, CCMinor: 1, SMs: 30,
			MemTotal: 12196, MemReserved: 92, PCIeGen: 3, PCIeWidth: 16, LinkMBps: 32000,
			MaxClients: 16, SameUser: true, MemContext: 25,
			PowerIdle: 10, PowerActive: 80, PowerMax: 250,
		},
	},
	"v100": {
		name: "Tesla V100-SXM2-16GB", card: card{
			CCMajor: 7, CCMinor: 0, SMs: 80,
			MemTotal: 16160, MemReserved: 224, PCIeGen: 3, PCIeWidth: 16, LinkMBps: 32000,
			Caps: capMPSList, MaxClients: 48, MemContext: 30,
			PowerIdle: 38, PowerActive: 60, PowerMax: 300,
		},
	},
	"a100": {
		name: "NVIDIA A100-SXM4-40GB", card: card{
			CCMajor: 8, CCMinor: 0, SMs: 108,
			MemTotal: 40340, MemReserved: 620, PCIeGen: 4, PCIeWidth: 16, LinkMBps: 64000,
			Caps: capMPSList | capMIG, MaxClients: 48, MemContext: 30,
			PowerIdle: 45, PowerActive: 75, PowerMax: 400,
		},
		instances: a100Instances,
	},
	"h200": {
		name: "NVIDIA H200", card: card{
			CCMajor: 9, CCMinor: 0, SMs: 132,
			MemTotal: 143071, MemReserved: 700, PCIeGen: 5, PCIeWidth: 16, LinkMBps: 128000,
			Caps: capMPSList | capGPM | capMIG, MaxClients: 48, MemContext: 30,
			PowerIdle: 75, PowerActive: 115, PowerMax: 700,
		},
		instances: h200Instances,
	},
	"gh200": {
		name: "NVIDIA GH200 480GB", card: card{
			CCMajor: 9, CCMinor: 0, SMs: 132,
			MemTotal: 97320, MemReserved: 551, PCIeGen: 5, PCIeWidth: 16, LinkMBps: 128000,
			Caps: capMPSList | capGPM | capNUMA, MaxClients: 48, MemContext: 30,
			PowerIdle: 75, PowerActive: 115, PowerMax: 700,
		},
	},
}

// ModelNames returns the names of the cards the simulator knows, sorted.
func ModelNames() []string { return slices.Sorted(maps.Keys(models)) }
