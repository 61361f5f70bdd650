// Package lab has the commands of slurmbridge's laboratory: experiments, replays, training.
package lab

import (
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
)

// shared is what every command has.
type shared struct{ *cli.Env }

// New is the laboratory's command, which has the others below it.
func New(e *cli.Env) *cobra.Command {
	s := &shared{e}
	c := &cobra.Command{
		Use:   "lab",
		Short: "Policies and predictions on the simulator: experiment, replay, train, interference",
		Long: `lab tries on a simulator what the daemon does on a cluster: it compares policies, replays
a site's past, trains a network, and scores predictions. It needs no Slurm, no GPU and no daemon.`,
	}
	c.AddCommand(newExperiment(s), newReplay(s), newTrain(s), newInterference(s))
	return c
}
