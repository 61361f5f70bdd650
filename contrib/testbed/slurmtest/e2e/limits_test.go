package e2e

import (
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
	r.reach("COMPLETED", ids...) // 227 s one after the other: some next to no other
}
