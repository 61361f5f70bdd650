package slurmtest

import (
	"context"
	"os"
	"testing"
)

// rootVariable names a root folder to run every test's Slurm from.
const rootVariable = "SLURMBRIDGE_TEST_ROOT"

// New starts a cluster for a test and ends it with the test. Where this machine can't run one the test is skipped, or
// fails if SLURMBRIDGE_REQUIRE_SLURM is 1. Options.Root defaults to SLURMBRIDGE_TEST_ROOT, so that the same tests run
// on another release.
func New(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	Require(tb)
	if o.Root == "" {
		o.Root = os.Getenv(rootVariable)
	}
	c, err := Start(context.Background(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Log(c.Logs(40))
		}
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

// Require skips, or fails, a test on a machine that can't run a cluster. With -short it
// skips every such test: they take from 5 s to minutes.
func Require(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("starts a private Slurm")
	}
	Need(tb, Missing())
}

// Need skips a test for what this machine lacks, nil = nothing, or fails it if SLURMBRIDGE_REQUIRE_SLURM is 1.
func Need(tb testing.TB, missing error) {
	tb.Helper()
	switch {
	case missing == nil:
	case os.Getenv("SLURMBRIDGE_REQUIRE_SLURM") == "1":
		tb.Fatal(missing)
	default:
		tb.Skip(missing)
	}
}

// OfOneRelease skips a test that shows little new on another release of Slurm's, whose root folder
// SLURMBRIDGE_TEST_ROOT names. SLURMBRIDGE_SLOW=1 runs it there, too.
func OfOneRelease(tb testing.TB) {
	tb.Helper()
	if os.Getenv(rootVariable) != "" && os.Getenv("SLURMBRIDGE_SLOW") == "" {
		tb.Skip("the machine's own Slurm is enough")
	}
}

// RequireAuthSlurm skips a test where a cluster with auth/slurm can't be run, as New would run it.
func RequireAuthSlurm(tb testing.TB) {
	tb.Helper()
	Require(tb)
	root := os.Getenv(rootVariable)
	switch version, err := ReleaseOf(tb.Context(), root); {
	case err != nil:
		tb.Fatal(err)
	case version < "24.05":
		tb.Skipf("slurm %s has no auth/slurm, which came in 23.11 and with keys that can be changed in 24.05", version)
	case root == "":
		tb.Skip("the sockets of auth/slurm have fixed places: it takes a root folder of its own, which " + rootVariable +
			" names")
	}
}

// RequireAccounting skips a test where a cluster with accounting can't be run.
func RequireAccounting(tb testing.TB) {
	tb.Helper()
	Require(tb)
	if err := MissingAccounting(os.Getenv(rootVariable)); err != nil {
		tb.Skip(err)
	}
}
