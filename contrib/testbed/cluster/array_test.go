package cluster_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// What a node records of an array's task under its job number finds the task: the
// first is learned under the application it was held to be, those that share have
// their starts noted.
func TestArrayTasksAreRecorded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	script := fmt.Sprintf("export GPUSIM_STATE=%s\nexec %s run gromacs\n", r.State(), r.Bin("gpusim"))
	array, err := r.Submit(t.Context(), cluster.Owner, script, "--gres=gpu:shared", "--comment=app=mine", "--array=0-3")
	if err != nil {
		t.Fatal(err)
	}
	var tasks []string
	for i := range 4 {
		tasks = append(tasks, fmt.Sprintf("%s_%d", array, i))
	}
	r.reach(tasks[:1], "RUNNING", "COMPLETED")
	r.until("a profile of nobody's own", func() bool {
		out, err := r.RunAs(t.Context(), "slurm", r.Bin("slurmbridge"), "profiles", "list", "--json", "--config", r.Path("slurmbridge.yaml"))
		if err != nil {
			t.Fatal(err, out)
		}
		var list []struct {
			User    string
			Profile struct{ App string }
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatal(err, out)
		}
		for _, e := range list {
			if e.User == cluster.Owner && e.Profile.App == "mine" {
				return true
			}
		}
		return false
	})
	r.reach(tasks, "COMPLETED")
	r.until("every record", func() bool { return r.metric("slurmbridge_records_total", "new") == float64(len(tasks)) })
	var groups []struct {
		Members []struct {
			Ref string `json:"ref"`
		} `json:"members"`
		Complete bool    `json:"complete"`
		SkewS    float64 `json:"skew_s"`
	}
	must.OK(t, r.Get("/v1/groups", &groups))
	started, together := 0, 0
	for _, g := range groups {
		for _, m := range g.Members {
			if !strings.HasPrefix(m.Ref, array+"_") {
				t.Errorf("job %s is in a group", m.Ref)
			}
		}
		if g.Complete {
			started += len(g.Members)
		}
		if len(g.Members) > 1 && g.Complete {
			together++
		}
	}
	if started < len(tasks) || together == 0 {
		t.Errorf("of %d tasks %d starts are known, %d groups of several: %+v", len(tasks), started, together, groups)
	}
}
