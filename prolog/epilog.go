package prolog

import (
	"context"
	"errors"
	"fmt"
)

// Epilog closes the job's file and ends the daemon after the last sharer.
func (h *Hook) Epilog(ctx context.Context, get func(string) string) error {
	id, err := number(get("SLURM_JOB_ID"), 1)
	if err != nil {
		return fmt.Errorf("%w: SLURM_JOB_ID %.32q", ErrBadEnv, get("SLURM_JOB_ID"))
	}
	// Even if its file is missing or damaged, the job had GPUs.
	gpus, _ := indexes(get("SLURM_JOB_GPUS"))
	uid, _ := number(get("SLURM_JOB_UID"), 0)
	errs := []error{h.lost(id)}
	j, err := h.Dir.End(id, h.Now())
	errs = append(errs, err)
	if j != nil {
		gpus = j.GPUs
		h.learn(j.GPUs, j.UUIDs)
	}
	for _, g := range gpus {
		errs = append(errs, h.onGPU(ctx, g, func(jobs []*JobFile) error {
			var err error
			if j != nil && j.MPS && len(jobs) > 0 && h.MPS != nil {
				err = h.MPS.endClients(ctx, g, h.outlived(j), func(pid int) bool { return h.outlives(j, pid) })
			}
			err = errors.Join(err, h.afterwards(ctx, g, jobs))
			if j == nil && len(jobs) == 0 && h.MPS != nil {
				// run_dir may have been emptied while the daemon ran: no folder leads to the daemon any more.
				if n := h.MPS.killOf(g, uid, controlName, serverName); n > 0 {
					err = errors.Join(err,
						fmt.Errorf("the folders of its MPS daemon are gone, %d of the daemon's processes were killed", n))
				}
			}
			return err
		}))
	}
	return errors.Join(errs...)
}

// lost marks an ending job if its MPS server was lost, before End moves the job's file. It queries no daemon and takes
// no lock, so that the record is never held up.
func (h *Hook) lost(id int64) error {
	j, err := ReadJob(h.Dir.running(id))
	if h.MPS == nil || err != nil || len(j.GPUs) != 1 || !j.MPS {
		return nil
	}
	if _, lost, by := h.MPS.inspect(j.GPUs[0], false); lost {
		return h.Dir.victims([]*JobFile{j}, h.Now(), by)
	}
	return nil
}

// afterwards releases the GPU's daemon if no jobs are left, otherwise it updates the server's state.
func (h *Hook) afterwards(ctx context.Context, gpu int, jobs []*JobFile) error {
	switch {
	case h.MPS == nil:
		return nil
	case len(jobs) == 0:
		return h.MPS.Release(ctx, gpu)
	case h.Dir.Server(gpu) == Server{}:
		return nil // a whole GPU's job
	}
	_, asked, err := h.refresh(ctx, gpu, jobs)
	return errors.Join(asked, err)
}

// outlived returns the processes that the job left behind: processes with the job's JobEnv that are in no other job.
// There are none with ProctrackType=proctrack/cgroup.
func (h *Hook) outlived(j *JobFile) (found []int) {
	for _, pid := range pids(h.Proc) {
		if h.outlives(j, pid) {
			found = append(found, pid)
		}
	}
	return found
}

// outlives reports whether the job left this process behind.
func (h *Hook) outlives(j *JobFile, pid int) bool {
	if owner(h.Proc, pid) != int64(j.UID) || !has(h.Proc, pid, fmt.Sprintf("%s=%d", JobEnv, j.JobID)) {
		return false
	}
	job, sluid := InGroup(procFile(h.Proc, pid, "cgroup"))
	above := StepAbove(h.Proc, pid)
	return (job == 0 || job == j.JobID) && (sluid == "" || sluid == j.SLUID) && (above == 0 || above == j.JobID)
}
