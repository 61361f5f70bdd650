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

// stepName matches the title of a step's process: "slurmstepd: [12.batch]".
var stepName = pattern.Lazy(`^slurmstepd: \[(\d+)[.\]]`)

// stepProgram matches the program of a step. Debian calls it slurmstepd-wlm.
var stepProgram = pattern.Lazy(`^slurmstepd(-[a-z]+)?$`)

// StepOf returns the job of a slurmstepd process, 0 if the process isn't one. dir is the process's folder of /proc.
// Since users can choose a process's title, the process must also run slurmstepd as root or as the calling user.
func StepOf(dir string) int64 {
	info, err := os.Stat(dir)
	if err != nil {
		return 0
	}
	if of := info.Sys().(*syscall.Stat_t).Uid; of != 0 && int(of) != os.Geteuid() {
		return 0 // reading its command line could block: see short
	}
	exe, _ := os.Readlink(filepath.Join(dir, "exe"))
	if !stepProgram().MatchString(filepath.Base(strings.TrimSuffix(exe, " (deleted)"))) {
		return 0
	}
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	return stepNamed(line)
}

// stepNamed returns the job in a step's title, 0 if there is none.
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

// deepest bounds the number of ancestors.
const deepest = 64

// ancestors yields a process's parent, grandparent and so on, up to a parent that has ended. proc "" is /proc.
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

// StepAbove returns the job of the step that started a process, 0 if unknown. proc "" is /proc.
func StepAbove(proc string, pid int) int64 {
	for parent := range ancestors(proc, pid) {
		if job := StepOf(procDir(proc, parent)); job != 0 {
			return job
		}
	}
	return 0
}

// componentOf returns the job of a task of a heterogeneous job, by the task's control group or the title of its step; 0
// if unknown. The task runs as the job's user, who can't verify that a title is slurmstepd's; a false title would
// deceive only its own author.
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
