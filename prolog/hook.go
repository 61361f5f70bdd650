package prolog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Hook is one node's hooks.
type Hook struct {
	Dir Dir
	MPS *MPS // nil = none on this node
	// Shard: GPUs are shared by gres/shard. A prolog then can't see whether a job
	// shares, so every job with one GPU gets a daemon, and a server with its first client; the task prolog knows.
	Shard bool
	// Controller is asked what CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is to hold a sharer to on Volta and later, by drivers
	// from release 495 on (CUDA 11.5): what its application needs and a part of what is left. An allocation beyond that
	// fails. nil = there are no limits.
	Controller *Controller
	// FrameworkEnv: a job that may share is told not to take the whole card at its start; see frameworkEnv.
	FrameworkEnv bool
	// Cards are the node's GPUs that are known.
	Cards []Card
	// Constrains: Slurm keeps each job's processes to the GPUs that it has.
	Constrains bool
	// HidesMemory: each job has a /dev/shm of its own, from where its processes don't reach an MPS server.
	HidesMemory bool
	// Contains: Slurm has a process of its own on each of a job's nodes for as long as the job is there.
	Contains bool
	// Proc is where processes are looked for; "" = /proc.
	Proc string
	Now  func() time.Time
}

// othersThan are those of a GPU's jobs beside j that may share it.
func (h *Hook) othersThan(j *Job, jobs []*Job) []*Job {
	return slices.DeleteFunc(slices.Clone(jobs), func(o *Job) bool { return o.JobID == j.JobID || !h.mayShare(o) })
}

// learn takes over which cards Slurm's numbers mean, where that is known: Slurm names MIG instances to its hooks, from
// 25.11 on all cards that it has found by itself, and the job's file has what its prolog knew.
func (h *Hook) learn(gpus []int, uuids []string) {
	if len(uuids) != len(gpus) {
		return
	}
	for k, uuid := range uuids {
		named := strings.HasPrefix(uuid, "GPU-") || strings.HasPrefix(uuid, "MIG-")
		for i := range h.Cards {
			if c := &h.Cards[i]; named && c.UUID == uuid {
				c.Index = gpus[k]
			} else if named && c.Index == gpus[k] {
				c.Index = unknown
			}
		}
	}
}

// named reports whether a card is named to jobs of shares by its UUID: beside MIG instances CUDA doesn't count as Slurm
// does.
func (h *Hook) named(c Card) bool { return c.UUID != "" && slices.ContainsFunc(h.Cards, Card.mig) }

// alone reports whether no process of a job can reach another GPU of the node than the job's.
func (h *Hook) alone() bool {
	return h.Constrains || len(slices.DeleteFunc(slices.Clone(h.Cards), func(c Card) bool { return c.Lost })) == 1
}

// refresh determines the state of the GPU's MPS server, stores it for all hooks, and marks the given jobs that lost
// their work with it. asked is the error of the query to the daemon, if it failed. The caller holds the GPU's lock.
func (h *Hook) refresh(ctx context.Context, gpu int, jobs []*Job) (s Server, asked, err error) {
	was := h.Dir.Server(gpu)
	s, lost, by := h.MPS.inspect(gpu, false)
	if len(by) > 0 && s.PID != 0 {
		s.Fault = h.Now() // until the daemon says otherwise, which it can from 550 on
	}
	if h.MPS.present(gpu) {
		c, _ := card(h.Cards, gpu)
		seen := s.PID
		s, asked = h.MPS.ask(ctx, gpu, s, c.Clients, h.Now())
		if seen != 0 && s.PID != seen {
			var last Server
			last, lost, by = h.MPS.inspect(gpu, true) // it ended in between
			s.Log, s.ServerLog = last.Log, last.ServerLog
		}
	}
	if lost || was.Fault.IsZero() && !s.Fault.IsZero() {
		err = h.Dir.victims(jobs, h.Now(), by)
	}
	if s != was {
		err = errors.Join(err, putJSON(h.Dir.gpu(gpu, serverFile), s, 0o644))
	}
	return s, asked, err
}

// mayShare reports whether other jobs can be on j's GPU at the same time, from what a prolog can see.
func (h *Hook) mayShare(j *Job) bool {
	return j.Sharer() || j.Percent == 0 && h.Shard
}

// onGPU runs do under a GPU's lock, with the jobs that are on it. Its error names the GPU.
func (h *Hook) onGPU(ctx context.Context, gpu int, do func(jobs []*Job) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("gpu %d: %w", gpu, err)
		}
	}()
	release, err := h.Dir.Lock(ctx, gpu)
	if err != nil {
		return err
	}
	defer release()
	// Read under the lock: other jobs come and go.
	jobs, err := List(h.Dir.Jobs())
	if err != nil && len(jobs) == 0 {
		return err
	}
	jobs, stale := h.closeStale(slices.DeleteFunc(jobs, func(j *Job) bool { return !slices.Contains(j.GPUs, gpu) }))
	return errors.Join(stale, do(jobs)) // an unreadable file doesn't matter if the rest can be read
}

// How long a job without processes may stay before it counts as one that ended without an epilog. With
// PrologFlags=Contain Slurm has a process on each of a job's nodes for as long as the job is there. Otherwise a session
// of salloc has none between two commands, and a job of several nodes none on all but the first: no hook can ask Slurm
// whether such a job is still there, and one that ended unseen keeps its MPS daemon for a day. The shortest time
// applies where the GPU's shares show that a job must be gone.
const (
	contained   = 10 * time.Minute
	uncontained = 24 * time.Hour
	overfull    = time.Minute
)

// closeStale closes a GPU's jobs that ended without an epilog, as Slurm's daemon was killed. It returns the jobs that
// are there, and an error that names unreadable ones.
func (h *Hook) closeStale(jobs []*Job) ([]*Job, error) {
	now, sum, limit := h.Now(), 0, uncontained
	if h.Contains {
		limit = contained
	}
	for _, j := range jobs {
		sum += j.Percent
		if !h.mayShare(j) {
			sum += 100 - j.Percent
		}
	}
	if sum > 100 {
		limit = overfull
	}
	var there []*Job
	var errs []error
	steps := sync.OnceValue(func() (of []int64) { // whose steps run on this node
		for _, pid := range pids(h.Proc) {
			of = append(of, StepOf(procDir(h.Proc, pid)))
		}
		return of
	})
	for _, j := range jobs {
		if now.Sub(j.Start) < limit || slices.Contains(steps(), j.JobID) {
			there = append(there, j)
			continue
		}
		if moved, err := h.Dir.End(j.JobID, now); moved != nil || err != nil {
			errs = append(errs, errors.Join(fmt.Errorf("job %d ended without an epilog", j.JobID), err))
		}
	}
	return there, errors.Join(errs...)
}
