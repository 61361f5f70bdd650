package prolog

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Programs of MPS.
const (
	controlName = "nvidia-cuda-mps-control"
	serverName  = "nvidia-cuda-mps-server"
	shortName   = "nvidia-cuda-mps" // of both, which the kernel cuts after 15 characters
)

// killIf ends a process with SIGKILL if it is still the one that is meant: between a look at /proc and the signal it
// may have ended, and its number be another's. FindProcess holds it, by a pidfd (Linux 5.4), while is looks again.
func killIf(pid int, is func() bool) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer func() { _ = p.Release() }()
	return is() && p.Kill() == nil
}

// pids are the processes, but for the first and this one.
func pids(proc string) (out []int) {
	entries, _ := os.ReadDir(cmp.Or(proc, "/proc"))
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid > 1 && pid != os.Getpid() {
			out = append(out, pid)
		}
	}
	return out
}

// procDir is a process's folder of /proc.
func procDir(proc string, pid int) string {
	return filepath.Join(cmp.Or(proc, "/proc"), strconv.Itoa(pid))
}

// procFile is what a file of a process says, nothing of a process that has gone.
func procFile(proc string, pid int, name string) []byte {
	text, _ := os.ReadFile(filepath.Join(procDir(proc, pid), name))
	return text
}

// has reports whether a process was started with a variable, NAME=value.
func has(proc string, pid int, variable string) bool {
	return slices.ContainsFunc(bytes.Split(procFile(proc, pid, "environ"), []byte{0}),
		func(kv []byte) bool { return string(kv) == variable })
}

// statOf are the fields of a process's stat from the state on (proc(5)). The name before may hold anything, blanks and
// brackets too.
func statOf(proc string, pid int) [][]byte {
	stat := procFile(proc, pid, "stat")
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
}

// short reports whether a process has the short name of MPS's programs, which the kernel keeps. It is read first: who
// reads a process's command line or environment waits while the memory of that process is locked, as it is in a page
// fault on a dead file system.
func short(proc string, pid int) bool {
	return strings.TrimSpace(string(procFile(proc, pid, "comm"))) == shortName
}

// program is the name of the program of MPS that a process was started as, "" = it has gone, or is another.
func program(proc string, pid int) string {
	if !short(proc, pid) {
		return ""
	}
	name, _, _ := strings.Cut(string(procFile(proc, pid, "cmdline")), "\x00")
	return name[strings.LastIndexByte(name, '/')+1:]
}

// owner is the user that a process runs as, −1 = it has gone.
func owner(proc string, pid int) int64 {
	for line := range strings.Lines(string(procFile(proc, pid, "status"))) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "Uid:" {
			if uid, err := strconv.ParseUint(f[2], 10, 32); err == nil {
				return int64(uid)
			}
		}
	}
	return -1
}

// exiting is the kernel's mark on a process that is ending (PF_EXITING, linux/sched.h):
// it is set before the process's sockets are closed.
const exiting = 0x4

// started is when a process began, in ticks since the boot, 0 = it has gone or is going.
// It distinguishes the process that was meant from a later one with the same pid.
func started(proc string, pid int) uint64 {
	f := statOf(proc, pid) // with the flags in place 6, and the time in place 19
	if len(f) < 20 || string(f[0]) == "Z" {
		return 0
	}
	flags, err1 := strconv.ParseUint(string(f[6]), 10, 64)
	ticks, err2 := strconv.ParseUint(string(f[19]), 10, 64)
	if err1 != nil || err2 != nil || flags&exiting != 0 {
		return 0
	}
	return ticks
}
