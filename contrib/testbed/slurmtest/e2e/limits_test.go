package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Slurm ends a job at its limit, whatever slowed it. Both googlenet take 30 s alone; next
// to resnet50 they would take more than their minute.
func TestTimeLimits(t *testing.T) {
	t.Parallel()
	s := stage(t, cluster.Setup{Scale: 2, Settings: []string{"extend_limit: false"}}, nil) // the guard alone
	// All six are there before the bridge decides.
	bridge := s.Daemon("slurmbridge").Process
	must.OK(t, bridge.Signal(syscall.SIGSTOP))
	var ids, names []string
	for _, app := range []string{"hoomd", "qmcpack", "resnet50", "googlenet", "gromacs", "googlenet"} {
		limit := "--time=1"
		if app == "qmcpack" {
			limit = "--time=2" // 65 s alone
		}
		script := fmt.Sprintf("export GPUSIM_STATE=%s\nexec %s run %s\n", s.State(), s.Bin("gpusim"), app)
		id := must.Get(s.Submit(t.Context(), cluster.Owner, script, "--gres=gpu:shared", limit, "--comment=app="+app))(t)
		ids, names = append(ids, id), append(names, app)
	}
	must.OK(t, bridge.Signal(syscall.SIGCONT))
	for i, id := range ids {
		state, ok := s.WaitState(t.Context(), 6*time.Minute, id, "COMPLETED", "TIMEOUT", "FAILED", "CANCELLED", "")
		f := must.Get(s.Job(t.Context(), id))(t)
		t.Logf("%s: %s, ran %s of %s", names[i], state, f["RunTime"], f["TimeLimit"])
		if !ok || state != "COMPLETED" {
			t.Errorf("%s ended as %s after %s; its limit was %s", names[i], state, f["RunTime"], strings.TrimSpace(f["TimeLimit"]))
		}
	}
}
