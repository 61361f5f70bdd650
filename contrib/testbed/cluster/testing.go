package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// Require skips, or fails, a test on a machine that can't run a stack of the programs in
// build, as slurmtest.Require does.
func Require(tb testing.TB, build string) {
	tb.Helper()
	slurmtest.Require(tb)
	if _, err := os.Stat(filepath.Join(build, "slurmbridge")); err == nil {
		return
	}
	if os.Getenv("SLURMBRIDGE_REQUIRE_SLURM") == "1" {
		tb.Fatal("the programs are not built: make build")
	}
	tb.Skip("the programs are not built: make build")
}
