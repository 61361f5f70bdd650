package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/keytest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

// keyed is a cluster on which Slurm proves by itself who is who (auth/slurm), without a munged,
// and which hides jobs from others.
type keyed struct {
	*world
	key []byte
}

func newKeyed(t *testing.T, authInfo string) *keyed {
	t.Helper()
	slurmtest.RequireAuthSlurm(t)
	k := &keyed{world: newWorld(t, cluster.Setup{AuthSlurm: true, Adjust: func(o *slurmtest.Options) {
		o.Extra = append(o.Extra, "PrivateData=jobs")
		if authInfo != "" {
			o.Extra = append(o.Extra, "AuthInfo="+authInfo)
		}
	}})}
	text := must.Get(os.ReadFile(k.KeyFile("root")))(t)
	k.key = must.Get(base64.StdEncoding.DecodeString(strings.TrimSpace(string(text))))(t)
	return k
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

// post sends a body as a record with a credential.
func (k *keyed) post(header, cred, body string) int {
	k.t.Helper()
	req := must.Get(http.NewRequestWithContext(k.t.Context(), http.MethodPost, k.URL+"/v1/records",
		strings.NewReader(body)))(k.t)
	req.Header.Set(header, cred)
	resp := must.Get(http.DefaultClient.Do(req))(k.t)
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode
}

// forgedRecordsAreRefused sends records that no node sent.
func (k *keyed) forgedRecordsAreRefused() {
	k.t.Helper()
	const body = "forged"
	sum := sha256.Sum256([]byte(body))
	payload := "slurmbridge POST /v1/records " + hex.EncodeToString(sum[:])
	header := credential.NewKey("").Header()
	now := time.Now()
	good := keytest.Forge(k.key, 0, now, payload)
	// Authentic, and no record: it is read, and can't be sent once more.
	must.Equal(k.t, k.post(header, good, body), http.StatusUnprocessableEntity, "the key's own")
	for name, c := range map[string]struct {
		header, cred string
		code         int
	}{
		"nothing":          {header, "", http.StatusUnauthorized},
		"replayed":         {header, good, http.StatusUnauthorized},
		"another key":      {header, keytest.Forge(keytest.Random(k.t), 0, now, payload), http.StatusUnauthorized},
		"an ordinary user": {header, keytest.Forge(k.key, 1000, now, payload), http.StatusForbidden},
		"MUNGE":            {"Munge-Credential", "MUNGE:AAAA:", http.StatusUnauthorized},
	} {
		must.Equal(k.t, k.post(c.header, c.cred, body), c.code, name)
	}
	for _, owner := range []string{"root", "slurm"} {
		if out, err := k.RunAs(k.t.Context(), bob, "cat", k.KeyFile(owner)); err == nil {
			k.t.Errorf("a user reads the key of %s: %s", owner, out)
		}
	}
}

// memoryLimits asks as a node's prolog does.
func (k *keyed) memoryLimits(id string) {
	k.t.Helper()
	n := must.Get(strconv.ParseInt(id, 10, 64))(k.t)
	for file, good := range map[string]bool{k.KeyFile("root"): true, keytest.File(k.t, keytest.Random(k.t)): false} {
		c := &prolog.Controller{URL: k.URL, Credentials: credential.Choose(file, "").Nodes, Timeout: 10 * time.Second}
		if _, err := c.MemoryLimit(k.t.Context(), n, ann); (err == nil) != good {
			k.t.Errorf("a node with %s asks for a limit: %v", file, err)
		}
	}
}

// ownersAlone asks why: jobs are their owner's, and root's.
func (k *keyed) ownersAlone(id string) {
	k.t.Helper()
	for _, as := range []string{ann, "", "slurm"} {
		if out, err := k.ask(as, "why", id); err != nil || !strings.Contains(strings.ToLower(out), "job "+id) {
			k.t.Errorf("%q asks why: %s, %v", as, out, err)
		}
	}
	if out, err := k.ask(bob, "why", id); err == nil || !strings.Contains(out, "not yours") {
		k.t.Errorf("another user asks why: %s, %v", out, err)
	}
	// Whoever shows nothing sees nothing.
	if text, err := k.Text("/v1/why/" + id); err == nil || strings.Contains(text, ann) {
		k.t.Errorf("nobody asks why: %s", text)
	}
}

// rotate changes the key in three steps: the controller believes both, the nodes sign with the new
// one, the old one goes. No daemon is restarted.
func (k *keyed) rotate() {
	k.t.Helper()
	old := k.key
	k.key = keytest.Random(k.t)
	must.OK(k.t, k.WriteKey("slurm", old, k.key), k.WriteKey("root", k.key), k.WriteKey("slurm", k.key))
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

// On a cluster without munged jobs are grouped, nodes' records are believed and nobody else's,
// hooks are answered, owners alone see what is known of their jobs, and the key can be changed.
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
	k.forgedRecordsAreRefused()
	k.memoryLimits(jobs[0])
	k.ownersAlone(jobs[0])
	for _, check := range []string{"key", "token", "munge"} {
		must.Equal(t, k.findings()[check], "", "what doctor finds")
	}

	k.rotate()
	jobs = append(jobs, k.ends("hoomd")...)
	k.records(len(jobs))
	must.Equal(t, k.count("new"), len(jobs), "records that are believed")

	// A key that everybody can read proves nothing: records wait.
	must.OK(t, os.Chmod(k.KeyFile("slurm"), 0o644))
	if what := k.findings()["key"]; !strings.Contains(what, "0644") {
		t.Errorf("doctor says of an open key: %q", what)
	}
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
