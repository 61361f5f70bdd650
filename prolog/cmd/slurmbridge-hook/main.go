// Command slurmbridge-hook is Slurm's Prolog, Epilog and TaskProlog. It never runs a Slurm command, never outlasts its
// deadline and ends in exit 0: Slurm drains a node after its prolog has failed. Where a signal has ended its work it
// doesn't: the scripts around it (etc/hooks) call it again, and end in exit 0.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/prolog"
)

var version = "unknown"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, os.Getenv)) }

// killed is the exit status of a hook whose worker was ended by a signal. The work must be done again, and all of it
// may be repeated.
const killed = 75

// run returns the exit status: 0 for a hook, or killed.
func run(args []string, out, errOut io.Writer, get func(string) string) int {
	root := newRoot(out, get)
	root.SetArgs(args)
	root.SetErr(errOut)
	err := root.Execute()
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errInner):
		fmt.Fprintln(errOut, err)
		return 1 // the outer process reports it
	}
	fmt.Fprintln(errOut, "slurmbridge-hook:", err)
	prolog.Syslog(err.Error())
	if errors.Is(err, prolog.ErrKilled) {
		return killed
	}
	if slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return slices.Contains(args, c.Name()) }) {
		return 0
	}
	return 2
}

// errInner marks the errors of the process that does a hook's work.
var errInner = errors.New("the hook's work")

type flags struct {
	settings, runDir, mpsControl string
	deadline                     time.Duration
	inner                        bool
}

func newRoot(out io.Writer, get func(string) string) *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:   "slurmbridge-hook",
		Short: "Slurm's Prolog, Epilog and TaskProlog for shared GPUs",
		Long: `slurmbridge-hook is called by slurmd. In slurm.conf:

  Prolog=/usr/lib/slurmbridge/prolog
  Epilog=/usr/lib/slurmbridge/epilog
  TaskProlog=/usr/lib/slurmbridge/taskprolog

These are scripts (etc/hooks in the source) that call this program with the hook's
name and end in exit 0 even where it is gone. A cluster that has hooks already links
them into its folders, say as /etc/slurm/prolog.d/50-slurmbridge.
Whatever goes wrong it ends within its deadline, in exit 0 unless it was killed, and says
what it was in the system's log. Settings of the node stand in ` + prolog.DefaultSettings + `; all have defaults.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(out)
	pf := root.PersistentFlags()
	pf.StringVar(&f.settings, "settings", prolog.DefaultSettings, "settings of the node, a YAML file")
	pf.StringVar(&f.runDir, "run-dir", "", "where hooks and agent meet (default "+prolog.DefaultRunDir+")")
	pf.StringVar(&f.mpsControl, "mps-control", "", "path of nvidia-cuda-mps-control")
	pf.DurationVar(&f.deadline, "deadline", 5*time.Second, "how long a hook may take, a minute at most")
	pf.BoolVar(&f.inner, "inner", false, "")
	if err := pf.MarkHidden("inner"); err != nil {
		panic(err) // there is such a flag
	}
	for _, k := range []struct{ name, short string }{
		{"prolog", "Write the job's file; have MPS ready for a sharer"},
		{"epilog", "Close the job's file; end MPS after the last sharer"},
		{"taskprolog", "Print the variables a sharer's processes need"},
	} {
		root.AddCommand(&cobra.Command{
			Use: k.name, Short: k.short, Args: cobra.ArbitraryArgs,
			RunE: func(*cobra.Command, []string) error {
				if f.deadline <= 0 || f.deadline > time.Minute {
					f.deadline = 5 * time.Second
				}
				if f.inner {
					return f.work(k.name, get, out)
				}
				if err := f.outer(k.name, get, out); err != nil {
					return fmt.Errorf("%s of job %.20q: %w", k.name, get("SLURM_JOB_ID"), err)
				}
				return nil
			},
		})
	}
	return root
}

// outer runs the hook's work in a process of its own and touches no disk itself, so that it ends in time even if the
// work hangs.
func (f *flags) outer(kind string, get func(string) string, out io.Writer) error {
	if kind == "prolog" && get("SLURM_JOB_GPUS") == "" {
		return nil // most jobs of many clusters have no GPU
	}
	printed, err := prolog.Child(f.deadline, "/proc/self/exe", kind, "--inner",
		"--deadline", f.deadline.String(), "--settings", f.settings, "--run-dir", f.runDir, "--mps-control", f.mpsControl)
	if len(printed) > 0 {
		_, werr := out.Write(printed)
		err = errors.Join(err, werr)
	}
	return err
}

// work does the hook's work. outer reports its error.
func (f *flags) work(kind string, get func(string) string, out io.Writer) error {
	// Users' programs must reach the daemons' sockets, and not write to them.
	syscall.Umask(0o022)
	ctx, cancel := context.WithTimeout(context.Background(), f.deadline)
	defer cancel()
	s, err := prolog.Load(f.settings)
	s.RunDir = cmp.Or(f.runDir, s.RunDir)
	s.MPSControl = cmp.Or(f.mpsControl, s.MPSControl)
	if os.Geteuid() == 0 {
		err = errors.Join(err, prolog.LeaveSlurm(""))
	}
	h := s.Hook(get, f.deadline)
	switch kind {
	case "prolog":
		err = errors.Join(err, h.Prolog(ctx, get))
	case "epilog":
		err = errors.Join(err, h.Epilog(ctx, get))
	default:
		err = errors.Join(err, h.TaskProlog(out, get))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errInner, err)
	}
	return nil
}
