// Command slurmbridge-lab is slurmbridge's laboratory: experiments, replays, training,
// pictures. slurmbridge hands it the commands that the daemon doesn't need.
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
)

// version is set when the program is built.
var version = "unknown"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the process around it; it returns the exit status.
func run(args []string, stdout, stderr io.Writer) int { return cli.Run(newRoot(stdout, stderr), args) }

// shared is what every command has.
type shared struct{ cli.Env }

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	s := &shared{cli.Env{Out: stdout, ErrOut: stderr}}
	profiles := cli.Elsewhere(&cobra.Command{Use: "profiles", Short: "What applications use of a GPU, as pictures: plot"})
	profiles.AddCommand(newProfilesPlot(s))
	return cli.Root(&s.Env, version, cli.Elsewhere(&cobra.Command{
		Short: "The laboratory of slurmbridge",
		Long: `slurmbridge-lab has the commands of slurmbridge that the daemon doesn't need. They are
called as slurmbridge's own, e.g. slurmbridge replay.`,
	}), newExperiment(s), newTrain(s), newReplay(s), newInterference(s), profiles)
}
