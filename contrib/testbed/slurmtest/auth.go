package slurmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// MissingAuthSlurm says why the Slurm in root can't run a cluster with auth/slurm, nil =
// it can.
func MissingAuthSlurm(ctx context.Context, root string) error {
	version, err := ReleaseOf(ctx, root)
	switch {
	case err != nil:
		return err
	case version < "24.05":
		return fmt.Errorf("slurm %s has no auth/slurm, which came in 23.11 and with keys that can be changed in 24.05",
			version)
	case root == "":
		return errors.New("the sockets of auth/slurm have fixed places: it takes a root folder of its own, which " +
			rootVariable + " names")
	}
	if found, err := filepath.Glob(filepath.Join(root, "usr/lib/*/slurm-wlm/auth_slurm.so")); err != nil ||
		len(found) == 0 {
		return errors.Join(err, fmt.Errorf("slurm %s in %s comes without auth/slurm", version, root))
	}
	return nil
}

// RequireAuthSlurm skips a test where a cluster with auth/slurm can't be run, as New would run it.
func RequireAuthSlurm(tb testing.TB) {
	tb.Helper()
	Require(tb)
	if err := MissingAuthSlurm(tb.Context(), os.Getenv(rootVariable)); err != nil {
		tb.Skip(err)
	}
}

// prepareAuthSlurm makes the key that Slurm's daemons share; it is read by the daemons alone.
func (c *Cluster) prepareAuthSlurm(ctx context.Context) error {
	if err := MissingAuthSlurm(ctx, c.Options.Root); err != nil {
		return err
	}
	return own(c.Path("slurm.key"), random(1024), "slurm") // next to slurm.conf
}
