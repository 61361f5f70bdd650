// Command slurmbridge lets the jobs of a Slurm cluster share GPUs: the controller daemon, and what people ask it.
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/lab"
)

// version is set when the program is built.
var version = "unknown"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the process around it; it returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	return cli.Run(newRoot(stdout, stderr), args)
}

type shared struct{ cli.Env }

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	s := &shared{cli.Env{Version: version, Out: stdout, ErrOut: stderr}}
	return cli.Root(&s.Env, &cobra.Command{
		Short: "Slurm jobs that share GPUs, chosen by what they really use",
		Long: `slurmbridge lets the jobs of a Slurm cluster share GPUs.

Users submit with   sbatch --gres=gpu:shared job.sh   and write nothing else.
The daemon (slurmbridge serve) learns what each application uses of its GPU,
decides which waiting jobs fit together on one, and has Slurm start them so.
If it stops, every waiting job is an ordinary Slurm job within one lease.

Settings come from /etc/slurmbridge/slurmbridge.yaml, from SLURMBRIDGE_* and from
flags, each overruling the one before.`,
		Example: `  slurmbridge doctor          what this cluster still lacks, with the lines to add
  slurmbridge serve           decide and record; with mode: active in the settings, share
  slurmbridge status          GPUs with their jobs, groups, the gate
  slurmbridge why 4711        what job 4711 waits for, and what was considered
  slurmbridge open            let every waiting job go at once`,
	}, newServe(s), newCheckConfig(s), newPlan(s), newStatus(s), newWhy(s), newOpen(s),
		newDoctor(s), newProfiles(s), newReceipt(s), newAdopt(s), newUsage(s), newNotify(s),
		lab.New(&s.Env))
}
