package prolog

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// A folder that is one user's to look into is nobody else's, and stays root's.
func TestOnlyFor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root: it looks as other users")
	}
	top, err := os.MkdirTemp("/run", "slurmbridge-acl-")
	must(t, err)
	defer os.RemoveAll(top)
	must(t, os.Chmod(top, 0o755))
	dir := filepath.Join(top, "pipe")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "control"), nil, 0o666))
	as := func(uid uint32, name string, args ...string) bool {
		cmd := exec.Command(name, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd.Run() == nil
	}
	const ann, bob = 12345, 12346
	for range 2 { // also the second time
		must(t, onlyFor(dir, ann))
		for uid, may := range map[uint32]bool{0: true, ann: true, bob: false} {
			if got := as(uid, "cat", filepath.Join(dir, "control")); got != may {
				t.Errorf("user %d may look: %v", uid, got)
			}
		}
		if as(ann, "touch", filepath.Join(dir, "control.log")) {
			t.Error("the user may write where root's daemon does")
		}
	}
	must(t, onlyFor(dir, bob))
	if as(ann, "ls", dir) || !as(bob, "ls", dir) {
		t.Error("the next user's folder is still the last one's")
	}
	info, err := os.Stat(dir)
	must(t, err)
	if of, ok := info.Sys().(*syscall.Stat_t); !ok || of.Uid != 0 {
		t.Error("the folder has changed its owner")
	}
	if err := onlyFor(filepath.Join(top, strconv.Itoa(1)), ann); err == nil {
		t.Error("a folder that isn't there: no error")
	}
}
