package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// job_submit/all_partitions puts the gate's hidden partition, too, into the list of each job that names none. Behind it
// job_submit.lua takes that out again: all kinds of jobs run, whether the bridge is there or not.
func TestGateAmongAllPartitions(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"ALL", "ANY", "NO"} {
		t.Run(limits, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{gatePartition: "slurmbridge", Options: slurmtest.Options{
				Scheduler: "sched_interval=2,bf_interval=2", JobSubmit: "job_submit/all_partitions,job_submit/lua",
				Extra: []string{
					"EnforcePartLimits=" + limits, "PartitionName=cpu Nodes=ALL",
					"PartitionName=slurmbridge Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1",
				},
			}})
			if p := r.job(r.gate())["Partition"]; p != "slurmbridge" {
				t.Errorf("the gate is in %q", p)
			}
			all := func() {
				for _, user := range []string{ann, "root"} {
					for _, args := range [][]string{{"--time=5"}, {"--time=5", "--gres=gpu:1"}, {"--gres=gpu:shared"}} {
						id := r.any(user, 0.1, args...)
						r.state(60*time.Second, id, "COMPLETED")
						if p := r.job(id)["Partition"]; p == "slurmbridge" {
							t.Errorf("%s's job with %v ran in %s", user, args, p)
						}
					}
				}
			}
			all()
			r.kill()
			all()
			must.OK(t, os.Remove(r.GateFile)) // as after a boot without the bridge
			all()
		})
	}
}
