// Command gpucheck tries slurmbridge's node side on a machine with an NVIDIA GPU
// and no Slurm: README.md says what for. contrib/gpucheck/run builds and starts it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
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

// options are the command's flags.
type options struct {
	gpu, out, nvcc, control, library string
	duration                         time.Duration // of each trial
	sampling                         time.Duration // between the agent's samples
	kernels                          []string      // of the catalogue; none = all
	dryRun                           bool
	workload                         string // instead of the CUDA kernels
	proc                             string
}

func newRoot(out, errOut io.Writer) *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "gpucheck",
		Short: "Check slurmbridge's profiling, MPS handling and slowdown law on a real GPU",
		Long: `gpucheck runs small CUDA kernels with known demand under MPS, alone and in all pairs, and
records them as the node agent does. It prints, and writes into report.json, what each asked
of the GPU and what NVML reported, and how much each slows another, against the simulator's law.

Exit status: 0 done, 1 something failed (what was measured is written), 3 refused: this
machine isn't fit for it now, and nothing was touched.`,
		SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return run(c.Context(), o, out, errOut) },
	}
	c.SetOut(out)
	c.SetErr(errOut)
	f := c.Flags()
	f.StringVar(&o.gpu, "gpu", "0", "the GPU, by nvidia-smi's index or by UUID")
	f.DurationVar(&o.duration, "duration", 20*time.Second, "how long kernels run in each trial")
	f.DurationVar(&o.sampling, "sampling", time.Second, "time between the agent's samples")
	f.StringSliceVar(&o.kernels, "kernels", nil, "which kernels, e.g. compute,memory (default all)")
	f.StringVar(&o.out, "out", "gpucheck-"+time.Now().Format("20060102-150405"), "folder of the report")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what the check would do, and do nothing")
	f.StringVar(&o.nvcc, "nvcc", "nvcc", "CUDA's compiler")
	f.StringVar(&o.control, "mps-control", "nvidia-cuda-mps-control", "the MPS control program")
	f.StringVar(&o.library, "nvml-library", "", "path of libnvidia-ml.so.1 (default: as the loader finds it)")
	f.StringVar(&o.workload, "workload", "", "a program to run instead of the CUDA kernels, with a kernel's name and its arguments")
	f.StringVar(&o.proc, "proc", "/proc", "where processes are looked for")
	_ = f.MarkHidden("proc")
	return c
}

func run(ctx context.Context, o *options, out, errOut io.Writer) error {
	if o.duration < 100*time.Millisecond || o.duration > time.Hour || o.sampling < 5*time.Millisecond || o.sampling > o.duration {
		return errors.New("--duration goes from 100ms to 1h, --sampling from 5ms to --duration")
	}
	c, why := o.look()
	if c != nil {
		defer func() { _ = c.lib.Close() }()
	}
	kernels, err := catalogue(c, o.kernels)
	if err != nil {
		return err
	}
	if o.dryRun {
		n := len(kernels)
		pairs := n * (n + 1) / 2
		if c != nil {
			fmt.Fprintf(out, "GPU %d, %s, %.0f MiB: an MPS daemon of its own, no device setting changed.\n", c.Index, c.Model, c.MemMiB)
		}
		fmt.Fprintf(out, "%d kernels alone and in %d pairs, about %.0f minutes. Report: %s\n", n, pairs,
			max(1, float64(n+pairs)*(o.duration.Minutes()+.1)), o.out)
		for _, w := range why {
			fmt.Fprintln(out, "It would refuse:", w)
		}
		return nil
	}
	if len(why) > 0 {
		return fmt.Errorf("%w: %s", errRefused, strings.Join(why, "; "))
	}
	r, err := o.measure(ctx, c, kernels, errOut)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted; everything it started has ended")
		}
		return err
	}
	r.Date, r.DurationS, r.PeriodS = time.Now().UTC().Format(time.RFC3339), o.duration.Seconds(), o.sampling.Seconds()
	r.Simulated, r.Workload = os.Getenv(gpusim.StateEnv) != "", "cuda"
	if o.workload != "" {
		r.Workload = filepath.Base(o.workload)
	}
	return r.write(o.out, out)
}
