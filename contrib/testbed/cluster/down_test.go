package cluster_test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Without the node agent jobs are grouped, start, run and end as ever; only their
// profiles are lost. What the hooks wrote waits until the agent is back.
func TestAgentDown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.pair("gromacs")
	r.reach(ids, "RUNNING")
	mend := r.breaks("agent killed")
	ids = append(ids, r.pair("gromacs")...)
	r.reach(ids, "COMPLETED")
	if !r.ready() {
		t.Error("the bridge is not ready for want of an agent")
	}
	if n := r.metric("slurmbridge_groups_total"); n < 2 {
		t.Errorf("%g groups", n)
	}
	if n := r.metric("slurmbridge_records_total"); n != 0 {
		t.Errorf("%g records without an agent", n)
	}
	r.until("epilogs on their way", func() bool { return len(r.files(r.Path("node", "ended"), ".json")) == len(ids) })
	node, err := r.Run(t.Context(), "sinfo", "-h", "-N", "-o", "%T")
	if err != nil || slices.Contains(strings.Fields(node), "drained") {
		t.Errorf("the node is %s, %v", node, err)
	}
	mend()
	r.until("records of the time without an agent", func() bool { return r.metric("slurmbridge_records_total", "new") == float64(len(ids)) })
	if left := r.files(r.Path("node", "ended"), ".json"); len(left) != 0 {
		t.Errorf("not taken up: %v", left)
	}
}

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
	r.strangersAreRefused()
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

// strangersAreRefused sends the controller records without proof of who sent
// them.
func (r *rig) strangersAreRefused() {
	r.t.Helper()
	before := r.metric("slurmbridge_records_total", "refused")
	for _, c := range []struct {
		method, credential string
		code               int
	}{
		{http.MethodPost, "", http.StatusUnauthorized},
		{http.MethodPost, "Basic cm9vdDpyb290", http.StatusUnauthorized},
		{http.MethodPost, "Munge MUNGE:AwQDAADforged:", http.StatusUnauthorized},
		{http.MethodGet, "", http.StatusMethodNotAllowed},
	} {
		req := must.Get(http.NewRequestWithContext(r.t.Context(), c.method, r.URL+"/v1/records", strings.NewReader("{}")))(r.t)
		if c.credential != "" {
			req.Header.Set("Authorization", c.credential)
		}
		resp := must.Get(http.DefaultClient.Do(req))(r.t)
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || len(text) == 0 {
			r.t.Errorf("%s with %q: %s %s", c.method, c.credential, resp.Status, text)
		}
	}
	if n := r.metric("slurmbridge_records_total", "refused") - before; n != 3 {
		r.t.Errorf("%g refusals were counted", n)
	}
}
