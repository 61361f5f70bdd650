package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// withState runs a command's work on the open state file.
func withState(state *string, do func(*gpusim.State) error) error {
	st, err := gpusim.Open(*state)
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	return do(st)
}

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
	f.IntSliceVar(&cfg.Minors, "minors", nil, "minor numbers in NVML's order (default 0,1,...)")
	f.Float64Var(&cfg.MemMiB, "mem-mib", 0, "memory of a GPU, MiB (default the card's)")
	f.BoolVar(&cfg.MIG, "mig", false, "MIG mode on")
	f.StringSliceVar(&cfg.Instances, "mig-instances", nil, "MIG instances of each GPU, e.g. 1g.5gb,3g.20gb")
	f.BoolVar(&cfg.GroupLimits, "group-limits", false, "a driver that can limit the memory of control groups")
	f.BoolVar(&cfg.Recent, "recent", false, "a driver of CUDA 13.1 instead of one of 12.2")
	return c
}

func rmCmd(state *string) *cobra.Command {
	return &cobra.Command{
		Use:   "rm",
		Short: "Remove a state file",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return gpusim.Remove(*state) },
	}
}

func smiCmd(state *string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "smi",
		Short: "Show GPUs and their processes",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withState(state, func(st *gpusim.State) error { return smi(c.OutOrStdout(), st, asJSON) })
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func smi(w io.Writer, st *gpusim.State, asJSON bool) error {
	look := struct {
		Scale float64           `json:"scale"`
		GPUs  []gpusim.Snapshot `json:"gpus"`
	}{Scale: st.Scale()}
	for _, d := range st.Devices() {
		s, err := d.Snapshot()
		if err != nil {
			return err
		}
		look.GPUs = append(look.GPUs, s)
	}
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(look)
	}
	show(w, look.Scale, look.GPUs)
	return nil
}

func show(w io.Writer, scale float64, gpus []gpusim.Snapshot) {
	fmt.Fprintf(w, "simulated GPUs, %g GPU seconds a second\n", scale)
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.AppendHeader(table.Row{"GPU", "Name", "UUID", "Util", "Memory / MiB", "Power", "since init"})
	for _, g := range gpus {
		name := g.Name
		if g.Lost {
			name += " (lost)"
		}
		mean := "-"
		if g.T > 0 {
			mean = fmt.Sprintf("%.1f %% busy, %.1f %% memory", 100*g.BusyS/g.T, 100*g.MemMiBS/g.T/g.MemTotalMiB)
		}
		t.AppendRow(table.Row{
			g.Index, name, g.UUID, fmt.Sprintf("%.0f %%", 100*g.GPU),
			fmt.Sprintf("%.0f / %.0f", g.MemMiB, g.MemTotalMiB), fmt.Sprintf("%.0f W", g.PowerW), mean,
		})
	}
	t.Render()
	t = table.NewWriter()
	t.SetOutputMirror(w)
	t.AppendHeader(table.Row{"GPU", "PID", "UID", "Kind", "App", "MiB", "Done", "Slowdown"})
	for _, g := range gpus {
		for _, p := range g.Processes {
			done := "-"
			if p.DurationS > 0 {
				done = fmt.Sprintf("%.0f / %.0f s", p.DoneS, p.DurationS)
			}
			t.AppendRow(table.Row{g.Index, p.PID, p.UID, p.Kind, p.App, fmt.Sprintf("%.0f", p.MemMiB), done, fmt.Sprintf("%.2f", p.Slowdown)})
		}
	}
	t.Render()
}

func appsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "apps",
		Short: "List the applications `run` knows, with what they take alone",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t := table.NewWriter()
			t.SetOutputMirror(c.OutOrStdout())
			t.AppendHeader(table.Row{"App", "Seconds", "Mean util", "Mean MiB", "Peak MiB"})
			for _, n := range apps.Names() {
				p, _ := apps.ByName(n)
				m := p.Mean()
				t.AppendRow(table.Row{
					n, fmt.Sprintf("%.0f", p.DurationS), fmt.Sprintf("%.0f %%", 100*m.GPU),
					fmt.Sprintf("%.0f", m.MemMiB), fmt.Sprintf("%.0f", p.Peak().MemMiB),
				})
			}
			t.Render()
			return nil
		},
	}
}

func faultCmd(state *string) *cobra.Command {
	var gpu int
	var lost bool
	c := &cobra.Command{
		Use:   "fault [--lost] [FIGURE MODE]",
		Short: "Make a GPU, or what NVML says of it, misbehave",
		Long: "MODE is zero, huge, backwards, return=CODE (an nvmlReturn_t) or none.\nFIGURE is all, " +
			strings.Join(gpusim.FaultFigures(), ", ") + ".",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 0 && len(args) != 2 {
				return fmt.Errorf("give a figure and a mode, or --lost=true|false alone")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return withState(state, func(st *gpusim.State) error {
				if gpu < 0 || gpu >= len(st.Devices()) {
					return fmt.Errorf("no GPU %d (there are %d)", gpu, len(st.Devices()))
				}
				d := st.Device(gpu)
				var err error
				if c.Flags().Changed("lost") {
					err = d.SetLost(lost)
				}
				if len(args) == 2 {
					err = errors.Join(err, d.SetFault(args[0], args[1]))
				}
				return err
			})
		},
	}
	c.Flags().IntVar(&gpu, "gpu", 0, "NVML index of the GPU")
	c.Flags().BoolVar(&lost, "lost", false, "the GPU has fallen off the bus")
	return c
}

func headerCmd() *cobra.Command {
	return &cobra.Command{
		Use: "header", Short: "Print the state file's description in C", Hidden: true, Args: cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) { fmt.Fprint(c.OutOrStdout(), gpusim.Header()) },
	}
}
