package gpuprof

import "github.com/slurmbridge/slurmbridge/rlcore"

// Figures is a set of what is read of a GPU.
type Figures uint8

// The figures of a reading.
const (
	FigGPU Figures = 1 << iota
	FigCore
	FigMem
	FigPCIe
	FigPower

	figures = 5 // how many there are
	flows   = 4 // those of rlcore.Use, the first
)

// AllFigures is every figure.
const AllFigures = FigGPU | FigCore | FigMem | FigPCIe | FigPower

// Values are the figures of a Use in the order of the bits of Figures: GPU, core,
// memory, PCIe.
func Values(u rlcore.Use) [flows]float64 { return [flows]float64{u.GPU, u.Core, u.MemMiB, u.PCIeMBps} }

// names are the figures' names in records and metrics, in the order of their bits.
var names = [figures]string{"gpu", "core", "mem", "pcie", "power"}

// Names lists the figures of a set.
func (f Figures) Names() []string {
	var out []string
	for i, n := range names {
		if f&(1<<i) != 0 {
			out = append(out, n)
		}
	}
	return out
}

// Reading is what was read of a job's GPUs at one moment.
type Reading struct {
	// Use: GPU and core use are averaged over the job's GPUs, memory and traffic
	// summed.
	rlcore.Use
	// RxMBps and TxMBps are PCIe into the GPUs and out of them, where Directions says
	// that they are told apart.
	RxMBps, TxMBps float64
	Directions     bool
	PowerW         float64 // at this moment
	// MeanW is the power since the reading before, from a counter of energy; 0 = there
	// is no such counter.
	MeanW float64
	// Has says which figures were read and can be true; the others are to be ignored.
	Has Figures
}

func useOf(v [flows]float64) rlcore.Use {
	return rlcore.Use{GPU: v[0], Core: v[1], MemMiB: v[2], PCIeMBps: v[3]}
}
