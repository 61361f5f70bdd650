package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
)

// addContract adds the flags of the contract of jobs that say nothing, which are the
// daemon's settings of the same names.
func addContract(fl *pflag.FlagSet, maxSlowdown, grace *float64) {
	fl.Float64Var(maxSlowdown, "max-slowdown", rlcore.DefaultMaxSlowdown, "how much slower a job may run for sharing, as a factor; 0 = no limit")
	fl.Float64Var(grace, "grace", rlcore.DefaultGrace, "by what part of its own run time alone a job may end later than plain Slurm would have ended it")
}

// contract is it in words.
func contract(maxSlowdown, grace float64) string {
	slower := "any slowdown is allowed"
	if maxSlowdown > 0 {
		slower = fmt.Sprintf("slowdowns up to %v are allowed", maxSlowdown)
	}
	return fmt.Sprintf("%s, and an end later than plain Slurm's by %v of the time alone", slower, grace)
}

// checkContract refuses what the daemon refuses.
func checkContract(maxSlowdown, grace float64) error {
	if err := config.Check("max_slowdown", maxSlowdown); err != nil {
		return cli.Usage(fmt.Errorf("--max-slowdown %w", err))
	}
	if err := config.Check("grace", grace); err != nil {
		return cli.Usage(fmt.Errorf("--grace %w", err))
	}
	return nil
}
