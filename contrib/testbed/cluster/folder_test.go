package cluster_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// One script in two folders, whose input is found by the folder: jobs of the large one don't share by what the small one
// took, and none runs out of memory. Jobs of the small one do share.
func TestOneScriptInTwoFolders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	script := fmt.Sprintf("export GPUSIM_STATE=%s\nexec %s run alexnet --mem-mib $(cat mem)\n", r.State(), r.Bin("gpusim"))
	submit := func(folder, mib string) string {
		t.Helper()
		dir := r.Path(folder)
		must.OK(t, os.MkdirAll(dir, 0o755))
		must.OK(t, os.WriteFile(filepath.Join(dir, "mem"), []byte(mib+"\n"), 0o644))
		return must.Get(r.Submit(t.Context(), cluster.Owner, script, "--gres=gpu:shared", "--chdir="+dir))(t)
	}
	small, large := func() string { return submit("small", "1500") }, func() string { return submit("large", "7000") }
	first := small()
	r.reach([]string{first}, "COMPLETED")
	r.until("a profile of what ran alone", func() bool {
		out := must.Get(r.RunAs(t.Context(), "slurm", r.Bin("slurmbridge"), "profiles", "list", "--json", "--config", r.Path("slurmbridge.yaml")))(t)
		var list []struct{ User string }
		must.OK(t, json.Unmarshal([]byte(out), &list))
		for _, e := range list {
			if e.User == cluster.Owner {
				return true
			}
		}
		return false
	})
	mend := r.breaks("bridge stopped")
	alone := []string{large(), large(), large()}
	mend()
	r.reach(alone, "COMPLETED")
	mend = r.breaks("bridge stopped")
	shared := []string{small(), small(), small()}
	mend()
	r.reach(shared, "COMPLETED")
	var groups []struct {
		Members []struct {
			Ref string `json:"ref"`
		} `json:"members"`
		Complete bool `json:"complete"`
	}
	must.OK(t, r.Get("/v1/groups", &groups))
	together := 0
	for _, g := range groups {
		var refs []string
		for _, m := range g.Members {
			refs = append(refs, m.Ref)
		}
		if all := strings.Join(refs, " "); len(refs) > 1 && strings.Contains(" "+strings.Join(alone, " ")+" ", " "+refs[0]+" ") {
			t.Errorf("jobs of the large folder share: %s", all)
		} else if len(refs) > 1 && g.Complete {
			together++
		}
	}
	if together == 0 {
		t.Errorf("jobs of the small folder don't share: %+v", groups)
	}
}
