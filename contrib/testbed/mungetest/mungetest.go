// Package mungetest starts a munged for a test, with the key and clock that the test chooses.
package mungetest

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
)

// clock replaces time(), the only source of time of munged.
//
//go:embed testdata/clock.c
var clock string

// Key is what two munged have in common that believe each other.
const Key = "k"

// Start runs munged with a key (any text) and a clock that is ahead by skew until
// the test ends. It skips the test where there is no munge or no root, and fails it
// if SLURMBRIDGE_REQUIRE_SLURM is 1.
func Start(t testing.TB, key string, skew time.Duration) *credential.Munge {
	t.Helper()
	owner, err := user.Lookup("munge")
	path, perr := exec.LookPath("munged")
	if perr != nil {
		path, perr = exec.LookPath("/usr/sbin/munged")
	}
	if err != nil || perr != nil || os.Geteuid() != 0 {
		if os.Getenv("SLURMBRIDGE_REQUIRE_SLURM") == "1" {
			t.Fatal("needs root and munge")
		}
		t.Skip("needs root and munge")
	}
	uid := must.Get(strconv.Atoi(owner.Uid))(t)
	dir := must.Get(os.MkdirTemp("", "mg"))(t) // short: it is in a socket's name
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "key")
	must.OK(t, os.WriteFile(file, []byte(strings.Repeat(key, 128)[:128]), 0o400), os.Chown(file, uid, uid), os.Chown(dir, uid, uid), os.Chmod(dir, 0o755))
	m := &credential.Munge{Socket: filepath.Join(dir, "s")}
	cmd := exec.Command(path, "--foreground", "--force", "--key-file="+file, "--socket="+m.Socket,
		"--pid-file="+dir+"/pid", "--log-file="+dir+"/log", "--seed-file="+dir+"/seed")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	if skew != 0 {
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+library(t, dir), fmt.Sprintf("SKEW_S=%d", int(skew.Seconds())))
	}
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for range 200 {
		if _, err = m.Encode(context.Background(), "x"); err == nil {
			return m
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Fatal(err)
	return nil
}

// library builds the clock.
func library(t testing.TB, dir string) string {
	t.Helper()
	so := filepath.Join(dir, "clock.so")
	cmd := exec.Command("gcc", "-shared", "-fPIC", "-o", so, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(clock)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("no gcc to make a clock with: %v: %s", err, out)
	}
	return so
}
