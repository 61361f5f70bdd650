package prolog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// limit queries the controller for the memory limit of a job that is to share, and stores it with
// the job. If anything fails, the job starts without: a limit protects its neighbours.
func (h *Hook) limit(ctx context.Context, j *Job) error {
	if h.MemoryLimit != "profile" || h.Controller == nil || h.MPS == nil || len(j.GPUs) != 1 || !h.mayShare(j) {
		return nil
	}
	c, _ := card(h.Cards, j.GPUs[0])
	if !c.limits() {
		return nil
	}
	mib, err := h.Controller.MemoryLimit(ctx, j.JobID, j.User)
	switch {
	case err != nil:
		return fmt.Errorf("job %d goes without a memory limit: %w", j.JobID, err)
	case mib == 0 || float64(mib) >= c.MemMiB:
		return nil // it is to have what it wants, or all there is
	}
	j.MemLimitMiB = mib
	return h.Dir.change([]*Job{j}, func(kept *Job) bool { kept.MemLimitMiB = mib; return true })
}

// limitOf is the memory limit of a job with a share of so many percent, MiB; 0 = none.
func (h *Hook) limitOf(job int64, gpu int, share int64) int64 {
	c, _ := card(h.Cards, gpu)
	if !c.limits() {
		return 0
	}
	switch h.MemoryLimit {
	case "share":
		return int64(c.MemMiB) * share / 100
	case "generous":
		return int64(c.MemMiB) * min(100, 2*share) / 100
	case "profile":
		return h.Dir.limits(gpu)[job]
	}
	return 0
}

// limits reports whether MPS can hold a client to a part of the card's memory.
func (c Card) limits() bool { return c.volta() && c.MemMiB > 0 }

func (d Dir) limitsFile(gpu int) string { return filepath.Join(d.gpu(gpu), "limits.json") }

// limits are the memory limits of a GPU's jobs by number, MiB. Task prolog reads them as the job's
// user, without access to the jobs' files.
func (d Dir) limits(gpu int) map[int64]int64 {
	var out map[int64]int64
	if readJSON(d.limitsFile(gpu), &out) != nil {
		return nil
	}
	return out
}

// keepLimits stores the limits of the jobs on a GPU, and removes all other limits. The caller holds
// the GPU's lock.
func (d Dir) keepLimits(gpu int, jobs ...*Job) error {
	limits := map[int64]int64{}
	for _, j := range jobs {
		if j.MemLimitMiB > 0 {
			limits[j.JobID] = j.MemLimitMiB
		}
	}
	var err error
	if len(limits) == 0 {
		err = ignoreMissing(os.Remove(d.limitsFile(gpu)))
	} else {
		err = putJSON(d.limitsFile(gpu), limits, 0o644)
	}
	if err != nil {
		return fmt.Errorf("gpu %d: keep memory limits: %w", gpu, err)
	}
	return nil
}
