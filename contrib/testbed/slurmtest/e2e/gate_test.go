package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// second is a partition that is not the default, with the cluster's nodes.
const second = "second"

// orphans submits two jobs behind the gate of a bridge that has just died.
func (r *rig) orphans(args ...string) []string {
	r.t.Helper()
	r.kill()
	ids := []string{r.submit(ann, small, 0.2, args...), r.submit(bob, small, 0.2, args...)}
	for _, id := range ids {
		if dep := r.job(id)["Dependency"]; !strings.Contains(dep, "after:") {
			r.t.Fatalf("job %s doesn't wait for the gate: %q", id, dep)
		}
	}
	return ids
}

// freed fails the test unless the jobs wait for no gate any more: after the rig's lease of 20 s, and Slurm's next full
// look at its queue, or the next time it clears old jobs away (each minute, from 24.05 on). When Slurm starts them is
// then its own affair.
func (r *rig) freed(ids ...string) {
	r.t.Helper()
	since := time.Now()
	for _, id := range ids {
		r.looks("free", id, func(f map[string]string) bool { return !strings.Contains(f["Dependency"], "after:") })
	}
	r.t.Logf("free %v after the bridge's death; the lease is 20 s", time.Since(since).Round(time.Second))
}

// slurms are Slurm's own intervals.
const slurms = "sched_interval=60"

// A partition that closes while the bridge is dead doesn't keep jobs of another one.
func TestGateWhosePartitionCloses(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"DOWN", "INACTIVE", "DRAIN"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{Options: slurmtest.Options{
				Scheduler: slurms, Extra: []string{"PartitionName=" + second + " Nodes=ALL"},
			}})
			ids := r.orphans("-p", second)
			r.scontrol("update", "PartitionName="+slurmtest.Partition, "State="+state)
			r.freed(ids...)
		})
	}
}

// A gate in a hidden partition of its own is in no ordinary user's queue, holds jobs all the same,
// and can end while the jobs' partition is down. While its own is down it is where it can end.
func TestHiddenGate(t *testing.T) {
	t.Parallel()
	const hidden = "gates"
	r := newRig(t, options{settings: settings{GatePartition: hidden}, Options: slurmtest.Options{Extra: []string{
		"PartitionName=" + hidden + " Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1",
	}}})
	gate := r.gate()
	must.Equal(t, r.job(gate)["Partition"], hidden, "the gate's partition")
	shared := r.submit(ann, small, 1)
	r.reach("COMPLETED", shared)
	for _, c := range []struct{ state, want string }{{"DOWN", hidden + "," + slurmtest.Partition}, {"UP", hidden}} {
		r.scontrol("update", "PartitionName="+hidden, "State="+c.state)
		r.until("its partition is "+c.state+", and the gate in "+c.want,
			func() bool { g := r.gate(); return g != "" && r.job(g)["Partition"] == c.want })
	}
	gate = r.gate()
	ids := r.orphans()
	for _, cmd := range [][]string{
		{"squeue", "--noheader"},
		{"squeue", "--noheader", "--start"},
		{"scontrol", "show", "job"},
	} {
		out, err := r.RunAs(t.Context(), ann, cmd[0], cmd[1:]...)
		if err != nil || strings.Contains(out, job.GateName) || strings.Contains(out, "JobId="+gate+" ") {
			t.Errorf("%v shows the gate: %v, %s", cmd, err, out)
		}
		if cmd[0] == "squeue" && !strings.Contains(out, ids[0]) {
			t.Errorf("%v shows no job: %s", cmd, out)
		}
	}
	r.scontrol("update", "PartitionName="+slurmtest.Partition, "State=DOWN")
	r.freed(ids...)
}

// Partitions of whole nodes, whether some are or a line of defaults makes the gate's own one, keep no jobs from sharing,
// and jobs that get whole nodes run.
func TestGateAmongWholeNodes(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{
		"among the jobs' partitions": {Options: slurmtest.Options{
			GPUs: 2, Extra: []string{"PartitionName=another Nodes=ALL", "PartitionName=whole Nodes=ALL OverSubscribe=EXCLUSIVE"},
		}},
		"the gate's own": {settings: settings{GatePartition: "gates"}, Options: slurmtest.Options{GPUs: 2, Extra: []string{
			"PartitionName=DEFAULT OverSubscribe=EXCLUSIVE", "PartitionName=whole Nodes=ALL",
			"PartitionName=gates Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1", "PartitionName=DEFAULT OverSubscribe=NO",
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, o)
			if o.GatePartition == "" { // an operator changes the first of the gate's partitions
				must.Equal(t, r.job(r.gate())["Partition"], "another,"+slurmtest.Partition, "the gate's partitions")
				r.scontrol("update", "PartitionName=another", "OverSubscribe=EXCLUSIVE")
			}
			r.until("the gate is in no partition of whole nodes", func() bool {
				gate := r.gate()
				return gate != "" && r.job(gate)["Partition"] == slurmtest.Partition
			})
			r.share()
			r.reach("COMPLETED", r.submit(ann, small, 1, "--partition=whole"), r.submit(ann, small, 1, "--exclusive"))
		})
	}
}

// Where a node is one user's at a time, a user's jobs share on it, and another's start once it is free.
func TestNodeOfOneUserAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{Options: slurmtest.Options{GPUs: 2, Extra: []string{"PartitionName=DEFAULT ExclusiveUser=YES"}}})
	r.share()
	r.reach("COMPLETED", r.submit(bob, small, 1))
}

// Jobs of higher priority in the gate's partition, more than Slurm looks at, don't keep the gate from ending.
func TestGateInABusyQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{quiet: true, Options: slurmtest.Options{
		Nodes: 2, Scheduler: slurmtest.Prompt + ",bf_max_job_test=20,default_queue_depth=10,partition_job_depth=10",
		Extra: []string{"PartitionName=" + second + " Nodes=n1 PriorityTier=10"},
	}})
	r.any(ann, 600, "-w", "n2", "--exclusive")
	// They want both nodes, and come before whatever is submitted later.
	script := "cd /; for i in $(seq 100); do sbatch -p " + slurmtest.Partition +
		" -N 2 --exclusive -o /dev/null --wrap true >/dev/null || exit 1; done"
	r.as("", "bash", "-c", script)
	r.start()
	r.freed(r.orphans("-p", second)...)
}

// An operator holds everything, the gate too, and releases the users' jobs alone.
func TestGateHeldByHand(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	gate := r.gate()
	r.scontrol("hold", gate)
	r.looks("released", gate, func(f map[string]string) bool { return f["Priority"] != "0" })
	if !r.logged(cluster.BridgeDaemon, "held") {
		t.Error("the log says nothing of a hold")
	}
	if n, err := strconv.ParseInt(r.job(gate)["Priority"], 10, 64); err != nil || n < 1<<32-10 {
		t.Errorf("the gate's priority is %d, %v", n, err)
	}
	r.freed(r.orphans()...)
}
