package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
)

// The daemon takes up a network that becomes the site's own, and the one before it.
func TestModelsOnSlurm(t *testing.T) {
	l := newLive(t)
	l.serve()
	dir := put(t, l.conf, alone(t))
	// The daemon isn't root, to which the files of this test belong.
	if err := filepath.WalkDir(string(dir), func(path string, _ os.DirEntry, err error) error {
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
	says("another network decides\" network=\"site 2")
	l.says([]string{"site 2", "No round of training has run yet."}, "models", "list")
	if err := dir.Return(); err != nil {
		t.Fatal(err)
	}
	says("network=\"" + pretrained.BuiltInFor(policy.Turnaround))
	l.says([]string{"policy dqn"}, "status")
}
