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

// killIf kills a process if is still holds for it. Between a look at /proc and the signal a process may end and its pid
// be reused, so FindProcess pins it by a pidfd (Linux 5.4) before is looks again.
func killIf(pid int, is func() bool) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer func() { _ = p.Release() }()
	return is() && p.Kill() == nil
}

// pids returns the pids of all processes except 1 and this one.
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

// procFile reads a file of a process's folder, empty if the process has gone.
func procFile(proc string, pid int, name string) []byte {
	text, _ := os.ReadFile(filepath.Join(procDir(proc, pid), name))
	return text
}

// has reports whether a process was started with a variable, NAME=value.
func has(proc string, pid int, variable string) bool {
	return slices.ContainsFunc(bytes.Split(procFile(proc, pid, "environ"), []byte{0}),
		func(kv []byte) bool { return string(kv) == variable })
}

// statOf returns the fields of a process's stat from the state on (proc(5)). The name before them may contain blanks
// and brackets.
func statOf(proc string, pid int) [][]byte {
	stat := procFile(proc, pid, "stat")
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
}

// short reports whether a process has the name of an MPS program as the kernel shortens it. It is checked before
// reading the command line or environment, which blocks while the process's memory map is locked, as in a page fault on
// a dead file system.
func short(proc string, pid int) bool {
	return strings.TrimSpace(string(procFile(proc, pid, "comm"))) == shortName
}

// program returns which MPS program a process was started as, "" if it has gone or is another program.
func program(proc string, pid int) string {
	if !short(proc, pid) {
		return ""
	}
	name, _, _ := strings.Cut(string(procFile(proc, pid, "cmdline")), "\x00")
	return name[strings.LastIndexByte(name, '/')+1:]
}

// owner returns the effective uid of a process, −1 if it has gone.
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

// exiting is PF_EXITING (linux/sched.h): the kernel sets it before it closes an ending process's sockets.
const exiting = 0x4

// started returns a process's start in ticks since boot, 0 if it has gone or is ending. With the pid it identifies a
// process even if the pid is reused.
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
