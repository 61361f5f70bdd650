package slurmtest

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// A cluster with accounting refuses a user without an account and counts one with.
func TestAccounting(t *testing.T) {
	t.Parallel()
	RequireAccounting(t)
	c := New(t, Options{Scheduler: prompt, Accounting: true, Extra: []string{
		"AccountingStorageEnforce=associations,limits,qos", "AccountingStorageTRES=gres/gpu,gres/mps",
	}})
	ctx := t.Context()
	if _, err := c.Submit(ctx, "games", "true"); err == nil || !strings.Contains(err.Error(), "account") {
		t.Errorf("a user without an account: %v", err)
	}
	for range 2 { // the second finds it there
		must.OK(t, c.Account(ctx, "add", "account", "lab"))
	}
	must.OK(t, c.Account(ctx, "add", "user", "games", "account=lab"))
	id := c.submit(t, "games", "true", "--gres=mps:50")
	c.reaches(t, id, "COMPLETED")
	var out string
	var err error
	if !Wait(ctx, 20*time.Second, func() bool { // slurmdbd hears of a start a moment after squeue shows it
		out, err = c.Run(ctx, "sacct", "-a", "-X", "-n", "-P", "-j", id, "-o", "Account,AllocTRES")
		return err == nil && strings.Contains(out, "gres/mps=50") && strings.HasPrefix(out, "lab|")
	}) {
		t.Errorf("sacct says %q, %v", out, err)
	}
	if err := c.Account(ctx, "add", "nonsense"); err == nil {
		t.Error("nonsense is taken")
	}
	// Nothing of the database can be reached from outside the folder.
	if info, err := os.Stat(c.Path("db")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the database's folder: %v, %v", info, err)
	}
}
