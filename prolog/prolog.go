package prolog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Prolog writes the job's file and, for a sharer, starts the GPU's MPS daemon.
func (h *Hook) Prolog(ctx context.Context, get func(string) string) error {
	j, err := FromEnv(get, h.Now())
	if errors.Is(err, ErrNoGPU) {
		return nil
	}
	if err != nil {
		return err
	}
	h.learn(j.GPUs, strings.Split(get("CUDA_VISIBLE_DEVICES"), ","))
	// One failure doesn't stop the rest: MPS works without a record.
	var errs []error
	for _, g := range j.GPUs {
		c, known := card(h.Cards, g)
		j.UUIDs = append(j.UUIDs, c.UUID)
		if !known && len(h.Cards) > 0 {
			errs = append(errs, fmt.Errorf("gpu %d: Slurm's number can't be matched to a card with certainty; job %d goes "+
				"without MPS and without a record of its use", g, j.JobID))
		}
	}
	errs = append(errs, h.Dir.Begin(j))
	// No lock is held here, so other hooks don't wait for the controller.
	errs = append(errs, h.askTerms(ctx, j))
	for _, g := range j.GPUs {
		errs = append(errs, h.onGPU(ctx, g, func(jobs []*JobFile) error {
			others := h.othersThan(j, jobs)
			var err, given, left error
			if len(others) == 0 && h.MPS != nil && !j.MPS { // else the daemon is j's, from a first call of its prolog
				// A daemon and its server outlived the epilog of their last job. The server may keep this job from the GPU.
				_, left = h.MPS.clear(g)
			}
			if len(j.GPUs) > 1 {
				return left
			}
			c, known := card(h.Cards, g)
			switch {
			case !h.mayShare(j):
			case !known && len(h.Cards) > 0: // as said above
			case c.Exclusive && h.HidesMemory:
				// The job's processes can't reach a server, which would have the GPU to itself.
				err = errors.New("it is in the mode EXCLUSIVE_PROCESS, and jobs have a /dev/shm of their own, where they don't " +
					"reach an MPS server: jobs that share it fail")
			case h.MPS == nil:
				err = errors.New("nvidia-cuda-mps-control or nvidia-cuda-mps-server isn't on this node: jobs that share a GPU " +
					"take turns")
			default:
				err = h.share(ctx, g, j, others)
			}
			if h.mayShare(j) && c.Exclusive && len(others) > 0 {
				err = errors.Join(err, h.barred(j))
			}
			if h.mayShare(j) || h.named(c) { // named: Slurm passes only the number of an instance
				given = h.handOut(g, j)
			}
			return errors.Join(left, given, err)
		}))
	}
	if len(j.GPUs) == 1 && j.MPS && j.Sharer() && !h.MPS.multiuser(j.GPUs[0]) {
		errs = append(errs, h.awaitServer(ctx, j.GPUs[0], j))
	}
	return errors.Join(errs...)
}

// awaitServer waits until j's MPS server takes clients, so that a server that fails at its start fails here and not in
// the job's first process. If the server fails, j goes without MPS. Each query holds the GPU's lock, because the daemon
// loses some of several simultaneous queries (tried on 470 to 555). The lock is free between queries: jobs that start
// together wait in parallel.
func (h *Hook) awaitServer(ctx context.Context, gpu int, j *JobFile) error {
	wait, cancel := context.WithTimeout(ctx, 2*h.MPS.Answer)
	defer cancel()
	for {
		ready, err := h.askServer(wait, gpu, j.UID)
		switch {
		case ready:
			return nil
		case wait.Err() != nil:
			return errInitialises
		case err != nil:
			return errors.Join(fmt.Errorf("start server of user %d: %w", j.UID, err), h.withoutServer(ctx, gpu, j))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// askServer is MPS.serves under the GPU's lock.
func (h *Hook) askServer(ctx context.Context, gpu int, uid uint32) (bool, error) {
	release, err := h.Dir.Lock(ctx, gpu)
	if err != nil {
		return false, err
	}
	defer release()
	return h.MPS.serves(ctx, gpu, uid)
}

// withoutServer marks j as a job without MPS because its server failed to start. No work is lost: none of j's processes
// had started.
func (h *Hook) withoutServer(ctx context.Context, gpu int, j *JobFile) error {
	return h.onGPU(ctx, gpu, func(jobs []*JobFile) error {
		j.MPS = false
		err := h.Dir.change([]*JobFile{j}, func(j *JobFile) bool {
			j.MPS = false
			j.MPSFault = time.Time{}
			j.MPSFaultBy = nil
			return true
		})
		err = errors.Join(err, h.handOut(gpu, j))
		if c, _ := card(h.Cards, gpu); c.Exclusive && len(h.othersThan(j, jobs)) > 0 {
			err = errors.Join(err, h.barred(j))
		}
		return err
	})
}

// barred marks a job that goes without MPS on an EXCLUSIVE_PROCESS GPU with other jobs. It can't get a context, so it
// is treated as a victim of a server fault and runs again.
func (h *Hook) barred(j *JobFile) error {
	return h.Dir.change([]*JobFile{j}, func(j *JobFile) bool {
		if j.MPS || !j.MPSFault.IsZero() {
			return false
		}
		j.MPSFault = h.Now()
		return true
	})
}

// share prepares the GPU's MPS daemon for j, where others are the GPU's other sharers. If the server has failed or is
// full, j computes without MPS; the task prolog sees to that. The caller holds the GPU's lock.
func (h *Hook) share(ctx context.Context, gpu int, j *JobFile, others []*JobFile) error {
	var errs []error
	if !h.MPS.multiuser(gpu) && slices.ContainsFunc(others, func(o *JobFile) bool { return o.MPS && o.UID != j.UID }) {
		// Hand-written shares put j next to another user's job. j's processes would wait for the server until that job ends;
		// without MPS the two jobs take turns.
		return fmt.Errorf("the MPS server serves another user; job %d goes without", j.JobID)
	}
	ready := false
	if len(others) > 0 {
		// Ensure deals with a daemon that doesn't answer.
		s, asked, err := h.refresh(ctx, gpu, others)
		errs = append(errs, err)
		if !s.Takes() {
			return errors.Join(append(errs, goesWithout(s, j))...)
		}
		ready = asked == nil && s.PID != 0 && h.MPS.multiuser(gpu)
	}
	if !ready {
		if err := h.MPS.Ensure(ctx, gpu, j.UID, len(others) > 0, j.Sharer()); err != nil {
			return errors.Join(append(errs, err)...)
		}
		s, asked, err := h.refresh(ctx, gpu, others)
		errs = append(errs, asked, err)
		if len(others) > 0 && !s.Takes() {
			return errors.Join(append(errs, goesWithout(s, j))...)
		}
	}
	if h.MPS.Multiuser && !h.MPS.multiuser(gpu) && len(others) == 0 {
		errs = append(errs, fmt.Errorf("%w: only jobs of one user at a time share it", errOneUser))
	}
	j.MPS = true
	return errors.Join(append(errs, h.Dir.change([]*JobFile{j}, func(j *JobFile) bool { j.MPS = true; return true }))...)
}

func goesWithout(s Server, j *JobFile) error {
	why := "has as many clients as it serves"
	if !s.Fault.IsZero() {
		why = "has faulted and isn't renewed yet"
	}
	return fmt.Errorf("the MPS server %s; job %d goes without", why, j.JobID)
}

// askTerms gets j's terms from the controller and stores them with the job. If that fails, j starts without a memory
// limit; the limit only protects its neighbours.
func (h *Hook) askTerms(ctx context.Context, j *JobFile) error {
	if h.Controller == nil || h.MPS == nil || len(j.GPUs) != 1 || !h.mayShare(j) {
		return nil
	}
	c, _ := card(h.Cards, j.GPUs[0])
	if !c.MemLimits || c.MemMiB <= 0 {
		return nil // MPS can't hold a client to a part of the memory
	}
	terms, err := h.Controller.Terms(ctx, j.JobID, j.User)
	if err != nil {
		return fmt.Errorf("job %d goes without a memory limit: %w", j.JobID, err)
	}
	if terms.MiB >= int64(c.MemMiB) {
		terms.MiB = 0 // all there is
	}
	if terms == (Terms{}) {
		return nil
	}
	take := func(j *JobFile) bool {
		j.MemLimitMiB = terms.MiB
		j.ByHand = terms.ByHand
		return true
	}
	take(j)
	return h.Dir.change([]*JobFile{j}, take)
}
