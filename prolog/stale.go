package prolog

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

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

// stepName is how a job's step calls its process: "slurmstepd: [12.batch]".
var stepName = pattern.Lazy(`^slurmstepd: \[(\d+)[.\]]`)

// stepProgram is what a step runs. Debian has it as slurmstepd-wlm.
var stepProgram = pattern.Lazy(`^slurmstepd(-[a-z]+)?$`)

// StepOf returns the job of a process that is a job's step; 0 = it isn't one. dir is the process's folder of /proc. Any
// user can choose a process's name, so it must also run slurmstepd as root, or as the calling user.
func StepOf(dir string) int64 {
	info, err := os.Stat(dir)
	if err != nil {
		return 0
	}
	if of := info.Sys().(*syscall.Stat_t).Uid; of != 0 && int(of) != os.Geteuid() {
		return 0 // before its command line is read: see program
	}
	exe, _ := os.Readlink(filepath.Join(dir, "exe"))
	if !stepProgram().MatchString(filepath.Base(strings.TrimSuffix(exe, " (deleted)"))) {
		return 0
	}
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	return stepNamed(line)
}

// stepNamed is the job of the step that a command line names, 0 = it names none.
func stepNamed(line []byte) int64 {
	m := stepName().FindSubmatch(line)
	if m == nil {
		return 0
	}
	id, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		return 0
	}
	return id
}

// deepest bounds the walk from a process to its step.
const deepest = 64

// ancestors yields a process's parent, the parent of that, and so on. The row ends where a parent has ended. proc "" is
// /proc.
func ancestors(proc string, pid int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for range deepest {
			fields := statOf(proc, pid)
			if len(fields) < 2 {
				return
			}
			parent, err := strconv.Atoi(string(fields[1]))
			if err != nil || parent <= 1 || !yield(parent) {
				return
			}
			pid = parent
		}
	}
}

// StepAbove returns the job of the step that a process descends from; 0 = none is known. proc "" is /proc.
func StepAbove(proc string, pid int) int64 {
	for parent := range ancestors(proc, pid) {
		if job := StepOf(procDir(proc, parent)); job != 0 {
			return job
		}
	}
	return 0
}

// componentOf returns the job of a task of a heterogeneous job by the task's control group, or by what its step calls
// its processes; 0 = none is known. The job's user can't see more of the step, and could lie to themselves only.
func componentOf(proc string, task int) int64 {
	if job, _ := InGroup(procFile(proc, task, "cgroup")); job != 0 {
		return job
	}
	for parent := range ancestors(proc, task) {
		if job := stepNamed(procFile(proc, parent, "cmdline")); job != 0 {
			return job
		}
	}
	return 0
}
