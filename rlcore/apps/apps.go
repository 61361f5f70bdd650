// Package apps is the catalogue of the thesis's eleven applications as profiles on a Titan Xp.
//
// The thesis prints curves and groups, not tables. Sources of the figures here: memory by batch size from
// SymbioticLab/Salus (Apache-2.0; P100, TensorFlow), throughput and utilisation on a Titan Xp from
// pengfei-zou/PowerBound; what neither has is an assumption and says so. The eleven durations are assumptions as a
// whole: they are set so that 30 jobs drawn at random take about as long one after the other as the thesis's SJF took
// (2,416 s). Its GPU_heavy total (4,807 s) can't be had at the same time with the same applications.
package apps

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// phase is a stretch of a run.
type phase struct {
	seconds float64
	gpu     float64 // 0..1
	from    float64 // MiB at its start
	to      float64 // MiB at its end
	pcie    float64 // MB/s
}

type app struct {
	name   string
	stepS  float64
	source string
	phases []phase
}

// training is a tf_cnn_benchmarks run: the graph is built and warmed up, then the
// GPU is busy steadily (thesis, Fig. 1).
func training(startS, runS, gpu, mib, pcie float64) []phase {
	return []phase{
		{startS, 0.03, 250, 450, 100}, // assumption: context and weights only
		{runS, gpu, mib, mib, pcie},
	}
}

// catalogue, in the thesis's order (Table 3).
var catalogue = []app{
	{
		"lammps", 0.256,
		"PowerBound: 0.256 s a step; thesis: 363 to 8,499 MB, 40 % on average, 100 % at the peak; shape and length assumed",
		[]phase{
			{30, 0.15, 363, 1500, 800},
			{40, 0.25, 1500, 5000, 1500},
			{40, 0.40, 5000, 7783, 1500},
			{20, 1.00, 7783, 8499, 3000},
			{20, 0.52, 8499, 8499, 1500},
		},
	},
	{
		"gromacs", 0.004,
		"thesis: under 40 % GPU, three at once fill 11,755 MB; the rest assumed",
		[]phase{{6, 0.10, 300, 3600, 300}, {77, 0.33, 3600, 3850, 600}},
	},
	{
		"qmcpack", 0.5,
		"thesis: GPU use in three steps, memory near zero until 95 s, then 5,135 MB; the rest assumed",
		[]phase{{40, 0.30, 120, 180, 200}, {55, 0.50, 180, 300, 300}, {35, 0.80, 5135, 5135, 500}},
	},
	{
		"hoomd", 0.003,
		"thesis: GPU-heavy and memory-light; the rest assumed",
		[]phase{{5, 0.20, 300, 700, 200}, {55, 0.75, 700, 760, 300}},
	},
	{
		"googlenet", 0.110, "memory Salus, batch 64; step and utilisation PowerBound; PCIe assumed",
		training(14, 46, 0.97, 1784, 900),
	},
	{
		"alexnet", 0.070,
		"memory Salus, batch 64; the thesis finds it under 40 % GPU, so its input is assumed to hold it up (PowerBound, " +
			"synthetic input: 96 %)",
		training(6, 64, 0.36, 1222, 2500),
	},
	{"vgg11", 0.25, "memory Salus, batch 75; step Salus; utilisation as vgg16", training(4, 51, 0.98, 7145, 600)},
	{"vgg16", 0.412, "memory Salus, batch 64; step and utilisation PowerBound", training(4, 61, 0.99, 7376, 500)},
	{
		"resnet50", 0.265, "memory Salus, batch 96 (extended); step and utilisation PowerBound, batch 64",
		training(5, 55, 0.98, 7515, 700),
	},
	{"resnet101", 0.45, "memory Salus, batch 64; step Salus; utilisation as resnet50", training(6, 64, 0.98, 7719, 600)},
	{
		"resnet152", 0.623, "memory Salus, batch 64; step PowerBound; utilisation as resnet50",
		training(8, 77, 0.98, 10926, 500),
	},
}

// Names returns the applications' names in the thesis's order.
func Names() []string {
	out := make([]string, len(catalogue))
	for i := range catalogue {
		out[i] = catalogue[i].name
	}
	return out
}

// ByName returns an application's profile, a new one each time.
func ByName(name string) (*rlcore.Profile, bool) {
	for i := range catalogue {
		if catalogue[i].name == name {
			return catalogue[i].profile(), true
		}
	}
	return nil, false
}

// profile lays the phases out in points of a second.
func (a *app) profile() *rlcore.Profile {
	p := &rlcore.Profile{App: a.name, PeriodS: 1, StepS: a.stepS, Source: a.source}
	for _, ph := range a.phases {
		p.DurationS += ph.seconds
		for t := 0.5; t < ph.seconds; t++ {
			p.Series = append(p.Series, rlcore.Use{
				GPU: ph.gpu, MemMiB: ph.from + (ph.to-ph.from)*t/ph.seconds,
				// SM activity: no source publishes it for these; a busy GPU is assumed to have most of its SMs busy.
				Core: 0.85 * ph.gpu, PCIeMBps: ph.pcie,
			})
		}
	}
	return p
}

// Workloads are the thesis's five, by name, each the applications it draws from.
// googlenet is in neither of the thesis's two GPU lists.
var Workloads = map[string][]string{
	"gpu_heavy": {"vgg11", "vgg16", "resnet50", "resnet101", "resnet152", "qmcpack", "hoomd", "lammps"},
	"gpu_light": {"alexnet", "gromacs"},
	"mem_heavy": {"vgg11", "vgg16", "resnet50", "resnet101", "resnet152"},
	"mem_light": {"alexnet", "googlenet", "qmcpack", "hoomd", "gromacs"},
	"random":    Names(),
}

// Workload draws n applications of a workload. Returns an error that names the workloads if there is none of that name.
func Workload(name string, n int, src rand.Source) ([]string, error) {
	from, ok := Workloads[name]
	if !ok {
		return nil, fmt.Errorf("there is no workload %q; there are gpu_heavy, gpu_light, mem_heavy, mem_light and random",
			name)
	}
	r := rand.New(src)
	out := make([]string, n)
	for i := range out {
		out[i] = from[r.IntN(len(from))]
	}
	return slices.Clip(out), nil
}
