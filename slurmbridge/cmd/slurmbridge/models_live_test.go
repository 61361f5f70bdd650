package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// The daemon goes over to the model that an admin chooses, and says so.
func TestModelsOnSlurm(t *testing.T) {
	l := newLive(t)
	l.serve()
	one := put(t, l.conf, alone(t))
	// The daemon isn't root, to which the files of this test belong.
	if err := filepath.WalkDir(l.Path("run", "models"), func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, 0o777)
	}); err != nil {
		t.Fatal(err)
	}
	says := func(want string) {
		t.Helper()
		if !slurmtest.Wait(t.Context(), 30*time.Second, func() bool {
			text, err := os.ReadFile(l.Path("log", "bridge.log"))
			return err == nil && strings.Contains(string(text), want)
		}) {
			text, _ := os.ReadFile(l.Path("log", "bridge.log"))
			t.Fatalf("no %q in\n%s", want, text)
		}
	}
	says(fmt.Sprintf("another model decides\" model=%d", one))
	l.says([]string{"The built-in network decides; it is pinned."}, "models", "promote", "0")
	says("model=0 wanted=0 pinned=true")
	l.says([]string{"policy dqn"}, "status")
}
