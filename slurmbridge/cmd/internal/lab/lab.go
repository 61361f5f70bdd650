// Package lab has the commands of slurmbridge's laboratory: experiments, replays, training.
package lab

import (
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
)

// shared is what every command has.
type shared struct{ *cli.Env }

// Commands are the laboratory's.
func Commands(e *cli.Env) []*cobra.Command {
	s := &shared{e}
	return []*cobra.Command{newExperiment(s), newTrain(s), newReplay(s), newInterference(s)}
}
