package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// A job that does nothing with its GPU is told of, ten minutes later, in the list and as a number; one that computes is
// not. SLURMBRIDGE_SLOW=1 runs it (make soak does).
func TestIdleJobIsTold(t *testing.T) {
	slurmtest.OfOneRelease(t)
	if os.Getenv("SLURMBRIDGE_SLOW") == "" || testing.Short() {
		t.Skip("it takes a quarter of an hour: make soak runs it")
	}
	t.Parallel()
	r := newWorld(t, cluster.Setup{Scale: 2, NodeGPUs: []int{2}, Settings: []string{"idle_after: 10m"}})
	began := time.Now()
	idle := r.submit("sleep 1500", "--gres=gpu:1", "--time=30")
	works := r.submit(r.gpusim("hoomd --duration-scale 100"), "--gres=gpu:1", "--time=30")
	r.reach("RUNNING", idle, works)
	var told []job.Idle
	list := func() bool {
		var said httpapi.IdleReport
		r.command(&said, "usage", "--idle")
		told = said.Jobs
		return len(told) > 0
	}
	if !slurmtest.Wait(t.Context(), 14*time.Minute, list) {
		t.Fatal("nothing is told")
	}
	took := time.Since(began)
	if len(told) != 1 || told[0].Ref != idle || told[0].GPUs != 1 || told[0].User != cluster.Owner ||
		took < 10*time.Minute {
		t.Errorf("after %v: %+v, want job %s", took, told, idle)
	}
	if jobs, gpus := r.metric("slurmbridge_idle_jobs"), r.metric("slurmbridge_idle_gpus"); jobs != 1 || gpus != 1 {
		t.Errorf("%g idle jobs, %g GPUs", jobs, gpus)
	}
	t.Logf("told after %v", took)
}
