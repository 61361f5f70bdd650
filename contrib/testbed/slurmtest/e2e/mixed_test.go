package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// whole submits a job of so many whole GPUs.
func (r *rig) whole(gpus string, sleep float64) string {
	r.t.Helper()
	return r.any(bob, sleep, "--gres=gpu:"+gpus, "--time=3")
}

// A waiting job of a whole GPU isn't overtaken: no sharer that comes later joins the GPU before it has run.
func TestMixedQueueWholeGPU(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{Options: slurmtest.Options{Prepare: wakes}})
	var long, short string
	r.unseen(func() { // the two share, and leave room when the short one has ended
		long, short = r.submit(ann, small, 25, "--time=3"), r.submit(ann, small, 2, "--time=3")
	})
	r.state(20*time.Second, long, "RUNNING")
	r.state(20*time.Second, short, "RUNNING", "COMPLETED")
	whole := r.whole("1", 2)
	r.state(30*time.Second, short, "COMPLETED")
	late := r.submit(ann, small, 1, "--time=3")
	r.state(90*time.Second, whole, "COMPLETED")
	r.state(90*time.Second, late, "COMPLETED")
	if a, b := r.started(late), r.started(whole); a.Before(b) {
		t.Errorf("the sharer that came last started %v before the job of a whole GPU", b.Sub(a))
	}
}

// Jobs behind one for which Slurm keeps the node's idle GPUs stay the bridge's, and share once that one has run.
func TestMixedQueueSeveralGPUs(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{Options: slurmtest.Options{GPUs: 4, Sharing: "shard", Prepare: wakes}})
	busy := r.whole("1", 55)
	r.state(20*time.Second, busy, "RUNNING")
	large := r.whole("4", 2)
	var ids []string
	for range 6 {
		ids = append(ids, r.submit(ann, small, 3, "--time=3"))
	}
	r.state(120*time.Second, large, "COMPLETED")
	for _, id := range ids {
		r.state(120*time.Second, id, "COMPLETED")
		if c := r.job(id)["AdminComment"]; strings.Contains(c, "left to Slurm") {
			t.Errorf("job %s: %s", id, c)
		}
	}
	if n := r.none(ids); n < 2 {
		t.Errorf("%d of %d shared a GPU", n, len(ids))
	}
}
