// Package lab has the commands of slurmbridge's laboratory: experiments, replays, training.
package lab

import (
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
)

// shared is what every command has.
type shared struct {
	*cli.Env
	version string // of the program
}

// Commands are the laboratory's.
func Commands(e *cli.Env, version string) []*cobra.Command {
	s := &shared{e, version}
	return []*cobra.Command{newExperiment(s), newTrain(s), newReplay(s), newInterference(s)}
}
