package main

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// text is the report in tables.
func (r *Report) text() string {
	var b strings.Builder
	c := r.Card
	fmt.Fprintf(&b, "%s (%s), %.0f MiB, PCIe %.0f MB/s, driver %s, CUDA %s; %s\n", c.Model, c.Arch, c.MemMiB, c.PCIeMBps, c.Driver, c.CUDA, r.Date)
	if r.Simulated {
		b.WriteString("The GPU is simulated: nothing here is a measurement.\n")
	}
	fmt.Fprintf(&b, "Each kernel about %.3g s alone, a sample every %.3g s, all under MPS.\n", r.DurationS, r.PeriodS)

	b.WriteString("\nDoes NVML report what was asked of the GPU? (asked: by the kernels' own clock)\n")
	t := newTable("kernel", "busy %", "NVML", "", "SMs %", "NVML", "", "PCIe MB/s", "NVML", "", "memory MiB", "NVML", "")
	for _, k := range r.Kernels {
		a, m, n := k.Asked, k.Measured, k.Tells
		t.AppendRow(table.Row{
			k.Name, percent(a.GPU), percent(m.GPU), yes(n.GPU), percent(a.Core), percent(m.Core), yes(n.Core),
			whole(a.PCIeMBps), whole(m.PCIeMBps), yes(n.PCIe), whole(a.MemMiB), whole(m.MemMiB), yes(n.Mem),
		})
	}
	b.WriteString(t.Render() + "\n")

	b.WriteString("\nSlowdown together, and by the simulator's law from NVML's figures and from what was asked\n")
	t = newTable("kernel", "beside", "measured", "law", "law, asked")
	for _, g := range r.Groups {
		for i, m := range g.Members {
			t.AppendRow(table.Row{m.Kernel, beside(g.Members, i), fmt.Sprintf("%.2f", m.Slowdown), fmt.Sprintf("%.2f", m.Law), fmt.Sprintf("%.2f", m.LawForAsked)})
		}
	}
	b.WriteString(t.Render() + "\n")

	t = newTable(fmt.Sprintf("%d pairs, one way each", r.Law.FromMeasured.N), "mean error", "rank correlation", "median relative error")
	score := func(name string, s interference.Report) {
		t.AppendRow(table.Row{name, fmt.Sprintf("%.3f", s.MAE), fmt.Sprintf("%.3f", s.Spearman), percent(s.MedianRelError) + " %"})
	}
	score("law, from NVML's figures", r.Law.FromMeasured)
	score("law, from what was asked", r.Law.FromAsked)
	con, sum := r.Law.FromMeasured.BaselineConstant, r.Law.FromMeasured.BaselineSumUtil
	t.AppendRow(table.Row{"a constant", fmt.Sprintf("%.3f", con.MAE), fmt.Sprintf("%.3f", con.Spearman)})
	t.AppendRow(table.Row{"max(1, Σ utilisation)", fmt.Sprintf("%.3f", sum.MAE), fmt.Sprintf("%.3f", sum.Spearman)})
	b.WriteString("\n" + t.Render() + "\n")

	b.WriteString("\nWhat sampling costs (mean ± standard deviation of one repeat)\n")
	t = newTable("kernel", "repeats", "iterations/s without", "with", "cost %")
	for _, o := range r.Overhead {
		t.AppendRow(table.Row{
			o.Kernel, len(o.Costs), fmt.Sprintf("%.5g ± %.2g", o.RateWithout, o.RateSD), fmt.Sprintf("%.5g ± %.2g", o.RateWith, o.RateWithSD),
			fmt.Sprintf("%.2f ± %.2f", 100*o.Cost, 100*o.CostSD),
		})
	}
	b.WriteString(t.Render() + "\n")
	for _, f := range r.Failures {
		fmt.Fprintf(&b, "\nfailed: %s\n", f)
	}
	return b.String()
}

func newTable(head ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(head)
	return t
}

// beside names the members other than i.
func beside(members []MemberReport, i int) string {
	var names []string
	for j, m := range members {
		if j != i {
			names = append(names, m.Kernel)
		}
	}
	return strings.Join(names, ", ")
}

func percent(v float64) string { return fmt.Sprintf("%.1f", 100*v) }
func whole(v float64) string   { return fmt.Sprintf("%.0f", v) }

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "NO"
}

// plan is what a run would do.
func plan(c *card, kernels []Kernel, e extent, o *options) string {
	var b strings.Builder
	if c != nil {
		fmt.Fprintf(&b, "GPU %d, %s, %.0f MiB.\n", c.Index, c.Model, c.MemMiB)
	}
	t := newTable("kernel", "asks for, alone", "", "", "")
	for _, k := range kernels {
		u := rlcore.Use{GPU: k.Duty, Core: k.Duty * k.SMs}
		what := "kernels"
		if k.Copies {
			u, what = rlcore.Use{}, "copies over PCIe, both ways"
		}
		t.AppendRow(table.Row{k.Name, what + ", " + k.Period.String() + " an iteration", percent(u.GPU) + " % busy", percent(u.Core) + " % of the SMs", whole(k.MemMiB) + " MiB"})
	}
	b.WriteString(t.Render() + "\n")
	n := len(kernels)
	targets, starts := needs(n, e)
	minutes := (targets*o.duration.Seconds() + 3*float64(starts)) / 60
	pairs := len(groups(n, 0))
	fmt.Fprintf(&b, "Each alone for about %v, %d pairs, %d triples, %d times with and without sampling\n(%s): about %.0f minutes.\n",
		o.duration, pairs, len(groups(n, e.triples))-pairs, e.repeats, strings.Join(weighed, ", "), max(1, minutes))
	fmt.Fprintf(&b, "An MPS daemon of its own for this GPU; no device setting is changed.\nReport: %s\n", o.out)
	return b.String()
}
