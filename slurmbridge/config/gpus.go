package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// GPU is a card as gpu_types writes it; what it leaves out is the built-in card's.
type GPU struct {
	MemMiB       *float64 `mapstructure:"mem_mib" is:"1 to 16777216"`
	PCIeMBps     *float64 `mapstructure:"pcie_mbps" is:"0 to 1e7"`
	SameUser     *bool    `mapstructure:"same_user"`
	MaxClients   *int     `mapstructure:"max_clients" is:"0 to 1000"`
	MemoryLimits *bool    `mapstructure:"memory_limits"`
	Sharing      *string  `mapstructure:"sharing" is:"mps or time-slice"`
}

// A card is what the bridge must know of a GPU to share it. Memory is what nvidia-smi prints as memory.total (MiB), the
// smaller figure where drivers or ECC settings differ, and in it what drivers reserve (memory.reserved, from release
// 510 on; the largest figure of public reports): before, memory.total is without. PCIe is the link's nominal rate, both
// directions together (generation 3, 16 lanes: 2 × 16 GB/s, and twice that per later generation), as the datasheets
// count it.
//
// Clients: nvidia-cuda-mps-control(1) gives 16 up to compute capability 6.x and 48 from 7.0
// (Volta). The same page says that a control daemon serves one user at a time, on every
// architecture: same_user is therefore true throughout. A site with daemons that run with
// -multiuser-server (Volta and later), or that shares without MPS, turns it off for its cards in
// gpu_types.
type card struct {
	name    string
	also    []string // other names, e.g. what AutoDetect=nvml makes of the product name
	memMiB  float64
	reserve float64 // of memMiB
	clients int
	pcie    float64 // MB/s
	mig     bool    // it can be cut into seven slices
}

const (
	preVolta = 16
	volta    = 48
	gen3     = 32000.0
	gen4     = 64000.0
	gen5     = 128000.0
)

// cards are the built-in ones. A name that fits several sizes is the smallest.
var cards = []card{
	{"titanxp", []string{"titan_xp"}, 12196, 0, preVolta, gen3, false},
	{"gtx1080ti", []string{"1080ti"}, 11172, 0, preVolta, gen3, false},
	{"p100", []string{"p100-pcie-16gb", "p100-sxm2-16gb"}, 16276, 0, preVolta, gen3, false},
	{"titanv", []string{"titan_v"}, 12058, 0, volta, gen3, false},
	{"v100", []string{"v100-pcie-16gb", "v100-sxm2-16gb"}, 16130, 0, volta, gen3, false},
	{"v100-32gb", []string{"v100-pcie-32gb", "v100-sxm2-32gb"}, 32480, 0, volta, gen3, false},
	{"t4", nil, 15079, 112, volta, gen3, false},
	{"rtx2080ti", []string{"2080ti", "rtx_2080_ti"}, 11019, 0, volta, gen3, false},
	{"rtx3090", []string{"3090", "rtx_3090"}, 24268, 0, volta, gen4, false},
	{"rtx4090", []string{"4090", "rtx_4090"}, 24564, 354, volta, gen4, false},
	{"rtxa6000", []string{"a6000", "rtx_a6000"}, 48685, 0, volta, gen4, false},
	{"a10", nil, 22731, 220, volta, gen4, false},
	{"a30", nil, 24258, 0, volta, gen4, false},
	{"a40", nil, 45634, 0, volta, gen4, false},
	{"a100", []string{"a100-pcie-40gb", "a100-sxm4-40gb", "a100-40gb"}, 40536, 196, volta, gen4, true},
	{"a100-80gb", []string{"a100-pcie-80gb", "a100_80gb_pcie", "a100-sxm4-80gb"}, 80994, 0, volta, gen4, true},
	{"l4", nil, 23034, 556, volta, gen4, false},
	{"l40", nil, 46068, 685, volta, gen4, false},
	{"l40s", nil, 46068, 685, volta, gen4, false},
	{"h100", []string{"h100_pcie", "h100_80gb_hbm3", "h100-80gb"}, 81559, 551, volta, gen5, true},
	{"h200", nil, 143771, 700, volta, gen5, true},
}

// plain makes one of the ways to write a card's name: nvidia_a100-sxm4-80gb,
// A100-SXM4-80GB and a100sxm480gb are one card.
func plain(name string) string {
	name = strings.ToLower(name)
	for _, maker := range []string{"nvidia", "tesla", "geforce", "quadro"} {
		name = strings.TrimLeft(strings.TrimPrefix(name, maker), "_- ")
	}
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(name)
}

// index finds a card of the table, −1 = it isn't there.
func index(name string) int {
	is := func(a string) bool { return plain(a) == plain(name) }
	return slices.IndexFunc(cards, func(c card) bool { return is(c.name) || slices.ContainsFunc(c.also, is) })
}

// builtin is a card of the table.
func builtin(name string) (rlcore.GPUSpec, bool) {
	i := index(name)
	if i < 0 {
		return rlcore.GPUSpec{}, false
	}
	c := &cards[i]
	return rlcore.GPUSpec{
		Model: c.name, MemMiB: c.memMiB - c.reserve, PCIeMBps: c.pcie, SameUser: true, MaxClients: c.clients,
		MemLimits: c.clients >= volta,
	}, true
}

// Spec returns what a GPU type of gres.conf, or a model as NVML names it, is: as in gpu_types, otherwise as in the
// built-in table, and of an instance a part of that; false if neither has it.
func (c *Config) Spec(gpuType string) (rlcore.GPUSpec, bool) {
	if spec, ok := c.GPUTypes[strings.ToLower(gpuType)]; ok {
		return spec, true
	}
	if of, ok := job.InstanceOf(gpuType); ok {
		return c.instance(gpuType, of), true
	}
	return builtin(gpuType)
}

// gbMiB is how much memory an instance has for each GB of its name, MiB, at the least: NVIDIA's MIG user guide has 4.75
// GiB for 1g.5gb of an A100 and 16 GiB for 1g.18gb of an H200.
const gbMiB = 900

// instance is an instance of a card, as its name says: memory of its own, and a part of the SMs and so of the MPS
// server's clients. What its link to the host carries isn't known, since all instances use it. A card whose name isn't
// known is one that can be cut, with what the built-in ones have in common.
func (c *Config) instance(gpuType string, of job.Instance) rlcore.GPUSpec {
	if spec, ok := c.GPUTypes[of.Profile]; ok {
		return spec
	}
	spec, known := c.Spec(of.Parent)
	if own, set := c.GPUTypes[spec.Model]; set {
		spec = own
	}
	if !known {
		spec = rlcore.GPUSpec{SameUser: true, MaxClients: volta, MemLimits: true}
	}
	spec.Model, spec.MemMiB, spec.PCIeMBps = gpuType, gbMiB*float64(of.GB), 0
	if spec.MaxClients > 0 {
		spec.MaxClients = max(1, spec.MaxClients*of.Slices/7)
	}
	return spec
}

// Cut returns the instance of so many slices that a GPU type can be cut into; false if it can't, or isn't known.
func (c *Config) Cut(gpuType string, slices int) (rlcore.GPUSpec, bool) {
	i := index(gpuType)
	if i < 0 || !cards[i].mig {
		return rlcore.GPUSpec{}, false
	}
	memory := map[int]float64{1: 1, 2: 2, 3: 4, 4: 4, 7: 8}[slices] // of eight slices
	gb := math.Round(math.Ceil(cards[i].memMiB/1024) * memory / 8)
	return c.Spec(fmt.Sprintf("%s_%dg.%.0fgb", gpuType, slices, gb))
}

// cards returns the cards of gpu_types.
func (c *Config) cards() (map[string]rlcore.GPUSpec, error) {
	out := map[string]rlcore.GPUSpec{}
	for _, written := range slices.Sorted(maps.Keys(c.GPUs)) {
		name := strings.ToLower(written)
		spec, known := builtin(name)
		if !known {
			spec = rlcore.GPUSpec{SameUser: true}
		}
		g := c.GPUs[written]
		spec.Model = name
		replace(&spec.MemMiB, g.MemMiB)
		replace(&spec.PCIeMBps, g.PCIeMBps)
		replace(&spec.SameUser, g.SameUser)
		replace(&spec.MaxClients, g.MaxClients)
		replace(&spec.MemLimits, g.MemoryLimits)
		replace(&spec.Sharing, g.Sharing)
		if spec.MemMiB == 0 {
			return nil, fmt.Errorf("gpu_types.%s lacks mem_mib, the card's memory in MiB, and is no card that is known", name)
		}
		out[name] = spec
	}
	return out, nil
}

func replace[T any](field, by *T) {
	if by != nil {
		*field = *by
	}
}
