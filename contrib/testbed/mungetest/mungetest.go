// Package mungetest starts a munged for a test, with the key and clock that the test chooses.
package mungetest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

// clock replaces time(), the only source of time of munged.
//
//go:embed testdata/clock.c
var clock string

// Key is what two munged have in common that believe each other.
const Key = "k"

// Start runs munged with a key (any text) and a clock that is ahead by skew until the test ends. It skips the test
// where there is no munge or no root, and fails it if SLURMBRIDGE_REQUIRE_SLURM is 1.
func Start(t testing.TB, key string, skew time.Duration) *credential.Munge {
	t.Helper()
	if os.Geteuid() != 0 {
		slurmtest.Need(t, errors.New("munged needs root, to become its user"))
	}
	dir := must.Get(os.MkdirTemp("", "mg"))(t) // short: it is in a socket's name
	t.Cleanup(func() { os.RemoveAll(dir) })
	cmd, err := slurmtest.Munged(dir, []byte(strings.Repeat(key, 128)[:128]))
	slurmtest.Need(t, err)
	m := &credential.Munge{Socket: filepath.Join(dir, "socket")}
	if skew != 0 {
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+library(t, dir), fmt.Sprintf("SKEW_S=%d", int(skew.Seconds())))
	}
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if !slurmtest.Wait(t.Context(), time.Minute, func() bool {
		_, err = m.Encode(t.Context(), "x")
		return err == nil
	}) {
		t.Fatal(err)
	}
	return m
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
