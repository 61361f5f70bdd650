package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/renameio/v2"

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
	Workload  string         `json:"workload"`
	DurationS float64        `json:"duration_s"` // a kernel's run alone, as it was aimed at
	PeriodS   float64        `json:"period_s"`   // between the agent's samples
	Kernels   []KernelReport `json:"kernels"`
	Pairs     []PairReport   `json:"pairs"`
	// Law is `interference score`'s figures on the pairs, of the simulator's law on this card's link.
	Law      interference.Report `json:"law"`
	Failures []string            `json:"failures"`
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
	Name      string     `json:"name"`
	Asked     rlcore.Use `json:"asked"`
	Measured  rlcore.Use `json:"measured"`
	Tells     Tells      `json:"nvml_tells"`
	DurationS float64    `json:"duration_s"`
	StepS     float64    `json:"step_s"`
}

// Tells lists the figures that NVML reported about right: to 0.05 for GPU and cores, to 15 % of the
// load or 2 % of the link for PCIe, to 5 % or 640 MiB (a context and MPS's own) for memory.
type Tells struct {
	GPU  bool `json:"gpu"`
	Core bool `json:"core"`
	Mem  bool `json:"mem"`
	PCIe bool `json:"pcie"`
}

// PairReport is a kernel next to another: its speed alone over its speed there, as measured and as the law predicts it
// from what was measured of each alone.
type PairReport struct {
	Kernel   string  `json:"kernel"`
	Beside   string  `json:"beside"`
	Slowdown float64 `json:"slowdown"`
	Law      float64 `json:"law"`
}

// lead is what is left out of a record's beginning: NVML's utilisation is that of up
// to a second before.
const lead = time.Second

// steady is the mean use in a record's points but those at its ends, with the memory's largest.
func steady(rec *gpuprof.Record) rlcore.Use {
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
	return u
}

// asked is the load that a kernel put on the GPU, by its own clock and count.
func (s *solo) asked() rlcore.Use {
	_, from, to, _ := rates(s.track) // it has iterated
	_, before := s.track.at(from)
	_, after := s.track.at(to)
	last := s.track[len(s.track)-1]
	u := rlcore.Use{MemMiB: last.HeldMiB, PCIeMBps: last.MovedMB / (last.At - s.track[0].At)}
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

// describe makes figures of what was measured.
func describe(c *card, m *measured) *Report {
	r := &Report{
		Card:    Card{Model: c.Model, Arch: c.Arch, Driver: c.Driver, CUDA: c.CUDA, MemMiB: c.MemMiB, PCIeMBps: c.PCIeMBps, IdleMiB: c.idle.MemMiB},
		Kernels: []KernelReport{}, Pairs: []PairReport{}, Failures: append([]string{}, m.failures...),
	}
	known, profiles := map[string]*rlcore.Profile{}, make([]*rlcore.Profile, len(m.solos))
	for i := range m.solos {
		s := &m.solos[i]
		k := KernelReport{Name: s.Name, Asked: s.asked(), Measured: steady(s.record), DurationS: s.track[len(s.track)-1].At - s.track[0].At, StepS: 1 / s.alone}
		k.Measured.MemMiB = max(0, k.Measured.MemMiB-c.idle.MemMiB)
		k.Tells = c.tells(k.Asked, k.Measured)
		profiles[i] = &rlcore.Profile{App: k.Name, DurationS: k.DurationS, PeriodS: k.DurationS, Series: []rlcore.Use{k.Measured}, StepS: k.StepS}
		known[k.Name] = profiles[i]
		r.Kernels = append(r.Kernels, k)
	}
	law, spec := interference.New(&contention.MPS), &rlcore.GPUSpec{Model: c.Model, PCIeMBps: c.PCIeMBps}
	var pairs []interference.Pair
	for _, g := range m.groups {
		var predicted [2]rlcore.Prediction
		law.Predict(predicted[:], spec, []*rlcore.Profile{profiles[g.members[0]], profiles[g.members[1]]})
		for i := range g.members {
			p := PairReport{m.solos[g.members[i]].Name, m.solos[g.members[1-i]].Name, g.slow[i], predicted[i].Slowdown}
			r.Pairs = append(r.Pairs, p)
			pairs = append(pairs, interference.Pair{Victim: p.Kernel, Aggressor: p.Beside, Slowdown: p.Slowdown})
		}
	}
	r.Law = interference.Score(law, spec, known, pairs)
	return r
}

// tell writes profiles.csv, pairs.csv and report.json, as `slurmbridge replay` and `interference score` read them, and
// prints the report.
func (r *Report) tell(o *options, out io.Writer) error {
	body, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	num := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	profiles := [][]string{{"app", "duration_s", "gpu_util", "mem_mib", "sm_util", "pcie_mbps", "step_ms"}}
	text := new(bytes.Buffer)
	fmt.Fprintf(text, "%s (%s), driver %s, CUDA %s, link %.0f MB/s\n", r.Card.Model, r.Card.Arch, r.Card.Driver, r.Card.CUDA, r.Card.PCIeMBps)
	if r.Simulated {
		text.WriteString("The GPU is simulated: nothing here is a measurement.\n")
	}
	for _, k := range r.Kernels {
		u, a := k.Measured, k.Asked
		profiles = append(profiles, []string{k.Name, num(k.DurationS), num(100 * u.GPU), num(u.MemMiB), num(100 * u.Core), num(u.PCIeMBps), num(1000 * k.StepS)})
		fmt.Fprintf(text, "%-8s asked for %3.0f %% busy, %3.0f %% SMs, %6.0f MB/s, %6.0f MiB; NVML %3.0f %%, %3.0f %%, %6.0f MB/s, %6.0f MiB; right: %+v\n", k.Name,
			100*a.GPU, 100*a.Core, a.PCIeMBps, a.MemMiB, 100*u.GPU, 100*u.Core, u.PCIeMBps, u.MemMiB, k.Tells)
	}
	pairs := [][]string{{"victim", "aggressor", "slowdown"}}
	for _, p := range r.Pairs {
		pairs = append(pairs, []string{p.Kernel, p.Beside, num(p.Slowdown)})
		fmt.Fprintf(text, "%-8s next to %-8s %.2f times as slow, by the law %.2f\n", p.Kernel, p.Beside, p.Slowdown, p.Law)
	}
	fmt.Fprintf(text, "The law on %d pairs: mean error %.3f, rank correlation %.3f\n", r.Law.N, r.Law.MAE, r.Law.Spearman)
	for _, f := range r.Failures {
		fmt.Fprintln(text, "failed:", f)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	for name, content := range map[string][]byte{"profiles.csv": r.csv(profiles), "pairs.csv": r.csv(pairs), "report.json": append(body, '\n')} {
		if err := renameio.WriteFile(filepath.Join(o.out, name), content, 0o644); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	if o.json {
		fmt.Fprintf(out, "%s\n", body)
	} else {
		fmt.Fprintf(out, "%sWritten to %s: profiles.csv, pairs.csv, report.json\n", text, o.out)
	}
	if len(r.Failures) > 0 {
		return fmt.Errorf("%d parts failed, the first: %s", len(r.Failures), r.Failures[0])
	}
	return nil
}

// csv writes rows after a line that says where they come from.
func (r *Report) csv(rows [][]string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# contrib/gpucheck, %s: %q, driver %q", r.Date, r.Card.Model, r.Card.Driver)
	if r.Simulated {
		b.WriteString("; simulated, not a measurement")
	}
	b.WriteString("\n")
	_ = csv.NewWriter(&b).WriteAll(rows) // a buffer takes all
	return b.Bytes()
}
