package prolog

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Programs of MPS.
const (
	controlName = "nvidia-cuda-mps-control"
	serverName  = "nvidia-cuda-mps-server"
)

// kill ends with SIGKILL the processes of the named programs that belong to the
// GPU's pipe directory, and returns how many there were.
func (m *MPS) kill(gpu int, names ...string) int {
	n := 0
	for _, pid := range m.running(gpu, names...) {
		if killIf(pid, func() bool { return slices.Contains(m.running(gpu, names...), pid) }) {
			n++
		}
	}
	return n
}

// killIf ends a process with SIGKILL if it is still the one that is meant: between a look at
// /proc and the signal it may have ended, and its number be another's. It is held by a
// descriptor (pidfd, Linux 5.3) while is looks again.
func killIf(pid int, is func() bool) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) {
		return is() && syscall.Kill(pid, syscall.SIGKILL) == nil
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return is() && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// running are the processes of the named programs that belong to the GPU's pipe
// directory. They are known by their program's name and by the environment they were
// started with: a pid file may be of a process that has long been another.
func (m *MPS) running(gpu int, names ...string) (found []int) {
	proc := cmp.Or(m.Proc, "/proc")
	mark := []byte("CUDA_MPS_PIPE_DIRECTORY=" + m.Pipe(gpu))
	for _, pid := range pids(proc) {
		if pid <= 1 || pid == os.Getpid() || !slices.Contains(names, program(proc, pid)) {
			continue
		}
		env, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "environ"))
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(kv []byte) bool { return bytes.Equal(kv, mark) }) {
			continue
		}
		found = append(found, pid)
	}
	return found
}

// pids are the processes there are.
func pids(proc string) (out []int) {
	entries, err := os.ReadDir(cmp.Or(proc, "/proc"))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// program is the name of the program a process was started as, "" = it has gone.
func program(proc string, pid int) string {
	line, err := os.ReadFile(filepath.Join(cmp.Or(proc, "/proc"), strconv.Itoa(pid), "cmdline"))
	if err != nil || len(line) == 0 {
		return ""
	}
	name, _, _ := bytes.Cut(line, []byte{0})
	return filepath.Base(string(name))
}

// exiting is the kernel's mark on a process that is ending (PF_EXITING, linux/sched.h):
// it is set before the process's sockets are closed.
const exiting = 0x4

// started is when a process began, in ticks since the boot, 0 = it has gone or is going.
// It distinguishes the process that was meant from a later one with the same pid.
func started(proc string, pid int) uint64 {
	stat, err := os.ReadFile(filepath.Join(cmp.Or(proc, "/proc"), strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	// The name may hold blanks and brackets; the state follows it, 6 fields on stand the
	// flags and 19 on the time (proc(5)).
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 20 || string(f[0]) == "Z" {
		return 0
	}
	if flags, err := strconv.ParseUint(string(f[6]), 10, 64); err != nil || flags&exiting != 0 {
		return 0
	}
	n, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
