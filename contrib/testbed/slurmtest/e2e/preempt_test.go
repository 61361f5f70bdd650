package e2e

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// again has preempted jobs begin again a second later, by the setting of releases from 25.11 on.
const again = slurmtest.Prompt + ",requeue_delay=1"

// Jobs of a partition that may preempt another's don't share with them; one that finds no idle GPU preempts, as on
// plain Slurm, and the preempted jobs run again.
func TestPreemption(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{Options: slurmtest.Options{Scheduler: again, Extra: []string{
		"PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", slurmtest.SoonAgain, "PartitionName=urgent Nodes=n1 PriorityTier=10 PreemptMode=OFF State=UP",
	}}})
	var low, high string
	r.unseen(func() {
		low, high = r.submit(ann, small, 4, "--time=3", "--requeue"),
			r.submit(ann, small, 4, "--time=3", "--partition=urgent")
	})
	r.reach("COMPLETED", high)
	r.reach("COMPLETED", low)
	if a, b := r.span(low), r.span(high); a[0].Before(b[1]) && b[0].Before(a[1]) {
		t.Errorf("they ran side by side: %v, %v", a, b)
	}
	low = r.submit(ann, small, 170, "--time=3", "--requeue")
	r.reach("RUNNING", low)
	high = r.submit(ann, small, 2, "--time=3", "--partition=urgent")
	r.reach("COMPLETED", high)
	must.Equal(t, r.job(low)["Restarts"], "1", "restarts of the low one, which is preempted")
}

// Preemptible jobs of two QOSes share a GPU. A protected job that asks to share finds no idle GPU and preempts them, though
// it was gated, and they run again.
func TestPreemptionByQOS(t *testing.T) {
	t.Parallel()
	slurmtest.RequireAccounting(t)
	o := options{quiet: true}
	o.Accounting, o.Scheduler = true, again
	o.Extra = []string{
		"AccountingStorageEnforce=associations,limits,qos", "AccountingStorageTRES=gres/gpu,gres/mps",
		"PreemptType=preempt/qos", "PreemptMode=REQUEUE", slurmtest.SoonAgain,
	}
	r := newRig(t, o)
	r.account("add", "qos", "filler", "fill")
	r.account("add", "qos", "protected")
	r.account("modify", "qos", "protected", "set", "Preempt=filler,fill")
	r.account("add", "account", "lab")
	for _, user := range []string{ann, "slurm"} {
		r.account("add", "user", user, "account=lab", "QOS=normal,filler,fill,protected", "DefaultQOS=normal")
	}
	r.start()
	var fillers []string
	r.unseen(func() {
		for _, qos := range []string{"filler", "fill"} {
			fillers = append(fillers, must.Get(r.Submit(t.Context(), ann, "[ $SLURM_RESTART_COUNT ] || sleep 170\n",
				"--gres=gpu:shared", "--comment=app="+small, "--time=3", "--requeue", "--qos="+qos))(t))
		}
	})
	r.reach("RUNNING", fillers...)
	urgent := r.submit(ann, small, 2, "--time=3", "--qos=protected")
	r.reach("COMPLETED", urgent)
	for _, id := range fillers {
		must.Equal(t, r.job(id)["Restarts"], "1", "restarts of filler %s, which is preempted", id)
	}
	r.reach("COMPLETED", fillers...)
}
