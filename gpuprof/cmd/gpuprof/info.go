package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

func newInfo(out io.Writer) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "info", Short: "This node's GPUs, what they can, and which figures they give", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := load(c)
			if err != nil {
				return err
			}
			lib, err := nvml.Open(cfg.NVMLLibrary)
			if err != nil {
				return err
			}
			defer lib.Close()
			if !asJSON {
				showInfo(out, lib.Devices())
				return nil
			}
			enc := json.NewEncoder(out)
			enc.SetIndent("", "  ")
			return enc.Encode(lib.Devices())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "output for programs")
	c.Flags().String("nvml-library", "", "libnvidia-ml.so.1 (default: wherever the loader finds it)")
	return c
}

// showInfo prints a column for each GPU, a row for each thing it can or can't.
func showInfo(w io.Writer, devices []nvml.Device) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	row := func(name string, of func(d *nvml.Device) any) {
		r := table.Row{name}
		for i := range devices {
			r = append(r, of(&devices[i]))
		}
		t.AppendRow(r)
	}
	head := table.Row{""}
	for i := range devices {
		head = append(head, fmt.Sprintf("gpu %d", devices[i].Minor))
	}
	t.AppendHeader(head)
	row("model", func(d *nvml.Device) any { return known(d.Model) })
	row("uuid", func(d *nvml.Device) any { return known(d.UUID) })
	if slices.ContainsFunc(devices, func(d nvml.Device) bool { return d.Lost != "" }) {
		row("NVML", func(d *nvml.Device) any { return cmp.Or(d.Lost, "answers") })
	}
	row("NVML index", func(d *nvml.Device) any { return d.Index })
	row("driver, CUDA", func(d *nvml.Device) any { return known(d.Driver) + ", " + known(d.CUDA) })
	row("architecture", func(d *nvml.Device) any { return known(d.Arch) + " " + d.Compute })
	row("cores", func(d *nvml.Device) any { return amount(float64(d.Cores), "") })
	row("memory", func(d *nvml.Device) any { return amount(d.MemMiB, " MiB") })
	row("PCIe link", func(d *nvml.Device) any { return amount(d.PCIeMBps, " MB/s") })
	row("MIG", func(d *nvml.Device) any { return mig(&d.MIG) })
	row("compute mode", func(d *nvml.Device) any { return known(d.Mode) })
	t.AppendSeparator()
	row("MPS: clients", func(d *nvml.Device) any { return d.MPS.MaxClients })
	row("MPS: users at a time", func(d *nvml.Device) any {
		if d.MPS.MultiUser {
			return "1 (more with -multiuser-server)"
		}
		return "1"
	})
	row("MPS: thread percentage", func(d *nvml.Device) any { return yes(d.MPS.ThreadPercentage) })
	row("MPS: memory limit", func(d *nvml.Device) any { return yes(d.MPS.MemoryLimit) })
	row("memory limit of control groups", func(d *nvml.Device) any { return yes(d.GroupLimits) })
	row("MPS: own address space", func(d *nvml.Device) any { return yes(d.MPS.OwnAddresses) })
	t.AppendSeparator()
	for i := range nvml.Sources {
		s := &nvml.Sources[i]
		row(s.Title, func(d *nvml.Device) any { return answer(d.Answers[s.Name], d.Refusals[s.Name]) })
	}
	t.Render()
	missing := map[string]bool{}
	for i := range devices {
		for _, why := range devices[i].Refusals {
			if strings.HasPrefix(why, "the driver's library") {
				missing[why] = true
			}
		}
	}
	for _, why := range slices.Sorted(maps.Keys(missing)) {
		fmt.Fprintln(w, why)
	}
}

// answer says whether a figure is given, and what went wrong if it failed.
func answer(given bool, why string) string {
	switch {
	case given && why != "":
		return "failed: " + why
	case strings.HasPrefix(why, "the driver's library"):
		return "no (old driver)"
	case given, why == "", why == "not supported":
		return yes(given)
	}
	return "no (" + why + ")"
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func known(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func amount(v float64, unit string) string {
	if v <= 0 {
		return "unknown"
	}
	return fmt.Sprintf("%.0f%s", v, unit)
}

func mig(m *nvml.MIG) string {
	switch {
	case !m.Can:
		return "no"
	case !m.On:
		return "off"
	case len(m.Instances) == 0:
		return "on, no instance"
	}
	var lines []string
	for i := range m.Instances {
		in := &m.Instances[i]
		lines = append(lines, fmt.Sprintf("%s, %.0f MiB, %s SMs, %d MPS clients, gi %d ci %d\n  %s", known(in.Profile),
			in.MemMiB,
			amount(float64(in.SMs), ""), in.Clients, in.GPUInstance, in.ComputeInstance, in.UUID))
	}
	return "on\n" + strings.Join(lines, "\n")
}
