package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// keyed is a cluster on which Slurm proves by itself who is who (auth/slurm), without a munged,
// and which hides jobs from others.
type keyed struct{ *world }

func newKeyed(t *testing.T, authInfo string) *keyed {
	t.Helper()
	slurmtest.RequireAuthSlurm(t)
	return &keyed{newWorld(t, cluster.Setup{AuthSlurm: true, Adjust: func(o *slurmtest.Options) {
		o.Extra = append(o.Extra, "PrivateData=jobs")
		if authInfo != "" {
			o.Extra = append(o.Extra, "AuthInfo="+authInfo)
		}
	}})}
}

// ends runs jobs that may share to their ends.
func (k *keyed) ends(apps ...string) (jobs []string) {
	k.t.Helper()
	for _, app := range apps {
		jobs = append(jobs, k.run(app, "", app, "--time=20", "--output=/dev/null"))
	}
	k.reach("COMPLETED", jobs...)
	return jobs
}

func (k *keyed) count(result string) int { return int(k.metric("slurmbridge_records_total", result)) }

// ownersAlone asks why: jobs are their owner's, and root's.
func (k *keyed) ownersAlone(id string) {
	k.t.Helper()
	for _, as := range []string{ann, "", "slurm"} {
		must.Contain(k.t, strings.ToLower(must.Get(k.ask(as, "why", id))(k.t)), "job "+id, "%q asks why", as)
	}
	if out, err := k.ask(bob, "why", id); err == nil || !strings.Contains(out, "not yours") {
		k.t.Errorf("another user asks why: %s, %v", out, err)
	}
	// Whoever shows nothing sees nothing.
	if text, err := k.Text("/v1/why/" + id); err == nil || strings.Contains(text, ann) {
		k.t.Errorf("nobody asks why: %s", text)
	}
}

// findings are what doctor says of who proves what, as SlurmUser.
func (k *keyed) findings() map[string]string {
	k.t.Helper()
	out, _ := k.ask("slurm", "doctor", "--json", "--agents", "", "--server", k.URL)
	var r struct {
		Findings []struct{ Check, What string }
	}
	if err := json.Unmarshal([]byte(out[max(0, strings.IndexByte(out, '{')):]), &r); err != nil {
		k.t.Fatalf("%v: %s", err, out)
	}
	found := map[string]string{}
	for _, f := range r.Findings {
		found[f.Check] = f.What
	}
	return found
}

// On a cluster without munged jobs are grouped, nodes' records are believed while nobody else can read the key, and
// owners alone see what is known of their jobs.
func TestClusterWithoutMunge(t *testing.T) {
	t.Parallel()
	k := newKeyed(t, "")
	if found, err := k.Processes("munged"); err != nil || len(found) > 0 {
		t.Error("there is a munged", found, err)
	}
	jobs := k.ends("hoomd", "gromacs", "hoomd", "gromacs")
	shared := false // they start together, or one joins another: that depends on when polls see them
	for _, g := range k.groups() {
		shared = shared || len(g.Members) > 1 || len(g.Members) == 1 && g.Members[0].Predicted > 1
	}
	if !shared {
		t.Errorf("no jobs shared a GPU: %+v", k.groups())
	}
	k.records(len(jobs))
	k.ownersAlone(jobs[0])
	for _, check := range []string{"key", "token", "munge"} {
		must.Equal(t, k.findings()[check], "", "what doctor finds")
	}

	// A key that everybody can read proves nothing: records wait.
	must.OK(t, os.Chmod(k.KeyFile("slurm"), 0o644))
	must.Contain(t, k.findings()["key"], "0644", "doctor says of an open key")
	jobs = append(jobs, k.ends("hoomd")...)
	k.until("a record is refused", func() bool { return k.count("failed") > 0 })
	must.Equal(t, k.count("new"), len(jobs)-1, "records that are believed")
	must.OK(t, os.Chmod(k.KeyFile("slurm"), 0o600))
	k.records(len(jobs))
}

// Where the controller doesn't know the users of login nodes, Slurm's tokens name them.
func TestTokensThatNameUsers(t *testing.T) {
	t.Parallel()
	k := newKeyed(t, "use_client_ids")
	jobs := k.ends("hoomd")
	k.ownersAlone(jobs[0])
}
