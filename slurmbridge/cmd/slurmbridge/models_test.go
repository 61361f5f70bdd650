package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/models"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// busy fills a database with n runs of the thesis's applications on two GPUs, the last of
// which ended before to. The ledger saw all but the first of them wait for a minute.
func busy(t testing.TB, file string, n int, to time.Time) {
	t.Helper()
	ctx := context.Background()
	st, j := opened(t, file)
	defer st.Close()
	r := rand.New(rand.NewPCG(1, 1))
	var known []*rlcore.Profile
	for _, name := range apps.Names() {
		p, _ := apps.ByName(name)
		known = append(known, p)
	}
	if err := st.Import(ctx, known); err != nil {
		t.Fatal(err)
	}
	from := to.Add(-time.Duration(n*35) * time.Second)
	node := job.Node{Name: "n1", GPUs: 2, GPUType: "titanxp", Up: true, Partitions: []string{"gpu"}}
	var running []job.Job
	for i := range n {
		p := known[r.IntN(len(known))]
		start := from.Add(time.Duration(i*30) * time.Second)
		end := start.Add(time.Duration(p.DurationS * float64(time.Second)))
		if end.After(to.Add(-time.Second)) {
			end = to.Add(-time.Second)
		}
		rec := &gpuprof.Record{
			JobID: int64(i + 1), Node: "n1", User: "ann", Start: start, End: end, Shared: true,
			GPUs: []gpuprof.GPU{{Index: i % 2, UUID: fmt.Sprint("GPU-", i%2), Model: "TITAN Xp", MemMiB: 12196}},
		}
		if _, err := st.AddRecord(ctx, rec, p.App); err != nil {
			t.Fatal(err)
		}
		if i > 0 && n < 1000 { // a look for each job is slow where there are many
			now := job.Job{
				Ref: fmt.Sprint(i + 1), User: "ann", Account: "lab", Partition: "gpu", State: job.Running, Priority: 1,
				Submit: start.Add(-time.Minute), Start: start, Nodes: "n1", GPUs: []int{i % 2}, Request: job.GPURequest{Kind: job.Shares, Count: 50},
			}
			running = append(running[:max(0, len(running)-2):max(0, len(running)-2)], now)
			look := &job.Status{Mode: job.Active, Snap: &job.Snapshot{At: start, Jobs: running[max(0, len(running)-1):], Nodes: []job.Node{node}}}
			if err := j.RecordPoll(ctx, look); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := j.RecordPoll(ctx, &job.Status{Mode: job.Active, Snap: &job.Snapshot{At: to, Nodes: []job.Node{node}}}); err != nil {
		t.Fatal(err)
	}
}

func opened(t testing.TB, file string) (*store.Store, *journal.Journal) {
	t.Helper()
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), cfg.Database, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	j := journal.New(st.DB())
	return st, j
}

// alone is a network that leaves each GPU to one job.
func alone(t testing.TB) *dqn.Checkpoint {
	t.Helper()
	c, err := pretrained.Checkpoint(policy.Turnaround)
	if err != nil {
		t.Fatal(err)
	}
	net, err := c.Network(nil)
	if err != nil {
		t.Fatal(err)
	}
	theta, in, h := net.Params()[1].Theta, encoder.ContextLen+encoder.ComboLen, c.Hidden
	clear(theta)
	theta[encoder.ContextLen+1], theta[in*h+h], theta[in*h+h+h*h+h] = 1, 1, -100 // jobs started, through the layers
	if c, err = dqn.FromTrainer(&dqn.Trainer{Net: net}, "nothing", "test"); err != nil {
		t.Fatal(err)
	}
	return c
}

// put lets a network decide, as a round would.
func put(t testing.TB, file string, c *dqn.Checkpoint) models.Dir {
	t.Helper()
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := modelsDir(cfg)
	lock, err := dir.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := dir.Replace(c); err != nil {
		t.Fatal(err)
	}
	return dir
}

// asked runs a command that must succeed, and reads its JSON.
func asked[T any](t testing.TB, args ...string) (out T) {
	t.Helper()
	status, text, errOut := call(append(args, "--json")...)
	if status != 0 {
		t.Fatalf("%v: %d, %s", args, status, errOut)
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v: %v in %s", args, err, text)
	}
	return out
}

// From the store to a network that decides: it is made of what ran, the same again from the same
// store, and one that doesn't share is replaced.
func TestModelsRetrain(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	file := conf(t)
	to := time.Date(2026, 3, 10, 12, 0, 0, 0, time.Local)
	busy(t, file, 320, to)
	args := []string{"models", "retrain", "-c", file, "--until", "2026-03-10T12:00", "--seed", "3", "--rounds", "5", "--sets", "20"}
	var texts []string
	for range 2 {
		dir := put(t, file, alone(t))
		put(t, file, alone(t)) // before it, too, another one that doesn't share
		r := asked[models.Result](t, args...)
		if r.Change != models.Replaced || r.Previous == nil || !r.Candidate.Better || r.Trained.Runs+r.Trained.Held != 320 || r.Trained.Guessed != 1 || r.Trained.Seed != 3 || r.Trained.Rounds != 5 {
			t.Fatalf("%+v", r)
		}
		text, err := os.ReadFile(dir.Current())
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	if texts[0] != texts[1] {
		t.Error("the same store, network and seed, and other bytes")
	}
	l := asked[listing](t, "models", "list", "-c", file)
	if !strings.HasPrefix(l.Network, "site 2") || l.File == "" || l.Unused != "" || len(l.Unusable) > 0 || len(l.Rounds) != 2 {
		t.Errorf("%+v", l)
	}
	if status, out, _ := call("models", "list", "-c", file); status != 0 || !strings.Contains(out, "replaced") || !strings.Contains(out, "better beyond the noise") || !strings.Contains(out, l.File) {
		t.Errorf("%d\n%s", status, out)
	}
}

func TestModelsAnswers(t *testing.T) {
	file := conf(t)
	if _, out, _ := call("models", "list", "-c", file); !strings.Contains(out, "No round of training has run yet.") || !strings.HasPrefix(out, "Network in use: "+pretrained.BuiltInFor(policy.Turnaround)+", for the turnaround.") {
		t.Errorf("%q", out)
	}
	opened(t, file)
	for _, c := range []struct {
		rc    int
		words string
		args  []string
	}{
		{2, "models promote is gone: networks are files now", []string{"promote", "7"}},
		{2, "models rollback is gone", []string{"rollback"}},
		{2, "--rounds is 0", []string{"retrain", "--rounds", "0"}},
		{2, "--until", []string{"retrain", "--until", "soon"}},
		{3, "too few runs: 0 of the last 14 days", []string{"retrain"}},
	} {
		if rc, out, errOut := call(append(append([]string{"models"}, c.args[:1]...), append([]string{"-c", file}, c.args[1:]...)...)...); rc != c.rc || out != "" || !strings.Contains(errOut, c.words) {
			t.Errorf("%v: %d %q %q", c.args, rc, out, errOut)
		}
	}
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := modelsDir(cfg).Lock()
	if err != nil {
		t.Fatal(err)
	}
	if rc, _, errOut := call("models", "retrain", "-c", file); rc != 3 || !strings.Contains(errOut, "another retraining is running") {
		t.Errorf("two at once: %d %q", rc, errOut)
	}
	lock.Close()
	if os.Geteuid() == 0 {
		if err := os.Chown(cfg.Database, 1, -1); err != nil {
			t.Fatal(err)
		}
		if rc, _, errOut := call("models", "retrain", "-c", file); rc != 1 || !strings.Contains(errOut, "run this as that user") {
			t.Errorf("%d %q", rc, errOut)
		}
		if err := os.Chown(cfg.Database, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	// Settings that name a network, or another policy, let none of these decide.
	for _, line := range []string{"policy: greedy", "model: " + filepath.Join(t.TempDir(), "x")} {
		if l := asked[listing](t, "models", "list", "-c", conf(t, line)); l.Unused == "" {
			t.Errorf("%s: %+v", line, l)
		}
	}
}

// Of networks that can't be used the one before decides, and the built-in one in the end; list
// and the log say so.
func TestModelsDamaged(t *testing.T) {
	file := conf(t)
	put(t, file, alone(t))
	dir := put(t, file, alone(t))
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, network string }{
		{dir.Current(), "site, previous"},
		{dir.Previous(), pretrained.BuiltInFor(policy.Turnaround)},
	} {
		if err := os.WriteFile(c.path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if l := asked[listing](t, "models", "list", "-c", file); l.Network != c.network || !strings.Contains(strings.Join(l.Unusable, "\n"), c.path) {
			t.Errorf("%+v", l)
		}
		var said strings.Builder
		log := slog.New(slog.NewTextHandler(&said, nil))
		policies, err := newPolicies(cfg, nil, log)
		if err != nil {
			t.Fatal(err)
		}
		if got, name := ownPolicy(cfg, nil, policies, log); name != c.network || len(got) != 3 || got[0].Name() != "dqn" || !strings.Contains(said.String(), "skipped") {
			t.Errorf("%q of %d policies, %s", name, len(got), said.String())
		}
	}
}
