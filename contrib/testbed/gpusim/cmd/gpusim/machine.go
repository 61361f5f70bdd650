package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

func initCmd(state *string) *cobra.Command {
	var cfg gpusim.Config
	c := &cobra.Command{
		Use:   "init",
		Short: "Make a state file with idle GPUs",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return gpusim.Create(*state, cfg) },
	}
	f := c.Flags()
	f.IntVar(&cfg.GPUs, "gpus", 1, "number of GPUs")
	f.StringVar(&cfg.Model, "model", "titanxp", "card: "+strings.Join(gpusim.ModelNames(), ", "))
	f.Float64Var(&cfg.Scale, "scale", 1, "GPU seconds that pass in a real second")
	f.StringVar(&cfg.UUIDSeed, "uuid-seed", "", "makes the GPUs' UUIDs (e.g. the node's name)")
	f.StringSliceVar(&cfg.Instances, "instances", nil, "MIG instances that each GPU is cut into, e.g. 1g.5gb,3g.20gb")
	f.IntSliceVar(&cfg.Uncut, "uncut", nil, "GPUs, by index, that stay whole")
	f.BoolVar(&cfg.Exclusive, "exclusive", false, "GPUs in the compute mode EXCLUSIVE_PROCESS")
	f.StringVar(&cfg.Driver, "driver", "", "branch of the driver: 470, 535 (default), 550, 555 or 590")
	return c
}

func smiCmd(state *string) *cobra.Command {
	return &cobra.Command{
		Use:   "smi",
		Short: "Show GPUs and their processes",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return smi(c.OutOrStdout(), *state) },
	}
}

func smi(w io.Writer, state string) error {
	st, err := gpusim.Open(state)
	if err != nil {
		return err
	}
	defer st.Close()
	gpus, processes := table.NewWriter(), table.NewWriter()
	gpus.AppendHeader(table.Row{"GPU", "Name", "UUID", "Util", "Memory / MiB", "Power", "since init"})
	processes.AppendHeader(table.Row{"GPU", "PID", "UID", "Kind", "App", "MiB", "Done", "Slowdown"})
	for _, d := range st.Devices() {
		g, err := d.Snapshot()
		if err != nil {
			return err
		}
		if g.Lost {
			g.Name += " (lost)"
		}
		gpus.AppendRow(table.Row{
			g.Index, g.Name, g.UUID, fmt.Sprintf("%.0f %%", 100*g.GPU),
			fmt.Sprintf("%.0f / %.0f", g.MemMiB, g.MemTotalMiB), fmt.Sprintf("%.0f W", g.PowerW),
			fmt.Sprintf("%.1f %% busy, %.1f %% memory", 100*g.BusyS/g.T, 100*g.MemMiBS/g.T/g.MemTotalMiB),
		})
		for _, p := range g.Processes {
			done := "-"
			if p.Kind != gpusim.Server {
				done = fmt.Sprintf("%.0f / %.0f s", p.DoneS, p.DurationS)
			}
			processes.AppendRow(table.Row{
				g.Index, p.PID, p.UID, p.Kind, p.App, fmt.Sprintf("%.0f", p.MemMiB), done, fmt.Sprintf("%.2f", p.Slowdown),
			})
		}
	}
	fmt.Fprintf(w, "simulated GPUs, %g GPU seconds a second\n%s\n%s\n", st.Scale(), gpus.Render(), processes.Render())
	return nil
}

func headerCmd() *cobra.Command {
	return &cobra.Command{
		Use: "header", Short: "Print the state file's description in C", Hidden: true, Args: cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) { fmt.Fprint(c.OutOrStdout(), gpusim.Header()) },
	}
}
