// Command gpusim is the simulated GPU's one program. Called by the name
// nvidia-cuda-mps-control or nvidia-cuda-mps-server it answers as those do.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

var version = "unknown"

func main() {
	// Many of these run at once and wait: none needs more than one thread to run Go.
	runtime.GOMAXPROCS(1)
	if status, ok := mps.Main(os.Args, os.Stdin, os.Stdout, os.Stderr); ok {
		os.Exit(status)
	}
	err := root().Execute()
	var cuda *app.Error
	switch {
	case err == nil:
		return
	case errors.As(err, &cuda):
		fmt.Fprintln(os.Stderr, cuda.Error())
		os.Exit(cuda.Exit)
	}
	fmt.Fprintln(os.Stderr, "gpusim:", err)
	os.Exit(64) // not the simulated program's own failure
}

func root() *cobra.Command {
	var state string
	c := &cobra.Command{
		Use:           "gpusim",
		Short:         "Simulated GPUs: make them, look at them, compute on them",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.PersistentFlags().StringVar(&state, "state", "", "state file (default $GPUSIM_STATE)")
	c.AddCommand(initCmd(&state), smiCmd(&state), runCmd(&state), &cobra.Command{
		Use: "header", Short: "Print the state file's description in C", Hidden: true, Args: cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) { fmt.Fprint(c.OutOrStdout(), gpusim.Header()) },
	})
	return c
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

const runHelp = `Runs an application of the catalogue on a simulated GPU, which it finds as a CUDA
program does: by CUDA_VISIBLE_DEVICES, and through the MPS control daemon of
CUDA_MPS_PIPE_DIRECTORY (default /tmp/nvidia-mps) where one answers. At the end one
line of JSON reports how it went. What follows "--" is the application's own
arguments; the simulation ignores them.

Exit status: 0 done, 1 no usable GPU, 2 out of GPU memory, 3 no connection to the MPS
server, 4 context destroyed (fault, or MPS server gone), 64 the call was wrong.`

func runCmd(state *string) *cobra.Command {
	var cfg app.Config
	var duration, peak float64
	c := &cobra.Command{
		Use:   "run APP [-- ARGUMENTS...]",
		Short: "Run an application on a simulated GPU",
		Long:  runHelp,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			p, ok := apps.ByName(strings.ToLower(args[0]))
			if !ok {
				return fmt.Errorf("no application %q (there are %s)", args[0], strings.Join(apps.Names(), ", "))
			}
			if !(duration > 0) || duration > 1e6 {
				return fmt.Errorf("--duration-scale %v: must be above 0 and at most 1e6", duration)
			}
			memory := 1.0
			if was := p.Peak().MemMiB; peak > 0 && was > 0 {
				memory = peak / was
			}
			cfg.State, cfg.Profile = *state, app.Scaled(p, duration, memory)
			return app.Run(cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Report, "report", "", "write the JSON line to this file instead of standard output")
	f.Float64Var(&duration, "duration-scale", 1, "duration times this")
	f.Float64Var(&peak, "mem-mib", 0, "peak memory, MiB (default the profile's)")
	f.Float64Var(&cfg.Preallocate, "preallocate", 0, "take this part of the memory at the start, whatever is needed")
	f.Float64Var(&cfg.FaultAtS, "fault-at", 0, "a kernel faults after so many GPU seconds (0 = never)")
	return c
}
