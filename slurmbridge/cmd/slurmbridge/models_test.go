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

// put makes a model of a network and has it decide, as a round would.
func put(t testing.TB, file string, c *dqn.Checkpoint) int64 {
	t.Helper()
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	st, _ := opened(t, file)
	defer st.Close()
	ms := models.NewRegister(st.DB())
	dir := modelsDir(cfg)
	if err := dir.Make(); err != nil {
		t.Fatal(err)
	}
	sum, err := dir.PutCheckpoint(c)
	if err != nil {
		t.Fatal(err)
	}
	u, err := ms.Use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := ms.Conclude(t.Context(), u.Model, u.Model, &models.Finding{Verdict: &models.Verdict{Better: true, Gain: 0.1}}, sum, "")
	if err != nil {
		t.Fatal(err)
	}
	return m.ID
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

// From the store to a promoted network: it is made of what ran, the same again from the
// same store, and stands there with all its figures.
func TestModelsRetrain(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	file := conf(t)
	to := time.Date(2026, 3, 10, 12, 0, 0, 0, time.Local)
	busy(t, file, 320, to)
	bad := put(t, file, alone(t))
	args := []string{"models", "retrain", "-c", file, "--until", "2026-03-10T12:00", "--seed", "3", "--rounds", "5", "--sets", "20"}
	m := asked[models.Model](t, args...)
	if m.Base != models.BuiltIn || m.Trained.Runs+m.Trained.Held != 320 || m.Trained.Guessed != 1 || m.Trained.Seed != 3 || m.Trained.Rounds != 5 {
		t.Errorf("%+v", m)
	}
	l := asked[listing](t, "models", "list", "-c", file)
	if len(l.Models) != 2 || l.Models[0].State != models.RolledBack {
		t.Fatalf("the one that doesn't share is not taken back: %+v", l)
	}
	// Without one before it the bad one is what training begins with.
	for range 2 {
		if status, _, errOut := call("models", "promote", "-c", file, fmt.Sprint(bad)); status != 0 {
			t.Fatal(errOut)
		}
	}
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	var sums []string
	for range 2 {
		st, j := opened(t, file)
		ms := models.NewRegister(st.DB())
		r := &retraining{cfg: cfg, store: st, jour: j, models: ms, dir: modelsDir(cfg), log: slog.New(slog.DiscardHandler)}
		mix, err := loadMix(t.Context(), cfg, st, j, to.AddDate(0, 0, -14), to)
		if err != nil {
			t.Fatal(err)
		}
		f, err := (&models.Round{Mix: mix, Seed: 3, Rounds: 5, Sets: 20, Base: alone(t), Version: version}).Run(t.Context())
		if err != nil || f.Candidate == nil || !f.Verdict.Better {
			t.Fatalf("%+v, %v", f, err)
		}
		sum, err := r.dir.PutCheckpoint(f.Candidate)
		if err != nil {
			t.Fatal(err)
		}
		mixSum, err := r.dir.PutMix(mix)
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, sum, mixSum)
		if err := ms.Auto(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m, err := r.conclude(t.Context(), &found{Base: bad, From: bad, Finding: f, SHA256: sum, Mix: mixSum}); err != nil || len(sums) == 2 && m.State != models.Promoted {
			t.Fatalf("%+v, %v", m, err)
		}
		st.Close()
	}
	if sums[0] != sums[2] || sums[1] != sums[3] {
		t.Errorf("the same store and seed, and other bytes: %v", sums)
	}
	l = asked[listing](t, "models", "list", "-c", file)
	id := l.Model
	if id == bad || id == models.BuiltIn || l.Deciding != id || l.NotLooking != "" {
		t.Fatalf("%+v", l)
	}
	if status, out, errOut := call("models", "retrain", "--again", fmt.Sprint(id), "-c", file); status != 0 || !strings.Contains(out, "the same comes out") {
		t.Errorf("%d %q %q", status, out, errOut)
	}
	if status, out, _ := call("models", "show", fmt.Sprint(id), "-c", file); status != 0 || !strings.Contains(out, "better beyond the noise") ||
		!strings.Contains(out, "in use") || !strings.Contains(out, "seed 3") || !strings.Contains(out, sums[0]) {
		t.Errorf("%d\n%s", status, out)
	}
	if status, out, _ := call("models", "list", "-c", file); status != 0 || !strings.Contains(out, "rejected") || !strings.Contains(out, "in use") {
		t.Errorf("%d\n%s", status, out)
	}
}

// An admin's choice holds until it is given back.
func TestModelsChosen(t *testing.T) {
	file := conf(t)
	one := put(t, file, alone(t))
	status := func(want int64, pinned bool, words string, args ...string) {
		t.Helper()
		rc, out, errOut := call(append(append([]string{"models"}, args...), "-c", file)...)
		if rc != 0 || !strings.Contains(out, words) {
			t.Errorf("%v: %d %q %q, want %q", args, rc, out, errOut, words)
		}
		if l := asked[listing](t, "models", "list", "-c", file); l.Model != want || l.Pinned != pinned || l.Deciding != want {
			t.Errorf("%v: %+v", args, l.Use)
		}
	}
	status(one, false, "in use", "list")
	status(0, true, "The built-in network decides; it is pinned.", "promote", "0")
	status(0, true, "in use, pinned", "show", "0")
	status(one, true, "Model 1 decides; it is pinned.", "promote", "1")
	status(one, false, "later rounds may replace it", "auto")
	status(0, false, "The built-in network decides", "rollback")
	for _, c := range []struct {
		rc    int
		words string
		args  []string
	}{
		{1, "nothing to roll back", []string{"rollback"}},
		{1, "model 7: there is no such model", []string{"promote", "7"}},
		{1, "model 7: there is no such model", []string{"show", "7"}},
		{2, `"x" is no model's number`, []string{"show", "x"}},
		{2, `"-1" is no model's number`, []string{"promote", "--", "-1"}},
		{2, "--rounds is 0", []string{"retrain", "--rounds", "0"}},
		{2, "--seed is that of the model", []string{"retrain", "--again", "1", "--seed", "2"}},
		{2, "--until", []string{"retrain", "--until", "soon"}},
		{3, "too few runs: 0 of the last 14 days", []string{"retrain"}},
	} {
		if rc, out, errOut := call(append(append([]string{"models"}, c.args[:1]...), append([]string{"-c", file}, c.args[1:]...)...)...); rc != c.rc || out != "" || !strings.Contains(errOut, c.words) {
			t.Errorf("%v: %d %q %q", c.args, rc, out, errOut)
		}
	}
	if os.Geteuid() == 0 {
		cfg, err := config.Load(file, nil)
		if err != nil {
			t.Fatal(err)
		}
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
	// Files that were damaged are told; the one before decides.
	two := put(t, file, alone(t))
	l := asked[listing](t, "models", "list", "-c", file)
	if err := os.WriteFile(l.Models[two-1].File, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l = asked[listing](t, "models", "list", "-c", file); l.Deciding != 0 || l.Model != two || !strings.Contains(l.Models[two-1].Unusable, "SHA-256") {
		t.Errorf("%+v", l)
	}
	if rc, _, errOut := call("models", "promote", fmt.Sprint(two), "-c", file); rc != 1 || !strings.Contains(errOut, "model can't be used") {
		t.Errorf("%d %q", rc, errOut)
	}
	// The bridge itself goes on with what it can use.
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	st, _ := opened(t, file)
	defer st.Close()
	var said strings.Builder
	log := slog.New(slog.NewTextHandler(&said, nil))
	policies, err := newPolicies(cfg, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	got, id, err := withModel(t.Context(), cfg, models.NewRegister(st.DB()), nil, policies, log)
	if err != nil || id != models.BuiltIn || len(got) != 3 || got[0].Name() != "dqn" || !strings.Contains(said.String(), "passed over") {
		t.Errorf("%d of %d policies, %v, %s", id, len(got), err, said.String())
	}
	// Settings that name a model, or another policy, have none of these decide.
	for _, line := range []string{"policy: greedy", "model: " + filepath.Join(t.TempDir(), "x")} {
		if l := asked[listing](t, "models", "list", "-c", conf(t, line)); l.NotLooking == "" {
			t.Errorf("%s: %+v", line, l)
		}
	}
}
