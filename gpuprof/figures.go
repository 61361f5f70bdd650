package gpuprof

import (
	"math"
	"math/bits"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Fig names a recorded figure: its row in Recorded.
type Fig uint8

// The recorded figures.
const (
	FigGPU Fig = iota
	FigCore
	FigMem
	FigPCIe
	FigPower
	FigMemBusy
)

// MaxFigures is the most rows Recorded can have.
const MaxFigures = 16

// Figure is one recorded figure: what it means, how it is read and aggregated, and where records and metrics have it. A
// record is kept whole, as JSON, so no figure has a database column of its own.
type Figure struct {
	// Name is the figure's name in a record's unknown, mixed and divided, and in the label of
	// gpuprof_figures_dropped_total.
	Name string
	// Detail marks a part of another figure, which is known or unknown with it.
	Detail bool
	// Most is the largest value that can be true of one GPU.
	Most float64
	// Sum: a job's GPUs together have the sum of the figure; otherwise their mean.
	Sum bool

	// Resource says where the figure stands in the use of a GPU that jobs compete for,
	// and so in a record's mean, peak and series; nil = it is not part of it.
	Resource func(*rlcore.Use) *float64
	// Held marks a resource that keeps the largest value per point: a group must fit at the peak.
	// Other points keep the mean.
	Held bool
	// Round shortens a value of the series to NVML's resolution.
	Round func(float64) float64

	// Metric is the gauge of a GPU that has jobs; with an empty name there is none. Scale makes the figure Prometheus's
	// base unit.
	Metric Metric
	Scale  float64
}

// Metric names a Prometheus gauge, without the prefix gpuprof_.
type Metric struct{ Name, Help string }

// fraction reports whether the figure is a fraction of the card, 0..1.
func (f *Figure) fraction() bool { return f.Most == 1 }

// Recorded is the table of recorded figures, by Fig.
var Recorded = []Figure{
	FigGPU: {
		Name: "gpu", Most: 1,
		Resource: func(u *rlcore.Use) *float64 { return &u.GPU }, Round: thousandths,
		Metric: Metric{
			"gpu_utilization_ratio",
			"Fraction of the last sample period in which a kernel ran, while the GPU has jobs.",
		},
		Scale: 1,
	},
	FigCore: {
		Name: "core", Most: 1,
		Resource: func(u *rlcore.Use) *float64 { return &u.Core }, Round: thousandths,
	},
	FigMem: {
		Name: "mem", Most: 4 << 20, Sum: true,
		Resource: func(u *rlcore.Use) *float64 { return &u.MemMiB }, Held: true, Round: math.Ceil,
		Metric: Metric{"gpu_memory_used_bytes", "Device memory in use, while the GPU has jobs."},
		Scale:  1 << 20,
	},
	FigPCIe: {
		Name: "pcie", Most: 600e3, Sum: true,
		Resource: func(u *rlcore.Use) *float64 { return &u.PCIeMBps }, Round: tenths,
		Metric: Metric{"gpu_pcie_bytes_per_second", "PCIe traffic in both directions, while the GPU has jobs."},
		Scale:  1e6,
	},
	FigPower: {
		Name: "power", Most: 5e3, Sum: true,
		Metric: Metric{"gpu_power_watts", "Power drawn, while the GPU has jobs."}, Scale: 1,
	},
	FigMemBusy: {
		Name: "mem_busy", Most: 1, Detail: true,
		// The interference model alone reads it: known or unknown with gpu.
		Resource: func(u *rlcore.Use) *float64 { return &u.MemBusy }, Round: thousandths,
	},
}

func thousandths(v float64) float64 { return math.Round(v*1e3) / 1e3 }
func tenths(v float64) float64      { return math.Round(v*10) / 10 }

// isFigure reports whether a record may speak of a figure by this name.
func isFigure(name string) bool {
	return slices.ContainsFunc(Recorded, func(f Figure) bool { return f.Name == name && !f.Detail })
}

// Figures is a set of figures.
type Figures uint32

// Of is the set of the given figures.
func Of(figs ...Fig) (s Figures) {
	for _, f := range figs {
		s |= 1 << f
	}
	return s
}

// AllFigures is the set of all figures.
func AllFigures() Figures { return 1<<len(Recorded) - 1 }

// Has reports whether a figure is in the set.
func (s Figures) Has(f Fig) bool { return s>>f&1 != 0 }

// Each yields the figures of the set in the table's order.
func (s Figures) Each(yield func(Fig) bool) {
	for ; s != 0; s &= s - 1 {
		if !yield(Fig(bits.TrailingZeros32(uint32(s)))) {
			return
		}
	}
}

// Names lists the figures of the set, without details.
func (s Figures) Names() []string {
	var out []string
	for f := range s.Each {
		if !Recorded[f].Detail {
			out = append(out, Recorded[f].Name)
		}
	}
	return out
}

// Reading is what was read of a job's GPUs at one moment, by figure. A figure that
// isn't known is to be ignored: it was not read, or can't be true.
type Reading struct {
	Value [MaxFigures]float64
	Known Figures
}

// Has reports whether a figure is known.
func (r *Reading) Has(f Fig) bool { return r.Known.Has(f) }

// Set makes a figure known.
func (r *Reading) Set(f Fig, v float64) {
	r.Value[f] = v
	r.Known |= Of(f)
}

// Empty reports whether no figure is known; details by themselves don't count.
func (r *Reading) Empty() bool { return len(r.Known.Names()) == 0 }
