package prolog

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// Programs of MPS.
const (
	controlName = "nvidia-cuda-mps-control"
	serverName  = "nvidia-cuda-mps-server"
)

// kill ends with SIGKILL the processes of the named programs that belong to the
// GPU's pipe directory, and returns how many there were. They are known by their
// program's name and by the environment they were started with: a pid file may be
// of a process that has long been another.
func (m *MPS) kill(gpu int, names ...string) int {
	proc := cmp.Or(m.Proc, "/proc")
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0
	}
	mark := []byte("CUDA_MPS_PIPE_DIRECTORY=" + m.Pipe(gpu))
	n := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 1 || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		program, _, _ := bytes.Cut(line, []byte{0})
		if !slices.Contains(names, filepath.Base(string(program))) {
			continue
		}
		env, err := os.ReadFile(filepath.Join(proc, e.Name(), "environ"))
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(kv []byte) bool { return bytes.Equal(kv, mark) }) {
			continue
		}
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			n++
		}
	}
	return n
}
