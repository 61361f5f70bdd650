// Command testbed plays work on private real Slurms with simulated GPUs: the demo, comparisons of
// variants, the campaign of faults, and a cluster to type into. The Makefile's targets of these
// names call it. Each command puts together a workload, a variant (plain Slurm, plain shares, or
// the bridge with a policy), faults, and what judges the result.
//
// `testbed soak` draws clusters, jobs and faults out of what Slurm's manuals list, and compares each job with plain
// Slurm; package drawn says how to run a seed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/compare"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/drawn"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/play"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted; everything it started has ended")
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "testbed: %v\n", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	base := &cluster.Setup{}
	c := &cobra.Command{
		Use: "testbed", Short: "Work on private real Slurms with simulated GPUs", SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			if base.Build, err = filepath.Abs(base.Build); err != nil {
				return err
			}
			if base.Lua, err = filepath.Abs(base.Lua); err != nil {
				return err
			}
			return slurmtest.Missing()
		},
	}
	c.PersistentFlags().StringVar(&base.Build, "build", "build", "where make build put the programs")
	c.PersistentFlags().StringVar(&base.Lua, "lua", "contrib/job_submit.lua", "the job_submit script")
	c.AddCommand(compare.Demo(base), compare.Command(base), drawn.Command(base), play.Command(base))
	return c
}
