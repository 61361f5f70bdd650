package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

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
