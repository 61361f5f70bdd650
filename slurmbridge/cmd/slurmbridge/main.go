// Command slurmbridge lets the jobs of a Slurm cluster share GPUs: the controller
// daemon, and what people ask it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
)

// version is set when the program is built.
var version = "unknown"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the process around it. It returns the exit status: 0, 1 on
// failure, 2 where the command line or the configuration is wrong.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	called := false
	root.PersistentPreRun = func(*cobra.Command, []string) { called = true }
	c, err := root.ExecuteContextC(ctx)
	var usage usageError
	var exit exitError
	switch {
	case errors.As(err, &exit):
		return int(exit)
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "slurmbridge: %v\n", err)
		return 2
	case !called:
		// No command was run: there is none of that name, or not with these words.
		// Cobra's suggestions come on lines of their own.
		fmt.Fprintf(stderr, "slurmbridge: %s; see %s --help\n", strings.Join(strings.Fields(err.Error()), " "), c.CommandPath())
		return 2
	default:
		fmt.Fprintf(stderr, "slurmbridge: %v\n", err)
		return 1
	}
}

// usageError is a mistake in what the user wrote, not in what the program did.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// shared holds what every command is given.
type shared struct {
	file   string // --config
	json   bool
	out    io.Writer
	errOut io.Writer
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	s := &shared{out: stdout, errOut: stderr}
	root := &cobra.Command{
		Use:   "slurmbridge",
		Short: "Slurm jobs that share GPUs, chosen by what they really use",
		Long: `slurmbridge lets the jobs of a Slurm cluster share GPUs.

Users submit with   sbatch --gres=gpu:shared job.sh   and write nothing else.
The daemon (slurmbridge serve) learns what each application uses of its GPU,
decides which waiting jobs fit together on one, and has Slurm start them so.
If it stops, every waiting job is an ordinary Slurm job within one lease.

Settings come from /etc/slurmbridge/slurmbridge.yaml, from SLURMBRIDGE_* and from
flags, each overruling the one before.`,
		Example: `  slurmbridge doctor          what this cluster still lacks, with the lines to add
  slurmbridge serve --mode shadow
                              decide, record, change nothing
  slurmbridge status          GPUs and who is on them, groups, the gate
  slurmbridge why 4711        what job 4711 waits for, and who was considered
  slurmbridge open            let every waiting job go at once`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetVersionTemplate("slurmbridge {{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
	})
	root.PersistentFlags().StringVarP(&s.file, "config", "c", "", "configuration file (default "+config.DefaultFile+" where it exists)")
	root.PersistentFlags().BoolVar(&s.json, "json", false, "output for programs")
	root.AddCommand(newServe(s), newPlan(s), newStatus(s), newWhy(s), newOpen(s), newDoctor(s), newProfiles(s), newInterference(s),
		newExperiment(s), newTrain(s), newReplay(s), newModels(s), newReceipt(s))
	for _, c := range root.Commands() {
		if c.HasSubCommands() && !c.Runnable() {
			// Cobra would answer a subcommand that there isn't with help and no error.
			c.Args = cobra.NoArgs
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	return root
}

// load reads the settings with the command's own flags.
func (s *shared) load(c *cobra.Command) (*config.Config, error) {
	cfg, err := config.Load(s.file, c.Flags())
	if err != nil {
		return nil, usageError{err}
	}
	return cfg, nil
}
