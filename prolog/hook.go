package prolog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Hook is one node's hooks.
type Hook struct {
	Dir Dir
	MPS *MPS // nil = none on this node
	// Shard: GPUs are shared by gres/shard. A prolog then can't see whether a job
	// shares, so every job with one GPU gets a daemon; the task prolog knows.
	Shard bool
	// Percentage is what becomes of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, which Slurm
	// sets to the share: "off" (default) lifts the cap, since it slows jobs that
	// would fit side by side; "share" leaves it; "generous" sets twice the share.
	Percentage string
	// JobMap is dcgm-exporter's folder of jobs by GPU, "" = none.
	JobMap string
	// Cards are the node's GPUs, as far as they are known.
	Cards []Card
	Now   func() time.Time
}

// Prolog writes the job's file and has an MPS daemon ready for a sharer.
func (h *Hook) Prolog(ctx context.Context, get func(string) string) error {
	j, err := FromEnv(get, h.Now())
	if errors.Is(err, ErrNoGPU) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, g := range j.GPUs {
		c, _ := card(h.Cards, g)
		j.UUIDs = append(j.UUIDs, c.UUID)
	}
	// One thing that fails doesn't take the others with it: without a record there
	// can still be MPS.
	errs := []error{h.Dir.Begin(j)}
	for _, g := range j.GPUs {
		errs = append(errs, h.onGPU(ctx, g, func(jobs []*Job) error {
			if len(j.GPUs) > 1 || !h.mayShare(j) {
				return nil
			}
			if h.MPS == nil {
				return errors.New("there is no nvidia-cuda-mps-control on this node: jobs that share a GPU take turns")
			}
			others := slices.ContainsFunc(jobs, func(o *Job) bool { return o.JobID != j.JobID && h.mayShare(o) })
			return h.MPS.Ensure(ctx, g, j.UID, others)
		}))
	}
	return errors.Join(errs...)
}

// mayShare reports whether other jobs can be on j's GPU at the same time, as far
// as a prolog can see.
func (h *Hook) mayShare(j *Job) bool {
	return j.Percent > 0 && j.Percent < 100 || j.Percent == 0 && h.Shard
}

// onGPU does something about a GPU under its lock, with the jobs that are on it,
// once its job map is true.
func (h *Hook) onGPU(ctx context.Context, gpu int, do func(jobs []*Job) error) error {
	release, err := h.Dir.Lock(ctx, gpu)
	if err != nil {
		return err
	}
	defer release()
	// Read under the lock: others come and go.
	jobs, err := List(h.Dir.Jobs())
	if err != nil && len(jobs) == 0 {
		return err
	}
	jobs = Sharers(jobs, gpu)
	if h.JobMap != "" {
		at := gpu
		if c, ok := card(h.Cards, gpu); ok {
			at = c.NVMLIndex
		}
		err = writeJobMap(h.JobMap, at, jobs)
	} else {
		err = nil // a file that can't be read doesn't matter beside others
	}
	return errors.Join(err, do(jobs))
}

// Epilog closes the job's file and ends the daemon after the last sharer.
func (h *Hook) Epilog(ctx context.Context, get func(string) string) error {
	id, err := number(get("SLURM_JOB_ID"), 1)
	if err != nil {
		return fmt.Errorf("%w: SLURM_JOB_ID %.32q", ErrBadEnv, get("SLURM_JOB_ID"))
	}
	j, err := h.Dir.End(id, h.Now(), exit(get))
	// A job whose file is missing or damaged has had its GPUs all the same.
	gpus, _ := indexes(get("SLURM_JOB_GPUS"))
	if j != nil {
		gpus = j.GPUs
	}
	errs := []error{err}
	for _, g := range gpus {
		errs = append(errs, h.onGPU(ctx, g, func(jobs []*Job) error {
			if h.MPS == nil || len(jobs) > 0 {
				return nil
			}
			return h.MPS.Release(ctx, g)
		}))
	}
	return errors.Join(errs...)
}

// TaskProlog prints the variables that a sharer's processes need, as Slurm reads
// them: export NAME=value. Where the GPU's daemon isn't there it prints none: the
// job then computes without MPS, on the GPU that Slurm named.
func (h *Hook) TaskProlog(out io.Writer, get func(string) string) error {
	share, err := number(get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), 1)
	if err != nil {
		share, _ = number(get("SLURM_SHARDS_ON_NODE"), 1)
	}
	if share <= 0 || share >= 100 || h.MPS == nil {
		return nil
	}
	gpus, err := indexes(get("SLURM_JOB_GPUS"))
	if err != nil || len(gpus) != 1 {
		return nil // several GPUs: MPS isn't for this job
	}
	if !h.MPS.present(gpus[0]) {
		return fmt.Errorf("gpu %d: no MPS daemon; the job shares the GPU without", gpus[0])
	}
	var b strings.Builder
	fmt.Fprintf(&b, "export CUDA_MPS_PIPE_DIRECTORY=%s\n", h.MPS.Pipe(gpus[0]))
	// The GPU's daemon knows this one GPU only, and a client counts from the
	// daemon's first.
	fmt.Fprintln(&b, "export CUDA_VISIBLE_DEVICES=0")
	switch h.Percentage {
	case "share":
	case "generous":
		// NVIDIA's Multi-Process Service manual, on provisioning: for clients that
		// are not always busy, 100 % ÷ half their number.
		fmt.Fprintf(&b, "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d\n", min(100, 2*share))
	default:
		fmt.Fprintln(&b, "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100")
	}
	_, err = io.WriteString(out, b.String())
	return err
}
