// Command gpucheck tries slurmbridge's node side on a machine with an NVIDIA GPU
// and no Slurm: README.md says what for. contrib/gpucheck/run builds and starts it.
package main

import (
	"context"
	"encoding/json"
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

var errUsage = errors.New("see --help")

// options are what it is called with.
type options struct {
	gpu      string
	duration time.Duration // of a kernel alone
	sampling time.Duration // between the agent's samples
	kernels  []string      // of the catalogue; none = all
	demand   demand
	extent   extent
	out      string
	json     bool
	dryRun   bool
	nvcc     string
	control  string
	library  string
	workload string // instead of the CUDA kernels
	proc     string
}

const long = `gpucheck tries slurmbridge's node side on a machine with an NVIDIA GPU, without
Slurm. It builds small CUDA kernels with known demand, runs them under MPS alone, in
all pairs and in some triples, and records them as the node agent does. It writes
into the folder of --out:

  profiles.csv  what each kernel uses alone  } for slurmbridge replay
  pairs.csv     how much each slows another  } and slurmbridge interference score
  report.txt, report.json
                does NVML report what was asked of the GPU; slowdowns against the
                simulator's law; what sampling costs

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
	f.Float64Var(&o.demand.duty, "duty", 0.3, "of the bursty kernel: the part of its time in which it computes")
	f.DurationVar(&o.demand.period, "period", 200*time.Millisecond, "of the bursty kernel: time from burst to burst")
	f.Float64Var(&o.demand.mem, "memory", 0, "of the hungry kernel: what it allocates, MiB (default three tenths of the card)")
	f.IntVar(&o.extent.triples, "triples", 4, "how many triples to run")
	f.IntVar(&o.extent.repeats, "repeats", 5, "how often sampling's cost is measured, with and without")
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

// check refuses values that make no sense.
func (o *options) check() error {
	switch {
	case o.duration < 100*time.Millisecond || o.duration > time.Hour:
		return fmt.Errorf("--duration %v is not from 100ms to 1h; %w", o.duration, errUsage)
	case o.sampling < 5*time.Millisecond || o.sampling > o.duration:
		return fmt.Errorf("--sampling %v is not from 5ms to --duration; %w", o.sampling, errUsage)
	case o.extent.triples < 0 || o.extent.triples > 6 || o.extent.repeats < 0 || o.extent.repeats > 100:
		return fmt.Errorf("--triples goes from 0 to 6, --repeats from 0 to 100; %w", errUsage)
	}
	return nil
}

func run(ctx context.Context, o *options, out, errOut io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	now := time.Now()
	if o.out == "" {
		o.out = "gpucheck-" + now.Format("20060102-150405")
	}
	lib, c, err := o.open()
	mem := 16384.0 // for a plan without a card
	if c != nil {
		defer func() { _ = lib.Close() }()
		mem = c.MemMiB
	}
	kernels, kerr := catalogue(o.demand, mem, o.kernels)
	if kerr != nil {
		return fmt.Errorf("%w; %w", kerr, errUsage)
	}
	why := o.find()
	if pid := mpsRunning(o.proc); pid != 0 {
		why = append(why, fmt.Sprintf("an MPS program runs here already (process %d): end it first, or use another machine", pid))
	}
	if err != nil {
		why = append(why, err.Error())
	} else {
		why = append(why, unfit(lib, c, looks)...)
	}
	if o.dryRun {
		fmt.Fprint(out, plan(c, kernels, o.extent, o))
		for _, w := range why {
			fmt.Fprintln(out, "It would refuse:", w)
		}
		return nil
	}
	if len(why) > 0 {
		return fmt.Errorf("%w: %s", errRefused, strings.Join(why, "; "))
	}
	r, err := o.measure(ctx, lib, c, kernels, errOut)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted; everything it started has ended")
		}
		return err
	}
	r.Date, r.DurationS, r.PeriodS = now.UTC().Format(time.RFC3339), o.duration.Seconds(), o.sampling.Seconds()
	r.Simulated, r.Workload = os.Getenv(gpusim.StateEnv) != "", "cuda"
	if o.workload != "" {
		r.Workload = filepath.Base(o.workload)
	}
	return o.tell(r, out)
}

// tell writes the report and prints it.
func (o *options) tell(r *Report, out io.Writer) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := r.write(o.out); err != nil {
		return err
	}
	if o.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(out, "%s\nWritten to %s: profiles.csv, pairs.csv, report.txt, report.json\n", r.text(), o.out)
	}
	if len(r.Failures) > 0 {
		return fmt.Errorf("%d parts failed, the first: %s", len(r.Failures), r.Failures[0])
	}
	return nil
}

// looks are how often a GPU's use is read before it counts as idle.
const looks = 5

// find fills in the paths of programs that weren't given, and lists missing ones.
func (o *options) find() (why []string) {
	if o.control == "" {
		o.control = found("nvidia-cuda-mps-control")
	}
	if o.control == "" {
		why = append(why, "there is no nvidia-cuda-mps-control, which comes with the driver")
	}
	if o.workload != "" {
		return why
	}
	if o.nvcc == "" {
		cuda := os.Getenv("CUDA_HOME")
		if cuda != "" {
			cuda = filepath.Join(cuda, "bin")
		}
		o.nvcc = found("nvcc", cuda, "/usr/local/cuda/bin")
	}
	if o.nvcc == "" {
		why = append(why, "there is no nvcc, which comes with CUDA (--nvcc names it)")
	}
	return why
}

// open opens NVML and finds the GPU. c is nil where there is none.
func (o *options) open() (nvml.Library, *card, error) {
	lib, err := nvml.Open(o.library)
	if err != nil {
		return nil, nil, fmt.Errorf("there is no NVIDIA driver, or no GPU: %w", err)
	}
	c, err := pick(lib, o.gpu)
	if err != nil {
		return nil, nil, errors.Join(err, lib.Close())
	}
	return lib, &c, nil
}

// measure starts what is needed, measures, and ends all of it.
func (o *options) measure(ctx context.Context, lib nvml.Library, c *card, kernels []Kernel, errOut io.Writer) (*Report, error) {
	folder, err := workFolder()
	if err != nil {
		return nil, err
	}
	// What goes wrong in tidying up costs no figures.
	tidied := func(terr error) {
		if terr != nil {
			fmt.Fprintln(errOut, "gpucheck: tidy up:", terr)
		}
	}
	defer func() { tidied(os.RemoveAll(folder)) }()
	program := func(k *Kernel) []string { return []string{o.workload, k.Name} }
	if o.workload == "" {
		if err := compile(ctx, o.nvcc, folder, kernels); err != nil {
			return nil, err
		}
		program = func(k *Kernel) []string { return []string{filepath.Join(folder, k.Source)} }
	}
	s := newService(folder, o.control, c.order, c.UUID)
	defer func() { tidied(s.close()) }()
	if err := s.start(ctx, "/proc/self/exe"); err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(errOut, &slog.HandlerOptions{Level: slog.LevelWarn}))
	rec, err := startRecorder(lib, prolog.Dir(folder), c.order, c.UUID, o.sampling, log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rec.close() }()
	b := &bench{service: s, recorder: rec, program: program, target: o.duration}
	progress := newBar(errOut, steps(len(kernels), o.extent))
	defer progress.done()
	m, err := b.measure(ctx, kernels, o.extent, progress.at)
	if err != nil {
		return nil, err
	}
	return describe(c, m), nil
}

// workFolder makes a folder for MPS's sockets and the agent's job files. A socket's
// path has at most 107 bytes.
func workFolder() (string, error) {
	const most = 60
	base := os.TempDir()
	if len(base) > most {
		base = "/tmp"
	}
	folder, err := os.MkdirTemp(base, "gpucheck-")
	if err != nil {
		return "", fmt.Errorf("make a folder: %w", err)
	}
	return folder, nil
}
