package prolog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// Hook is one node's hooks.
type Hook struct {
	Dir Dir
	MPS *MPS
	// Shard: GPUs are shared by gres/shard. A prolog then can't see whether a job
	// shares, so every job with one GPU gets a daemon; the task prolog knows.
	Shard bool
	// Percentage is what becomes of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, which Slurm
	// sets to the share: "off" (default) lifts the cap, since it slows jobs that
	// would fit side by side, "share" leaves it.
	Percentage string
	Now        func() time.Time
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
	if err := h.Dir.Begin(j); err != nil {
		return err
	}
	if h.MPS == nil || len(j.GPUs) != 1 || j.Percent == 0 && !h.Shard || j.Percent == 100 {
		return nil
	}
	return h.MPS.Ensure(ctx, j.GPUs[0], j.UID)
}

// Epilog closes the job's file and ends the daemon after the last sharer.
func (h *Hook) Epilog(ctx context.Context, get func(string) string) error {
	id, err := number(get("SLURM_JOB_ID"), 1)
	if err != nil {
		return fmt.Errorf("%w: SLURM_JOB_ID %.32q", ErrBadEnv, get("SLURM_JOB_ID"))
	}
	j, err := h.Dir.End(id, h.Now())
	if j == nil || h.MPS == nil {
		return err
	}
	errs := []error{err}
	for _, g := range j.GPUs {
		errs = append(errs, h.MPS.Release(ctx, g, func() ([]*Job, error) {
			jobs, err := List(h.Dir.Jobs())
			if len(jobs) > 0 {
				err = nil // one that can't be read doesn't matter beside others
			}
			return jobs, err
		}))
	}
	return errors.Join(errs...)
}

// TaskProlog prints the variables that a sharer's processes need, as Slurm reads
// them: export NAME=value.
func (h *Hook) TaskProlog(out io.Writer, get func(string) string) error {
	percent, _ := number(get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), 1)
	shards, _ := number(get("SLURM_SHARDS_ON_NODE"), 1)
	if h.MPS == nil || percent == 100 || shards == 100 || percent == 0 && shards == 0 {
		return nil
	}
	gpus, err := indexes(get("SLURM_JOB_GPUS"))
	if err != nil || len(gpus) != 1 {
		return nil // several GPUs: MPS isn't for this job
	}
	if _, err := fmt.Fprintf(out, "export CUDA_MPS_PIPE_DIRECTORY=%s\n", h.MPS.Pipe(gpus[0])); err != nil {
		return err
	}
	// The GPU's daemon knows this one GPU only, and a client counts from the
	// daemon's first.
	if _, err := fmt.Fprintln(out, "export CUDA_VISIBLE_DEVICES=0"); err != nil {
		return err
	}
	if h.Percentage != "share" {
		_, err = fmt.Fprintln(out, "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100")
	}
	return err
}

// Run does what a hook does with a deadline of its own: whatever hangs, it
// returns in time. Slurm's own timeout would drain the node.
func Run(deadline time.Duration, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("panic: %v", r)
			}
		}()
		done <- do(ctx)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(deadline + 100*time.Millisecond):
		// A disk that hangs can't be cancelled; the process ends without it.
		return errors.New("not done after " + deadline.String() + "; something hangs")
	}
}

// Kinds are the hooks by name.
var Kinds = []string{"prolog", "epilog", "taskprolog"}

// KindOf tells which hook a program called name is, e.g. slurmbridge-prolog;
// "" = none of them.
func KindOf(name string) string {
	for _, k := range Kinds {
		if name == k || name == "slurmbridge-"+k || name == strconv.Itoa(50)+"-slurmbridge-"+k {
			return k
		}
	}
	return ""
}

// Sharers lists the jobs that share GPU gpu, for those who ask.
func Sharers(jobs []*Job, gpu int) []*Job {
	return slices.DeleteFunc(slices.Clone(jobs), func(j *Job) bool { return !slices.Contains(j.GPUs, gpu) })
}
