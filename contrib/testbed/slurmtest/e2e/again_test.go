package e2e

import (
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// soonAgain has jobs that are put back start again soon.
func soonAgain(o *slurmtest.Options) { o.Extra = append(o.Extra, slurmtest.SoonAgain) }

// Two jobs take far more GPU memory than is known of what they say they are. The one that fails for it runs once more,
// alone, as its owner asks, and completes; AdminComment says why. The same pair doesn't meet again.
func TestFailedBesideOthers(t *testing.T) {
	t.Parallel()
	r := newWorld(t, cluster.Setup{Policy: "dqn", Adjust: soonAgain})
	pair := func() []string {
		return r.atOnce(2, func(int) string { return r.run("gromacs", ",share:retry", "vgg11") })
	}
	ids := pair()
	r.until("one that fails is run again",
		func() bool { return r.metric("slurmbridge_shared_failures_total", "again") == 1 })
	victim := ""
	r.until("its AdminComment says so", func() bool {
		for _, id := range ids {
			if strings.Contains(r.job(id)["AdminComment"], "failed while sharing and runs again alone") {
				victim = id
			}
		}
		return victim != ""
	})
	r.reach("COMPLETED", ids...)
	must.Equal(t, r.job(victim)["Restarts"], "1", "restarts")
	ids = append(ids, pair()...)
	r.reach("COMPLETED", ids...)
	r.records(len(ids))
	must.Equal(t, r.metric("slurmbridge_shared_failures_total"), 1, "jobs that failed beside others")
}
