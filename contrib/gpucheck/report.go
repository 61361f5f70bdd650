package main

import (
	"fmt"
	"io"
	"math"
	"path/filepath"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
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
	Workload string         `json:"workload"`
	Sharing  string         `json:"sharing"`  // mps, or time-slice where there is no MPS
	PeriodS  float64        `json:"period_s"` // between the agent's samples
	Kernels  []KernelReport `json:"kernels"`
	Pairs    []PairReport   `json:"pairs"`
	// Law is `interference score`'s figures on the pairs, of the simulator's law on this card's link.
	Law      interference.Report `json:"law"`
	Failures []string            `json:"failures"`

	law      *interference.Model
	spec     *rlcore.GPUSpec
	known    map[string]*rlcore.Profile
	measured []interference.Pair
}

// Card is the GPU that was checked.
type Card struct {
	Model    string  `json:"model"`
	Arch     string  `json:"arch"`
	Driver   string  `json:"driver"`
	CUDA     string  `json:"cuda"`
	MemMiB   float64 `json:"mem_mib"`
	PCIeMBps float64 `json:"pcie_mbps"` // the link's, both directions; 0 = unknown
	IdleMiB  float64 `json:"idle_mib"`  // in use before anything ran; what is measured leaves it out
}

// KernelReport is a kernel alone: the load that it put on the GPU, by its own clock
// and count, and what NVML reported of it.
type KernelReport struct {
	Name      string     `json:"name"`
	Asked     rlcore.Use `json:"asked"`
	Measured  rlcore.Use `json:"measured"`
	DurationS float64    `json:"duration_s"`
	StepS     float64    `json:"step_s"`
}

// PairReport is a kernel next to another: its speed alone over its speed there, as measured and as the law predicts it
// from what was measured of each alone.
type PairReport struct {
	Kernel   string  `json:"kernel"`
	Beside   string  `json:"beside"`
	Slowdown float64 `json:"slowdown"`
	Law      float64 `json:"law"`
}

// steady is the mean use in a record's points, with the memory's largest. It leaves out the first second, since NVML's
// utilisation is that of up to a second before, and the last point.
func steady(rec *gpuprof.Record) rlcore.Use {
	pts := rec.Series
	if skip := int(math.Ceil(1 / max(rec.PeriodS, 1e-3))); len(pts) > skip+3 {
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
	return u
}

// asked is the load that a kernel put on the GPU according to its own clock and counts.
func (k *Kernel) asked(begin, end answer) rlcore.Use {
	u := rlcore.Use{MemMiB: begin.HeldMiB, PCIeMBps: float64(end.N) * begin.StepMB / end.Seconds}
	if !k.Copies {
		u.GPU = min(1, end.BusyS/end.Seconds)
		u.Core = u.GPU * k.SMs
	}
	return u
}

func newReport(c *card, mps bool) *Report {
	law := &contention.TimeSlice
	if mps {
		law = &contention.MPS
	}
	return &Report{
		Sharing: law.Name,
		Card: Card{
			Model: c.Model, Arch: c.Arch, Driver: c.Driver, CUDA: c.CUDA, MemMiB: c.MemMiB, PCIeMBps: c.PCIeMBps,
			IdleMiB: c.idle.MemMiB,
		},
		Kernels: []KernelReport{}, Pairs: []PairReport{}, Failures: []string{},
		law: interference.New(law), spec: &rlcore.GPUSpec{Model: c.Model, PCIeMBps: c.PCIeMBps},
		known: map[string]*rlcore.Profile{},
	}
}

// add adds the figures of a trial.
func (r *Report) add(t *trial) {
	k := t.kernels[0]
	if len(t.kernels) == 1 {
		kr := KernelReport{
			Name: k.Name, Asked: k.asked(t.begins[0], t.ends[0]), Measured: steady(t.records[0]), DurationS: t.ends[0].Seconds,
			StepS: 1 / t.rate(0),
		}
		kr.Measured.MemMiB = max(0, kr.Measured.MemMiB-r.Card.IdleMiB)
		k.alone = &rlcore.Profile{
			App: k.Name, DurationS: kr.DurationS, PeriodS: kr.DurationS,
			Series: []rlcore.Use{kr.Measured}, StepS: kr.StepS,
		}
		r.Kernels, r.known[k.Name] = append(r.Kernels, kr), k.alone
		return
	}
	var predicted [2]rlcore.Prediction
	r.law.Predict(predicted[:], r.spec, []*rlcore.Profile{k.alone, t.kernels[1].alone})
	for i, k := range t.kernels {
		p := PairReport{k.Name, t.kernels[1-i].Name, 1 / (k.alone.StepS * t.rate(i)), predicted[i].Slowdown}
		r.Pairs = append(r.Pairs, p)
		r.measured = append(r.measured, interference.Pair{Victim: p.Kernel, Aggressor: p.Beside, Slowdown: p.Slowdown})
	}
}

// save writes report.json into a folder.
func (r *Report) save(folder string) error {
	r.Law = interference.Score(r.law, r.spec, r.known, r.measured)
	return cluster.WriteJSON(filepath.Join(folder, "report.json"), r)
}

// show prints tables.
func (r *Report) show(folder string, out io.Writer) {
	if r.Simulated {
		fmt.Fprintln(out, "The GPU is simulated: nothing here is a measurement.")
	}
	fmt.Fprintf(out, "%s (%s), driver %s, CUDA %s, link %.0f MB/s\n", r.Card.Model, r.Card.Arch, r.Card.Driver,
		r.Card.CUDA, r.Card.PCIeMBps)
	t := cluster.Table(out, "kernel", "busy %", "SMs %", "MB/s", "MiB")
	t.SetCaption("What NVML reports for what was asked of the GPU.")
	for _, k := range r.Kernels {
		u, a := k.Measured, k.Asked
		row := table.Row{k.Name}
		for _, v := range [][2]float64{
			{100 * u.GPU, 100 * a.GPU},
			{100 * u.Core, 100 * a.Core},
			{u.PCIeMBps, a.PCIeMBps},
			{u.MemMiB, a.MemMiB},
		} {
			row = append(row, fmt.Sprintf("%.0f for %.0f", v[0], v[1]))
		}
		t.AppendRow(row)
	}
	t.Render()
	t = cluster.Table(out, "kernel", "next to", "slowdown", "by the law")
	for _, p := range r.Pairs {
		t.AppendRow(table.Row{p.Kernel, p.Beside, fmt.Sprintf("%.2f", p.Slowdown), fmt.Sprintf("%.2f", p.Law)})
	}
	t.Render()
	fmt.Fprintf(out, "The law: mean error %.3f, rank correlation %.3f\nWritten to %s: results.jsonl, report.json, "+
		"MPS's logs\n", r.Law.MAE, r.Law.Spearman, folder)
}
