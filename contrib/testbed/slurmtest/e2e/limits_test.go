package e2e

import (
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

// Slurm ends a job at its limit, whatever slowed it. Both googlenet take 30 s alone; next
// to resnet50 they would take more than their minute.
func TestTimeLimits(t *testing.T) {
	t.Parallel()
	r := newWorld(t, cluster.Setup{Scale: 2, Settings: []string{"extend_limit: false"}}) // the guard alone
	var ids []string
	r.unseen(func() {
		for _, app := range []string{"hoomd", "qmcpack", "resnet50", "googlenet", "gromacs", "googlenet"} {
			limit := "--time=1"
			if app == "qmcpack" {
				limit = "--time=2" // 65 s alone
			}
			ids = append(ids, r.run(app, "", app, limit))
		}
	})
	r.until("all have ended", func() bool {
		return !slices.ContainsFunc(ids,
			func(id string) bool { return slices.Contains([]string{"PENDING", "RUNNING"}, r.job(id)["JobState"]) })
	})
	for _, id := range ids {
		if f := r.job(id); f["JobState"] != "COMPLETED" {
			t.Errorf("%s ended as %s after %s; its limit was %s", f["Comment"], f["JobState"], f["RunTime"], f["TimeLimit"])
		}
	}
}
