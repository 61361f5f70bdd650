// Command gpusim is the simulated GPU's one program. Called by the name
// nvidia-cuda-mps-control or nvidia-cuda-mps-server it answers as those do.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
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
	c.AddCommand(initCmd(&state), smiCmd(&state), runCmd(&state), headerCmd())
	return c
}
