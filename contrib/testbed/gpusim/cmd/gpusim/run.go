package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/rlcore"
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
	var profile string
	var duration, peak float64
	c := &cobra.Command{
		Use:   "run APP [-- ARGUMENTS...]",
		Short: "Run an application on a simulated GPU",
		Long:  runHelp,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := profileOf(args[0], profile)
			if err != nil {
				return err
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
	f.StringVar(&profile, "profile", "", "read the profile (JSON) from this file; APP is then just a name")
	f.Float64Var(&duration, "duration-scale", 1, "duration times this")
	f.Float64Var(&peak, "mem-mib", 0, "peak memory, MiB (default the profile's)")
	f.Float64Var(&cfg.Preallocate, "preallocate", 0, "take this part of the memory at the start, whatever is needed")
	f.Float64Var(&cfg.FaultAtS, "fault-at", 0, "a kernel faults after so many GPU seconds (0 = never)")
	return c
}

// profileOf returns the profile in a file, or without one the catalogue's.
func profileOf(name, file string) (*rlcore.Profile, error) {
	if file == "" {
		p, ok := apps.ByName(strings.ToLower(name))
		if !ok {
			return nil, fmt.Errorf("no application %q (there are %s)", name, strings.Join(apps.Names(), ", "))
		}
		return p, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p := new(rlcore.Profile)
	err = json.Unmarshal(b, p)
	p.App = name
	if err == nil {
		err = p.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}
