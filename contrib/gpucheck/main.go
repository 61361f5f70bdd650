// Command gpucheck tries slurmbridge's node side on a machine with an NVIDIA GPU
// and no Slurm: README.md says what for. contrib/gpucheck/run builds and starts it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// Exit statuses.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitRefused = 3
)

var (
	errUsage = errors.New("see --help")
	// errRefused: the machine isn't fit for it now. Nothing was touched.
	errRefused = errors.New("refused")
)

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
	switch {
	case errors.Is(err, errRefused):
		return exitRefused
	case errors.Is(err, errUsage):
		return exitUsage
	}
	return exitFailed
}

// options are what it is called with.
type options struct {
	gpu, out, nvcc, control, library string
	duration                         time.Duration // of a kernel alone
	sampling                         time.Duration // between the agent's samples
	kernels                          []string      // of the catalogue; none = all
	json, dryRun                     bool
	workload                         string // instead of the CUDA kernels
	proc                             string
}

const long = `gpucheck tries slurmbridge's node side on a machine with an NVIDIA GPU, without
Slurm. It builds small CUDA kernels with known demand, runs them under MPS alone and in
all pairs, and records them as the node agent does. It writes into the folder of --out:

  profiles.csv  what each kernel uses alone  } for slurmbridge replay
  pairs.csv     how much each slows another  } and slurmbridge interference score
  report.json   does NVML report what was asked of the GPU; slowdowns against the
                simulator's law

It needs the driver, CUDA's nvcc and nvidia-cuda-mps-control, an idle GPU and no
other MPS daemon, root or not. It changes no setting of the device, and ends its MPS
daemon however it ends itself.

Exit status: 0 done, 1 something failed (what was measured is written), 2 the call
was wrong, 3 refused: this machine isn't fit for it now, and nothing was touched.`

func newRoot(out, errOut io.Writer) *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "gpucheck",
		Short: "Check slurmbridge's profiling, MPS handling and slowdown law on a real GPU",
		Long:  long,
		Example: `  contrib/gpucheck/run --dry-run                what would be done, and how long it takes
  contrib/gpucheck/run                          everything on GPU 0
  contrib/gpucheck/run --gpu 1 --duration 5s    a quicker look at another GPU`,
		SilenceUsage: true, SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("it takes no argument %.64q; %w", args[0], errUsage)
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return run(c.Context(), o, out, errOut) },
	}
	c.SetOut(out)
	c.SetErr(errOut)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w; %w", err, errUsage) })
	f := c.Flags()
	f.StringVar(&o.gpu, "gpu", "0", "the GPU, by nvidia-smi's index or by UUID")
	f.DurationVar(&o.duration, "duration", 20*time.Second, "how long a kernel runs alone, about")
	f.DurationVar(&o.sampling, "sampling", time.Second, "time between the agent's samples")
	f.StringSliceVar(&o.kernels, "kernels", nil, "which kernels, e.g. compute,memory (default all)")
	f.StringVar(&o.out, "out", "", "folder of the report (default gpucheck-DATE)")
	f.BoolVar(&o.json, "json", false, "print the report as JSON")
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would be done, and do nothing")
	f.StringVar(&o.nvcc, "nvcc", "", "path of nvcc (default: on the PATH, or CUDA's usual place)")
	f.StringVar(&o.control, "mps-control", "", "path of nvidia-cuda-mps-control (default: on the PATH)")
	f.StringVar(&o.library, "nvml-library", "", "path of libnvidia-ml.so.1 (default: as the loader finds it)")
	f.StringVar(&o.workload, "workload", "", "a program that is run instead of the CUDA kernels, with a kernel's name and its arguments")
	f.StringVar(&o.proc, "proc", "/proc", "where processes are looked for")
	_ = f.MarkHidden("proc")
	c.AddCommand(&cobra.Command{
		Use: "mind FOLDER CONTROL GPU UUID", Hidden: true, Args: cobra.ExactArgs(4),
		RunE: func(_ *cobra.Command, a []string) error { return mind(os.Stdin, a[0], a[1], a[2], a[3]) },
	})
	return c
}

func run(ctx context.Context, o *options, out, errOut io.Writer) error {
	if o.duration < 100*time.Millisecond || o.duration > time.Hour || o.sampling < 5*time.Millisecond || o.sampling > o.duration {
		return fmt.Errorf("--duration goes from 100ms to 1h, --sampling from 5ms to --duration; %w", errUsage)
	}
	now := time.Now()
	if o.out == "" {
		o.out = "gpucheck-" + now.Format("20060102-150405")
	}
	c, why := o.look()
	if c != nil {
		defer func() { _ = c.lib.Close() }()
	}
	kernels, err := catalogue(c, o.kernels)
	if err != nil {
		return fmt.Errorf("%w; %w", err, errUsage)
	}
	if o.dryRun {
		n := len(kernels)
		pairs := n * (n + 1) / 2
		if c != nil {
			fmt.Fprintf(out, "GPU %d, %s, %.0f MiB: an MPS daemon of its own, no device setting changed.\n", c.Index, c.Model, c.MemMiB)
		}
		fmt.Fprintf(out, "%d kernels alone and in %d pairs, about %.0f minutes. Report: %s\n", n, pairs,
			max(1, (float64(n)+1.5*float64(pairs))*(o.duration.Minutes()+.1)), o.out)
		for _, w := range why {
			fmt.Fprintln(out, "It would refuse:", w)
		}
		return nil
	}
	if len(why) > 0 {
		return fmt.Errorf("%w: %s", errRefused, strings.Join(why, "; "))
	}
	m, err := o.measure(ctx, c, kernels, errOut)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted; everything it started has ended")
		}
		return err
	}
	r := describe(c, m)
	r.Date, r.DurationS, r.PeriodS = now.UTC().Format(time.RFC3339), o.duration.Seconds(), o.sampling.Seconds()
	r.Simulated, r.Workload = os.Getenv(gpusim.StateEnv) != "", "cuda"
	if o.workload != "" {
		r.Workload = filepath.Base(o.workload)
	}
	return r.tell(o, out)
}

// measure starts what is needed, measures, and ends all of it.
func (o *options) measure(ctx context.Context, c *card, kernels []Kernel, errOut io.Writer) (*measured, error) {
	base := os.TempDir()
	if len(base) > 60 { // a socket's path has at most 107 bytes
		base = "/tmp"
	}
	folder, err := os.MkdirTemp(base, "gpucheck-")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	tidied := func(terr error) { // what goes wrong in tidying up costs no figures
		if terr != nil {
			fmt.Fprintln(errOut, "gpucheck: tidy up:", terr)
		}
	}
	defer func() { tidied(os.RemoveAll(folder)) }()
	b := &bench{target: o.duration, program: func(k *Kernel) []string { return []string{o.workload, k.Name} }}
	if o.workload == "" {
		if err := compile(ctx, o.nvcc, folder, kernels); err != nil {
			return nil, err
		}
		b.program = func(k *Kernel) []string { return []string{filepath.Join(folder, k.Source)} }
	}
	b.service = newService(folder, o.control, c.order, c.UUID)
	defer func() { tidied(b.service.close()) }()
	if err := b.service.start(ctx, "/proc/self/exe"); err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(errOut, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if b.recorder, err = startRecorder(c.lib.Devices(), prolog.Dir(folder), c.order, c.UUID, o.sampling, log); err != nil {
		return nil, err
	}
	defer b.recorder.close()
	return b.measure(ctx, kernels, errOut)
}

// card is the GPU to be checked.
type card struct {
	nvml.Device
	lib   *nvml.Library
	order int // among the device files, as gres.conf and the agent count
	idle  nvml.Sample
}

// look finds the GPU, nil = there is none, and the programs that aren't given, and lists why this machine isn't fit.
func (o *options) look() (c *card, why []string) {
	if o.control = found(o.control, "nvidia-cuda-mps-control"); o.control == "" {
		why = append(why, "there is no nvidia-cuda-mps-control, which comes with the driver")
	}
	if o.nvcc = found(o.nvcc, "nvcc", os.Getenv("CUDA_HOME")+"/bin/nvcc", "/usr/local/cuda/bin/nvcc"); o.nvcc == "" && o.workload == "" {
		why = append(why, "there is no nvcc, which comes with CUDA (--nvcc names it)")
	}
	if pid := mpsRunning(o.proc); pid != 0 {
		why = append(why, fmt.Sprintf("an MPS program runs here already (process %d): end it first, or use another machine", pid))
	}
	c, err := pick(o.library, o.gpu)
	if err != nil {
		return nil, append(why, err.Error())
	}
	return c, append(why, c.unfit()...)
}
