package main

import (
	"math"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// Report is what was found, as report.json has it.
type Report struct {
	Date string `json:"date"`
	Card Card   `json:"card"`
	// Simulated: there was no GPU; the figures say nothing of any card.
	Simulated bool `json:"simulated"`
	// Workload is the source of the demand: cuda, or another program.
	Workload  string           `json:"workload"`
	DurationS float64          `json:"duration_s"` // a kernel's run alone, as it was aimed at
	PeriodS   float64          `json:"period_s"`   // between the agent's samples
	Kernels   []KernelReport   `json:"kernels"`
	Groups    []GroupReport    `json:"groups"`
	Overhead  []OverheadReport `json:"sampling_overhead"`
	Law       LawReport        `json:"law"`
	Failures  []string         `json:"failures"`
}

// Card is the GPU that was checked.
type Card struct {
	Model    string  `json:"model"`
	Arch     string  `json:"arch"`
	Driver   string  `json:"driver"`
	CUDA     string  `json:"cuda"`
	MemMiB   float64 `json:"mem_mib"`
	PCIeMBps float64 `json:"pcie_mbps"` // the link's, both directions; 0 = unknown
	// IdleMiB was in use before anything ran; it is left out of what is measured.
	IdleMiB float64 `json:"idle_mib"`
}

// KernelReport is a kernel alone: the load that it put on the GPU, by its own clock
// and count, and what NVML reported of it.
type KernelReport struct {
	Name       string     `json:"name"`
	Asked      rlcore.Use `json:"asked"`
	Measured   rlcore.Use `json:"measured"`
	Tells      Tells      `json:"nvml_tells"`
	Points     int        `json:"points"` // of the record that count
	Iterations int64      `json:"iterations"`
	DurationS  float64    `json:"duration_s"`
	StepS      float64    `json:"step_s"`
	Rate       float64    `json:"iterations_per_s"`
}

// Tells lists the figures that NVML reported about right: to 0.05 for GPU and cores, to 15 % of the
// load or 2 % of the link for PCIe, to 5 % or 640 MiB (a context and MPS's own) for memory.
type Tells struct {
	GPU  bool `json:"gpu"`
	Core bool `json:"core"`
	Mem  bool `json:"mem"`
	PCIe bool `json:"pcie"`
}

// GroupReport is kernels together.
type GroupReport struct {
	Members []MemberReport `json:"members"`
}

// MemberReport is one of them: its speed alone over its speed there, as measured,
// and as the law predicts it from what was measured of each alone, and from the load of
// each.
type MemberReport struct {
	Kernel      string  `json:"kernel"`
	Slowdown    float64 `json:"slowdown"`
	Law         float64 `json:"law"`
	LawForAsked float64 `json:"law_for_asked"`
}

// OverheadReport is what sampling costs a kernel, as a part of its speed.
type OverheadReport struct {
	Kernel      string    `json:"kernel"`
	RateWithout float64   `json:"iterations_per_s_without"`
	RateSD      float64   `json:"iterations_per_s_without_sd"`
	RateWith    float64   `json:"iterations_per_s_with"`
	RateWithSD  float64   `json:"iterations_per_s_with_sd"`
	Cost        float64   `json:"cost"`
	CostSD      float64   `json:"cost_sd"` // of one repeat
	Costs       []float64 `json:"costs"`   // of each repeat
}

// LawReport is `interference score`'s figures on the pairs, of the simulator's law
// on this card's link.
type LawReport struct {
	FromMeasured interference.Report `json:"from_measured"`
	FromAsked    interference.Report `json:"from_asked"`
}

// lead is what is left out of a record's beginning: NVML's utilisation is that of up
// to a second before.
const lead = time.Second

// steady is the use in a record's points but those at its ends, the memory's
// largest, and how many points there are.
func steady(rec *gpuprof.Record) (rlcore.Use, int) {
	pts := rec.Series
	if skip := int(math.Ceil(lead.Seconds() / max(rec.PeriodS, 1e-3))); len(pts) > skip+3 {
		pts = pts[skip : len(pts)-1]
	}
	var u rlcore.Use
	n := float64(len(pts))
	for _, p := range pts {
		u.GPU += p.GPU / n
		u.Core += p.Core / n
		u.PCIeMBps += p.PCIeMBps / n
		u.MemMiB = max(u.MemMiB, p.MemMiB)
	}
	u.GPU, u.Core = min(1, u.GPU), min(1, u.Core)
	return u, len(pts)
}

// asked is the load that a kernel put on the GPU, by its own clock and count.
func (s *solo) asked() rlcore.Use {
	from, to := window([]sharer{s.sharer})
	_, before := s.track.at(from)
	_, after := s.track.at(to)
	u := rlcore.Use{MemMiB: s.heldMiB, PCIeMBps: s.movedMB / (s.track.to() - s.track.from())}
	if !s.Copies {
		u.GPU = max(0, min(1, (after-before)/(to-from)))
		u.Core = u.GPU * s.SMs
	}
	return u
}

func (c *card) tells(asked, got rlcore.Use) Tells {
	near := func(a, b, off float64) bool { return math.Abs(a-b) <= off }
	return Tells{
		GPU:  near(asked.GPU, got.GPU, 0.05),
		Core: near(asked.Core, got.Core, 0.05),
		Mem:  near(asked.MemMiB, got.MemMiB, max(0.05*asked.MemMiB, 640)),
		PCIe: near(asked.PCIeMBps, got.PCIeMBps, max(0.15*asked.PCIeMBps, 0.02*c.PCIeMBps)),
	}
}

func (c *card) kernel(s *solo) KernelReport {
	k := KernelReport{
		Name: s.Name, Asked: s.asked(), Iterations: s.track[len(s.track)-1].N,
		DurationS: s.track.to() - s.track.from(), StepS: 1 / s.alone, Rate: s.alone,
	}
	k.Measured, k.Points = steady(s.record)
	k.Measured.MemMiB = max(0, k.Measured.MemMiB-c.idle.MemMiB)
	k.Tells = c.tells(k.Asked, k.Measured)
	return k
}

// profile is a constant profile of a kernel alone.
func (k *KernelReport) profile(u rlcore.Use) *rlcore.Profile {
	return &rlcore.Profile{App: k.Name, DurationS: k.DurationS, PeriodS: k.DurationS, Series: []rlcore.Use{u}, StepS: k.StepS}
}

// describe makes figures of what was measured.
func describe(c *card, m *measured) *Report {
	r := &Report{
		Card: Card{
			Model: c.Model, Arch: c.Arch, Driver: c.Driver, CUDA: c.CUDA, MemMiB: c.MemMiB, PCIeMBps: c.PCIeMBps, IdleMiB: c.idle.MemMiB,
		},
		Kernels: []KernelReport{}, Groups: []GroupReport{}, Overhead: []OverheadReport{}, Failures: append([]string{}, m.failures...),
	}
	got, asked := map[string]*rlcore.Profile{}, map[string]*rlcore.Profile{}
	for i := range m.solos {
		k := c.kernel(&m.solos[i])
		r.Kernels = append(r.Kernels, k)
		got[k.Name], asked[k.Name] = k.profile(k.Measured), k.profile(k.Asked)
	}
	law, spec := interference.New(&contention.MPS), &rlcore.GPUSpec{Model: c.Model, PCIeMBps: c.PCIeMBps}
	predict := func(members []int, of map[string]*rlcore.Profile) []rlcore.Prediction {
		ps := make([]*rlcore.Profile, len(members))
		for i, k := range members {
			ps[i] = of[m.solos[k].Name]
		}
		dst := make([]rlcore.Prediction, len(ps))
		law.Predict(dst, spec, ps)
		return dst
	}
	for _, g := range m.groups {
		a, b := predict(g.members, got), predict(g.members, asked)
		var gr GroupReport
		for i, k := range g.members {
			gr.Members = append(gr.Members, MemberReport{Kernel: m.solos[k].Name, Slowdown: g.slow[i], Law: a[i].Slowdown, LawForAsked: b[i].Slowdown})
		}
		r.Groups = append(r.Groups, gr)
	}
	pairs := r.pairs()
	r.Law = LawReport{interference.Score(law, spec, got, pairs), interference.Score(law, spec, asked, pairs)}
	for i := range m.overheads {
		o := &m.overheads[i]
		or := OverheadReport{Kernel: o.kernel, Costs: o.costs()}
		or.RateWithout, or.RateSD = spread(o.without)
		or.RateWith, or.RateWithSD = spread(o.with)
		or.Cost, or.CostSD = spread(or.Costs)
		r.Overhead = append(r.Overhead, or)
	}
	return r
}

// pairs are the slowdowns of the kernels that ran in twos.
func (r *Report) pairs() []interference.Pair {
	var out []interference.Pair
	for _, g := range r.Groups {
		if len(g.Members) != 2 {
			continue
		}
		for i, m := range g.Members {
			out = append(out, interference.Pair{Victim: m.Kernel, Aggressor: g.Members[1-i].Kernel, Slowdown: m.Slowdown})
		}
	}
	return out
}
