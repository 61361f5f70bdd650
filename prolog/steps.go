package prolog

import (
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

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
