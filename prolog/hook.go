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

// Hook runs the hooks of one node.
type Hook struct {
	Dir Dir
	MPS *MPS // nil = none on this node
	// Shard: GPUs are shared by gres/shard, so the prolog can't see whether a job shares. Every job with one GPU gets a
	// daemon, and a server with its first client; the task prolog sees the shares.
	Shard bool
	// Controller sets CUDA_MPS_PINNED_DEVICE_MEM_LIMIT on Volta and later with drivers from 495 (CUDA 11.5) on: what the
	// job's application needs plus a part of what is left. Allocations beyond it fail. nil = no limits.
	Controller *Controller
	// FrameworkEnv: jobs that may share keep JAX and TensorFlow from taking the whole card; see frameworkEnv.
	FrameworkEnv bool
	// Cards are the node's known GPUs.
	Cards []Card
	// Constrains: Slurm confines each job's processes to the job's GPUs.
	Constrains bool
	// HidesMemory: each job has its own /dev/shm, in which its processes can't reach an MPS server.
	HidesMemory bool
	// Contains: while a job runs, Slurm has an extern step on each of its nodes (PrologFlags=Contain).
	Contains bool
	// Proc is the proc file system; "" = /proc.
	Proc string
	Now  func() time.Time
}

// othersThan returns the jobs on j's GPU, without j, that may share the GPU.
func (h *Hook) othersThan(j *JobFile, jobs []*JobFile) []*JobFile {
	return slices.DeleteFunc(slices.Clone(jobs), func(o *JobFile) bool { return o.JobID == j.JobID || !h.mayShare(o) })
}

// learn trusts UUIDs that Slurm passed to the prolog over numbers derived from its configuration. Slurm passes the
// UUIDs of MIG instances, from 25.11 on of all cards that AutoDetect found; the job's file keeps them for the epilog.
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

// named reports whether jobs of shares get the card's UUID: on nodes with MIG instances CUDA numbers cards differently
// from Slurm.
func (h *Hook) named(c Card) bool { return c.UUID != "" && slices.ContainsFunc(h.Cards, Card.mig) }

// alone reports whether a job's processes can reach no GPU of the node but the job's own.
func (h *Hook) alone() bool {
	return h.Constrains || len(slices.DeleteFunc(slices.Clone(h.Cards), func(c Card) bool { return c.Lost })) == 1
}

// refresh updates the stored state of the GPU's MPS server and marks the given jobs if they lost their work with the
// server. asked is the error of querying the daemon. The caller holds the GPU's lock.
func (h *Hook) refresh(ctx context.Context, gpu int, jobs []*JobFile) (s Server, asked, err error) {
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
			s.Log = last.Log
			s.ServerLog = last.ServerLog
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

// mayShare reports whether, as far as the prolog can see, other jobs can be on j's GPU at the same time.
func (h *Hook) mayShare(j *JobFile) bool {
	return j.Sharer() || j.Percent == 0 && h.Shard
}

// onGPU calls do with the GPU's jobs while it holds the GPU's lock. Its error names the GPU.
func (h *Hook) onGPU(ctx context.Context, gpu int, do func(jobs []*JobFile) error) (err error) {
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
	// Jobs come and go, so they are read under the lock.
	jobs, err := List(h.Dir.Jobs())
	if err != nil && len(jobs) == 0 {
		return err
	}
	jobs, stale := h.closeStale(slices.DeleteFunc(jobs, func(j *JobFile) bool { return !slices.Contains(j.GPUs, gpu) }))
	return errors.Join(stale, do(jobs)) // an unreadable file doesn't matter if the rest can be read
}

// How long a job without processes may be listed before it counts as ended without an epilog. With PrologFlags=Contain
// Slurm keeps a process on each of a running job's nodes. Without it, a session of salloc has no process between two
// commands, and a job of several nodes may have processes on the first node only. A hook can't ask Slurm whether such a
// job still runs, so a job that ended without an epilog keeps its MPS daemon for a day. The shortest limit applies when
// the GPU's shares add up to more than a GPU: then one of the jobs has certainly ended.
const (
	contained   = 10 * time.Minute
	uncontained = 24 * time.Hour
	overfull    = time.Minute
)

// closeStale closes the GPU's jobs that ended without an epilog because slurmd was killed. It returns the jobs that
// remain; the error names the closed ones.
func (h *Hook) closeStale(jobs []*JobFile) ([]*JobFile, error) {
	now := h.Now()
	sum := 0
	limit := uncontained
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
	var there []*JobFile
	var errs []error
	steps := sync.OnceValue(func() (of []int64) { // jobs with a step on this node
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
