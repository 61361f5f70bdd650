package spool

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// inNamespace says that this is TestFileSystemThatIsFull, in a mount namespace of its
// own.
const inNamespace = "SPOOL_TEST_NAMESPACE"

// A real file system that is full: nothing is lost, and nothing half is left.
func TestFileSystemThatIsFull(t *testing.T) {
	if os.Getenv(inNamespace) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestFileSystemThatIsFull$", "-test.v")
		cmd.Env = append(os.Environ(), inNamespace+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		switch {
		case errors.Is(err, syscall.EPERM), strings.Contains(string(out), "--- SKIP"):
			t.Skip("needs root")
		case err != nil:
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir := t.TempDir()
	err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("none", dir, "tmpfs", 0, "size=128k,mode=700"))
	if errors.Is(err, syscall.EPERM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	s := open(t, &Spool{Dir: dir, Spare: filepath.Join(t.TempDir(), "spool")})
	// Somebody else fills most of it.
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, make([]byte, 60<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range int64(8) {
		add(t, s, record(i+1, gpuprof.MaxPoints))
	}
	onDisk, inMemory := s.folders[0].n, s.folders[1].n
	if onDisk == 0 || inMemory == 0 || onDisk+inMemory != 8 {
		t.Errorf("%d on disk, %d in memory", onDisk, inMemory)
	}
	if half, _ := filepath.Glob(filepath.Join(dir, ".*")); len(half) > 0 {
		t.Errorf("left behind: %v", half)
	}
	// Space again.
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	s.settle()
	if s.folders[0].n <= onDisk {
		t.Errorf("%d on disk before, %d after there is space", onDisk, s.folders[0].n)
	}
	s = open(t, &Spool{Dir: s.Dir, Spare: s.Spare})
	if s.Waiting() != 8 {
		t.Errorf("%d of 8 after a restart", s.Waiting())
	}
	for _, it := range s.items {
		if r, err := read(it.path()); err != nil || len(r.Series) != gpuprof.MaxPoints {
			t.Errorf("%s: %v", it.name, err)
		}
	}
}
