package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

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
	var report, profile string
	var duration, peak, faultAt, preallocate float64
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
			p = app.Scaled(p, duration, 1)
			if peak > 0 {
				p = withPeak(p, peak)
			}
			return run(app.Config{State: *state, Profile: p, FaultAtS: faultAt, Preallocate: preallocate}, report)
		},
	}
	f := c.Flags()
	f.StringVar(&report, "report", "", "write the JSON line to this file instead of standard output")
	f.StringVar(&profile, "profile", "", "read the profile (JSON) from this file; APP is then just a name")
	f.Float64Var(&duration, "duration-scale", 1, "duration times this")
	f.Float64Var(&peak, "mem-mib", 0, "peak memory, MiB (default the profile's)")
	f.Float64Var(&preallocate, "preallocate", 0, "take this part of the memory at the start, whatever is needed")
	f.Float64Var(&faultAt, "fault-at", 0, "a kernel faults after so many GPU seconds (0 = never)")
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
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	p.App = name
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

func withPeak(p *rlcore.Profile, mib float64) *rlcore.Profile {
	if was := p.Peak().MemMiB; was > 0 {
		return app.Scaled(p, 1, mib/was)
	}
	return p
}

func run(cfg app.Config, report string) error {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	go func() { stop(died{<-caught}) }()

	rep, err := app.Run(ctx, cfg)
	line, jerr := json.Marshal(rep)
	if jerr != nil {
		return errors.Join(err, jerr)
	}
	line = append(line, '\n')
	if report != "" {
		jerr = renameio.WriteFile(report, line, 0o644)
	} else {
		_, jerr = os.Stdout.Write(line)
	}
	var d died
	if errors.As(context.Cause(ctx), &d) {
		d.again()
	}
	if err == nil {
		return jerr
	}
	return err
}

// died is a signal that ends the program.
type died struct{ sig os.Signal }

func (d died) Error() string { return d.sig.String() }

// again ends the process as the signal would have if it had not been caught.
func (d died) again() {
	sig, ok := d.sig.(unix.Signal)
	if !ok {
		return
	}
	signal.Reset(sig)
	_ = unix.Kill(os.Getpid(), sig)
	time.Sleep(time.Second) // the signal comes first
}
