package cluster_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// While the controller doesn't answer a record waits in the node's spool, and a
// job's end doesn't wait for it.
func TestControllerUnreachableAtEpilog(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.pair("gromacs")
	r.reach(ids, "RUNNING")
	if left := r.files(r.Path("spool-agent"), ".json"); len(left) != 0 {
		t.Fatalf("records before any job has ended: %v", left)
	}
	mend := r.breaks("bridge killed")
	if _, err := http.Get(r.URL + "/-/healthy"); err == nil {
		t.Fatal("somebody else answers in the controller's place")
	}
	r.reach(ids, "COMPLETED")
	r.until("records in the spool", func() bool { return len(r.files(r.Path("spool-agent"), ".json")) == len(ids) })
	r.until("a word of it in the agent's log", func() bool { return r.logged("gpuprof", "records wait for the controller") })
	mend()
	r.until("the bridge is back", r.ready)
	r.until("records from the spool", func() bool { return r.metric("slurmbridge_records_total", "new") == float64(len(ids)) })
	r.until("an empty spool", func() bool { return len(r.files(r.Path("spool-agent"), "")) == 0 })
	// They reached the journal: both members' starts are known.
	var groups []struct {
		Members  []json.RawMessage `json:"members"`
		Complete bool              `json:"complete"`
	}
	must.OK(t, r.Get("/v1/groups", &groups))
	if len(groups) == 0 {
		t.Error("the journal lost the groups")
	}
	for _, g := range groups {
		if !g.Complete {
			t.Errorf("of a group of %d not every start is known", len(g.Members))
		}
	}
}
