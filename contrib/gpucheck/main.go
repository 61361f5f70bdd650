// Command gpucheck tries slurmbridge's node side on a machine with an NVIDIA GPU and no Slurm: README.md says what for.
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
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// errRefused says that this machine isn't fit for the check now. Nothing was touched.
var errRefused = errors.New("refused")

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// command runs gpucheck and returns its exit status.
func command(args []string, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	root := newRoot(out, errOut)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(errOut, "gpucheck:", err)
	if errors.Is(err, errRefused) {
		return 3
	}
	return 1
}

// check is what is to be tried, by the command's flags, and on which card.
type check struct {
	gpu, out, control, library string
	protocolFor, lawFor        time.Duration
	duration                   time.Duration // of a trial, at most
	kernels                    []string      // of the catalogue; none = all
	dryRun                     bool
	proc                       string
	pace                       float64       // by which all waiting of the situations is shortened
	deadline                   time.Duration // of a hook

	card    *card // nil = there is none
	results *results
}

func newRoot(out, errOut io.Writer) *cobra.Command {
	k := &check{}
	c := &cobra.Command{
		Use:   "gpucheck",
		Short: "Check what slurmbridge takes for true of MPS, NVML and slowdowns on a real GPU",
		Long: `gpucheck plays what happens to jobs that share a GPU (servers that come and go, clients that fault, are killed,
run out of memory), and writes down what the MPS daemon, CUDA and NVML say. Then it runs small kernels with known
demand, alone and in all pairs, and compares what each asked of the GPU, what NVML reported, and how much each slows
another with the simulator's law. Each result is written into the folder of --out as
it comes.

Exit status: 0 done, 1 something failed (the rest is written), 3 refused: this machine isn't fit for it now, and nothing
was touched.`,
		SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return k.run(c.Context(), out, errOut) },
	}
	c.SetOut(out)
	c.SetErr(errOut)
	c.CompletionOptions.DisableDefaultCmd = true
	c.AddCommand(newClient(os.Stdin, out))
	f := c.Flags()
	f.StringVar(&k.gpu, "gpu", "0", "the GPU, by nvidia-smi's index or by UUID")
	f.DurationVar(&k.protocolFor, "protocol", 2*time.Minute+30*time.Second, "time for the situations (0 = none)")
	f.DurationVar(&k.lawFor, "law", 5*time.Minute+30*time.Second, "time for the kernels (0 = none)")
	f.DurationVar(&k.duration, "duration", 20*time.Second, "how long kernels run in a trial, at most")
	f.StringSliceVar(&k.kernels, "kernels", nil, "which kernels, e.g. compute,memory (default all)")
	f.StringVar(&k.out, "out", "gpucheck-"+time.Now().Format("20060102-150405"), "folder of the results")
	f.BoolVar(&k.dryRun, "dry-run", false, "print what the check would do, and do nothing")
	f.StringVar(&k.control, "mps-control", "nvidia-cuda-mps-control", "the MPS control program")
	f.StringVar(&k.library, "nvml-library", "", "path of libnvidia-ml.so.1 (default: as the loader finds it)")
	f.StringVar(&k.proc, "proc", "/proc", "where processes are looked for")
	f.Float64Var(&k.pace, "pace", 1, "by which the situations' waiting is shortened")
	f.DurationVar(&k.deadline, "deadline", 5*time.Second, "how long a hook may take")
	_, _, _ = f.MarkHidden("proc"), f.MarkHidden("pace"), f.MarkHidden("deadline")
	return c
}

func (k *check) run(ctx context.Context, out, errOut io.Writer) error {
	if k.duration < 100*time.Millisecond || k.duration > time.Hour {
		return errors.New("--duration goes from 100ms to 1h")
	}
	why := k.choose()
	if k.card != nil {
		defer func() { _ = k.card.lib.Close() }()
	}
	kernels, err := catalogue(k.card, k.kernels)
	if err != nil {
		return err
	}
	if k.dryRun {
		k.plan(out, len(kernels), why)
		return nil
	}
	if len(why) > 0 {
		return fmt.Errorf("%w: %s", errRefused, strings.Join(why, "; "))
	}
	k.results = &results{folder: k.out, log: errOut}
	if err := errors.Join(os.MkdirAll(k.out, 0o755), k.results.write("results.jsonl", nil)); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	k.play(ctx, situations[:1], mostOfSituation, false)
	k.play(ctx, situations[1:], k.protocolFor, false)
	k.play(ctx, k.trials(kernels), k.lawFor, true)
	fmt.Fprintf(out, "Written to %s: results.jsonl, MPS's logs\n", k.out)
	if simulated() {
		fmt.Fprintln(out, "The GPU is simulated: nothing there is a measurement.")
	}
	switch failed := k.results.failed; {
	case ctx.Err() != nil:
		return errors.New("interrupted; everything it started has ended")
	case len(failed) > 0:
		return fmt.Errorf("%d parts failed: %s", len(failed), strings.Join(failed, "; "))
	}
	return nil
}

// plan prints what the check would do, and why not.
func (k *check) plan(out io.Writer, kernels int, why []string) {
	if c := k.card; c != nil {
		fmt.Fprintf(out, "GPU %d, %s, %.0f MiB: MPS daemons of its own; as root another compute mode for one situation.\n",
			c.Index, c.Model, c.MemMiB)
	}
	if k.control == "" {
		fmt.Fprintln(out, "There is no MPS control program.")
	}
	fmt.Fprintf(out, "%d situations for %v, then %d kernels alone and in %d pairs for %v. Results: %s\n",
		len(situations), k.protocolFor, kernels, kernels*(kernels+1)/2, k.lawFor, k.out)
	for _, w := range why {
		fmt.Fprintln(out, "It would refuse:", w)
	}
}

// simulated reports whether there is no GPU behind NVML.
func simulated() bool { return os.Getenv(gpusim.StateEnv) != "" }
