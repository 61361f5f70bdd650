package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// TestFailedBesideOthers: two jobs that take far more GPU memory than is known of
// what they say they are. The one that fails for it runs once more, alone, as its owner
// asks, and completes; AdminComment says why.
func TestFailedBesideOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mend := r.breaks("bridge stopped")
	script := fmt.Sprintf("export GPUSIM_STATE=%s\nexec %s run vgg11\n", r.State(), r.Bin("gpusim"))
	var ids []string
	for range 2 {
		id, err := r.Submit(t.Context(), cluster.Owner, script, "--gres=gpu:shared", "--comment=app=gromacs,share:retry")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	mend()
	r.until("one that fails is run again", func() bool {
		return r.metric("slurmbridge_shared_failures_total", "again") == 1
	})
	victim := ""
	r.until("its AdminComment says so", func() bool {
		for _, id := range ids {
			fields, err := r.Job(t.Context(), id)
			if err == nil && strings.Contains(fields["AdminComment"], "failed while sharing and runs again alone") {
				victim = id
			}
		}
		return victim != ""
	})
	r.reach(ids, "COMPLETED")
	fields := must.Get(r.Job(t.Context(), victim))(t)
	if fields["Restarts"] != "1" {
		t.Errorf("job %s was started again %s times", victim, fields["Restarts"])
	}
	// The same pair doesn't meet again.
	for range 2 {
		id := must.Get(r.Submit(t.Context(), cluster.Owner, script, "--gres=gpu:shared", "--comment=app=gromacs,share:retry"))(t)
		ids = append(ids, id)
	}
	r.reach(ids[2:], "COMPLETED")
	r.until("a record of each job", func() bool { return r.metric("slurmbridge_records_total", "new") >= float64(len(ids)) })
	if n := r.metric("slurmbridge_shared_failures_total"); n != 1 {
		t.Errorf("%v jobs failed beside others", n)
	}
}
