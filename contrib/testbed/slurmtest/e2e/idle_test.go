package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// A job that does nothing with its GPU is told of, ten minutes later: in the list, as a number, and in its AdminComment;
// one that computes is not. SLURMBRIDGE_SLOW=1 runs it (make soak does).
func TestIdleJobIsTold(t *testing.T) {
	slurmtest.OfOneRelease(t)
	if os.Getenv("SLURMBRIDGE_SLOW") == "" || testing.Short() {
		t.Skip("it takes a quarter of an hour: make soak runs it")
	}
	t.Parallel()
	s := stage(t, cluster.Setup{Scale: 2, NodeGPUs: []int{2}, Settings: []string{"idle_after: 10m", "idle_comment: true"}}, nil)
	submit := func(script string) string {
		t.Helper()
		id := must.Get(s.Submit(t.Context(), cluster.Owner, script, "--gres=gpu:1", "--time=30"))(t)
		return id
	}
	began := time.Now()
	idle := submit("sleep 1500")
	works := submit(fmt.Sprintf("GPUSIM_STATE=%s exec %s run hoomd --duration-scale 100", s.State(), s.Bin("gpusim")))
	for _, id := range []string{idle, works} {
		if state, ok := s.WaitState(t.Context(), time.Minute, id, "RUNNING"); !ok {
			t.Fatalf("job %s is %s", id, state)
		}
	}
	var told []job.Idle
	list := func() bool {
		out, err := s.RunAs(t.Context(), "slurm", s.Bin("slurmbridge"), "usage", "--idle", "--json", "--config", s.Path("slurmbridge.yaml"))
		var r httpapi.IdleReport
		if err == nil && json.Unmarshal([]byte(out), &r) == nil {
			told = r.Jobs
		}
		return len(told) > 0
	}
	if !slurmtest.Wait(t.Context(), 14*time.Minute, list) {
		t.Fatal("nothing is told")
	}
	took := time.Since(began)
	if len(told) != 1 || told[0].Ref != idle || told[0].GPUs != 1 || told[0].User != cluster.Owner || took < 10*time.Minute {
		t.Errorf("after %v: %+v, want job %s", took, told, idle)
	}
	if jobs, gpus := metric(t, s, "slurmbridge_idle_jobs"), metric(t, s, "slurmbridge_idle_gpus"); jobs != "1" || gpus != "1" {
		t.Errorf("%s idle jobs, %s GPUs", jobs, gpus)
	}
	said := func(id string) string {
		f := must.Get(s.Job(t.Context(), id))(t)
		return f["AdminComment"]
	}
	if !slurmtest.Wait(t.Context(), time.Minute, func() bool { return strings.Contains(said(idle), "its GPU has done nothing since ") }) || said(works) != "" {
		t.Errorf("AdminComments %q, of the one that computes %q", said(idle), said(works))
	}
	t.Logf("told after %v: %s", took, said(idle))
}
