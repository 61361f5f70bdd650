package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/models"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
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
	var known []store.Imported
	for _, name := range apps.Names() {
		p, _ := apps.ByName(name)
		known = append(known, store.Imported{Profile: p})
	}
	must.Get(st.ImportFor(ctx, known))(t)
	from := to.Add(-time.Duration(n*35) * time.Second)
	node := job.Node{Name: "n1", GPUs: 2, GPUType: "titanxp", Up: true, Partitions: []string{"gpu"}}
	var running []job.Job
	for i := range n {
		p := known[r.IntN(len(known))].Profile
		start := from.Add(time.Duration(i*30) * time.Second)
		end := start.Add(time.Duration(p.DurationS * float64(time.Second)))
		if end.After(to.Add(-time.Second)) {
			end = to.Add(-time.Second)
		}
		rec := &gpuprof.Record{
			JobID: int64(i + 1), Node: "n1", User: "ann", Start: start, End: end, Shared: true,
			GPUs: []gpuprof.GPU{{Index: i % 2, UUID: fmt.Sprint("GPU-", i%2), Model: "TITAN Xp", MemMiB: 12196}},
		}
		must.Get(st.AddRecord(ctx, rec, p.App))(t)
		if i > 0 && n < 1000 { // a look for each job is slow where there are many
			now := job.Job{
				Ref: fmt.Sprint(i + 1), User: "ann", Account: "lab", Partition: "gpu", State: job.Running, Priority: 1,
				Submit: start.Add(-time.Minute), Start: start, Nodes: "n1", GPUs: []int{i % 2}, Request: job.GPURequest{Kind: job.Shares, Count: 50},
			}
			running = append(running[:max(0, len(running)-2):max(0, len(running)-2)], now)
			look := &job.Status{Mode: job.Active, Snap: &job.Snapshot{At: start, Jobs: running[max(0, len(running)-1):], Nodes: []job.Node{node}}}
			must.OK(t, j.RecordPoll(ctx, look))
		}
	}
	must.OK(t, j.RecordPoll(ctx, &job.Status{Mode: job.Active, Snap: &job.Snapshot{At: to, Nodes: []job.Node{node}}}))
}

func opened(t testing.TB, file string) (*store.Store, *journal.Journal) {
	t.Helper()
	cfg := must.Get(config.Load(file, nil))(t)
	st := must.Get(store.Open(t.Context(), cfg.Database, slog.New(slog.DiscardHandler)))(t)
	j := journal.New(st.DB())
	return st, j
}

// alone is a network that leaves each GPU to one job.
func alone(t testing.TB) *dqn.Checkpoint {
	t.Helper()
	c := must.Get(pretrained.Checkpoint(policy.Turnaround))(t)
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
	cfg := must.Get(config.Load(file, nil))(t)
	dir := modelsDir(cfg)
	lock := must.Get(dir.Lock())(t)
	defer lock.Close()
	must.OK(t, dir.Replace(c))
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
	busy(t, file, 800, to)
	args := []string{"models", "retrain", "-c", file, "--until", "2026-03-10T12:00", "--seed", "3", "--rounds", "5", "--sets", "20"}
	var texts []string
	for range 2 {
		dir := put(t, file, alone(t))
		put(t, file, alone(t)) // before it, too, another one that doesn't share
		r := asked[models.Result](t, args...)
		if r.Change != models.Replaced || r.Previous == nil || !r.Candidate.Better || r.Trained.Runs+r.Trained.Held != 800 || r.Trained.Guessed != 1 || r.Trained.Seed != 3 || r.Trained.Rounds != 5 {
			t.Fatalf("%+v", r)
		}
		text := must.Get(os.ReadFile(dir.Current()))(t)
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
	cfg := must.Get(config.Load(file, nil))(t)
	lock := must.Get(modelsDir(cfg).Lock())(t)
	if rc, _, errOut := call("models", "retrain", "-c", file); rc != 3 || !strings.Contains(errOut, "another retraining is running") {
		t.Errorf("two at once: %d %q", rc, errOut)
	}
	lock.Close()
	if os.Geteuid() == 0 {
		must.OK(t, os.Chown(cfg.Database, 1, -1))
		if rc, _, errOut := call("models", "retrain", "-c", file); rc != 1 || !strings.Contains(errOut, "run this as that user") {
			t.Errorf("%d %q", rc, errOut)
		}
		must.OK(t, os.Chown(cfg.Database, 0, -1))
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
	cfg := must.Get(config.Load(file, nil))(t)
	for _, c := range []struct{ path, network string }{
		{dir.Current(), "site, previous"},
		{dir.Previous(), pretrained.BuiltInFor(policy.Turnaround)},
	} {
		must.OK(t, os.WriteFile(c.path, []byte("{}"), 0o600))
		if l := asked[listing](t, "models", "list", "-c", file); l.Network != c.network || !strings.Contains(strings.Join(l.Unusable, "\n"), c.path) {
			t.Errorf("%+v", l)
		}
		var said strings.Builder
		log := slog.New(slog.NewTextHandler(&said, nil))
		policies := must.Get(newPolicies(cfg, nil, log))(t)
		if got, name := ownPolicy(cfg, nil, policies, log); name != c.network || len(got) != 3 || got[0].Name() != "dqn" || !strings.Contains(said.String(), "skipped") {
			t.Errorf("%q of %d policies, %s", name, len(got), said.String())
		}
	}
}

// lines is a log that tests read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// teacherOf makes what the daemon has for its models, with a bridge that doesn't look.
func teacherOf(t *testing.T, file string) (*teacher, *lines) {
	t.Helper()
	cfg := must.Get(config.Load(file, nil))(t)
	st, j := opened(t, file)
	t.Cleanup(func() { st.Close() })
	b := &loop.Bridge{Planner: &plan.Planner{Decider: &rlcore.Decider{Policy: baseline.Exclusive{}, Guard: &rlcore.Guard{}}}}
	log := &lines{}
	out := must.Get((&wired{bridge: b, store: st, journal: j}).teacher(cfg, slog.New(slog.NewTextHandler(log, nil))))(t)
	link := filepath.Join(t.TempDir(), "slurmbridge") // by that name this binary is the program, see TestMain
	must.OK(t, os.Symlink(out.self, link))
	out.self = link
	out.follow, out.settle, out.more = 5*time.Millisecond, 0, []string{"--rounds=5", "--sets=20"}
	return out, log
}

// leaks fails a test that leaves goroutines behind, once all it made is closed.
func leaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// children lists the processes that this one has started, by number.
func children(t *testing.T) []int { return childrenOf(t, os.Getpid()) }

func childrenOf(t *testing.T, parent int) []int {
	t.Helper()
	var out []int
	tasks := must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent)))(t)
	for _, f := range tasks {
		text, _ := os.ReadFile(f) // a thread may have ended
		for w := range strings.FieldsSeq(string(text)) {
			pid, _ := strconv.Atoi(w)
			out = append(out, pid)
		}
	}
	return out
}

// until waits for something that is about to happen.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// A retraining is a process of its own, of the lowest priority in all its threads.
func TestChildIsLow(t *testing.T) {
	file := conf(t, "retrain_runs: 100")
	busy(t, file, 200, time.Now().Truncate(time.Second))
	tch, log := teacherOf(t, file)
	tch.more = []string{"--rounds=1000000"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := tch.child(ctx); done <- err }()
	bounded := func(pid int) bool {
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		score, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		return err == nil && err2 == nil && strings.Contains(string(limits), strconv.Itoa(mostData)) && strings.TrimSpace(string(score)) == "1000"
	}
	var pid int
	until(t, "a child of the lowest priority, with a bound", func() bool {
		for _, pid = range children(t) {
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
			low := 0
			for _, th := range threads {
				stat, err := os.ReadFile(th)
				if f := fieldsOf(string(stat)); err == nil && len(f) > 18 && f[18] == "19" {
					low++
				}
			}
			if len(threads) > 2 && low == len(threads) && bounded(pid) {
				return true
			}
		}
		return false
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("it was ended, and returns no error")
	}
	if slices.Contains(children(t), pid) {
		t.Error("it lives on")
	}
	if strings.Contains(log.String(), "isn't bounded") {
		t.Error(log.String())
	}
}

// fieldsOf splits /proc/PID/stat; field n of proc(5) is n-1 here.
func fieldsOf(stat string) []string {
	_, rest, _ := strings.Cut(stat, ") ")
	return append([]string{"", ""}, strings.Fields(rest)...)
}

// Whenever a retraining is killed, the daemon keeps the network that it has, and the next round works.
func TestChildKilled(t *testing.T) {
	leaks(t)
	file := conf(t, "retrain_runs: 100")
	busy(t, file, 200, time.Now().Truncate(time.Second))
	tch, log := teacherOf(t, file)
	results := func() []models.Result {
		t.Helper()
		all := must.Get(tch.dir.Results())(t)
		return all
	}
	for i := range 8 {
		done := make(chan struct{})
		go func() { defer close(done); tch.train(t.Context()) }()
		after := time.Duration(i*i) * 20 * time.Millisecond
		began := time.Now()
	kill:
		for {
			select {
			case <-done:
				break kill
			default:
			}
			for _, pid := range children(t) {
				if time.Since(began) >= after {
					_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
				}
			}
			time.Sleep(time.Millisecond)
		}
		// One that is killed after its last write has both.
		if n := strings.Count(log.String(), "retraining failed"); n+len(results()) < i+1 {
			t.Fatalf("after %d: %d failed, %d results\n%s", i+1, n, len(results()), log.String())
		}
		must.Get(models.Load(tch.dir.Current(), policy.Turnaround))(t)
	}
	if !strings.Contains(log.String(), "signal: killed") {
		t.Errorf("none was killed:\n%s", log.String())
	}
	before := len(results())
	tch.train(t.Context())
	if all := results(); len(all) != before+1 || all[before].Trained.Runs != 150 || all[before].Trained.Held != 50 {
		t.Errorf("%+v\n%s", all, log.String())
	}
}

// The daemon ends at once in the middle of a retraining, and takes it with it.
func TestShutdownWhileTraining(t *testing.T) {
	leaks(t)
	file := conf(t, "retrain_runs: 100")
	busy(t, file, 200, time.Now().Truncate(time.Second))
	tch, log := teacherOf(t, file)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = tch.run(ctx) }()
	until(t, "a retraining", func() bool { return len(children(t)) > 0 })
	time.Sleep(50 * time.Millisecond)
	cancel()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it doesn't end")
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("%v live on", left)
	}
	if strings.Contains(log.String(), "retraining failed") {
		t.Errorf("an end that was asked for is no failure:\n%s", log.String())
	}
	if all, err := tch.dir.Results(); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// What a child says in its last moments is in the log, and does no harm.
func TestStrangeChildren(t *testing.T) {
	file := conf(t)
	tch, log := teacherOf(t, file)
	for text, want := range map[string]string{
		"exit 1": "exit status 1",
		"yes | head -c 5000000; echo fatal error: out of memory >&2; exit 2": "out of memory",
		"echo 'slurmbridge: too few runs: 3' >&2; exit 3":                    "level=INFO msg=\"no retraining\" why=\"too few runs: 3\"",
	} {
		tch.self = filepath.Join(t.TempDir(), "child")
		must.OK(t, os.WriteFile(tch.self, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
		tch.train(t.Context())
		if !strings.Contains(log.String(), want) || len(log.String()) > 20_000 {
			t.Errorf("%s: no %q in\n%s", text, want, log.String())
		}
	}
}

// A network that is put in place decides a moment later, without a restart, and so does the one
// before it, and the built-in one where none is left.
func TestFollow(t *testing.T) {
	leaks(t)
	file := conf(t, "retrain: false")
	tch, log := teacherOf(t, file)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); _ = tch.run(ctx) }()
	says := func(n int, want string) {
		t.Helper()
		until(t, want, func() bool { return strings.Count(log.String(), want) == n })
	}
	const own = "another network decides\" network=\"site 2"
	dir := put(t, file, alone(t))
	says(1, own)
	put(t, file, alone(t))
	says(2, own)
	must.OK(t, dir.Return())
	says(3, own)
	must.OK(t, os.Remove(dir.Current()))
	says(1, "network=\""+pretrained.BuiltInFor(policy.Turnaround))
	cancel()
	<-done
}

// A daemon that is killed takes its retraining with it.
func TestChildDiesWithDaemon(t *testing.T) {
	if file := os.Getenv("TEST_DAEMON_OF"); file != "" {
		tch, _ := teacherOf(t, file)
		tch.more = []string{"--rounds=1000000"}
		_, _ = tch.child(t.Context()) // the daemon is killed meanwhile
		return
	}
	file := conf(t, "retrain_runs: 100")
	busy(t, file, 200, time.Now().Truncate(time.Second))
	daemon := exec.Command("/proc/self/exe", "-test.run=^TestChildDiesWithDaemon$")
	daemon.Env = append(os.Environ(), "TEST_DAEMON_OF="+file)
	must.OK(t, daemon.Start())
	var pids []int
	until(t, "a retraining", func() bool { pids = childrenOf(t, daemon.Process.Pid); return len(pids) > 0 })
	must.OK(t, daemon.Process.Kill())
	_ = daemon.Wait() // it was killed
	until(t, "its end", func() bool {
		for _, pid := range pids {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if f := fieldsOf(string(stat)); err == nil && f[2] != "Z" {
				return false
			}
		}
		return true
	})
}

// The daemon takes up a network that becomes the site's own, and the one before it.
func TestModelsOnSlurm(t *testing.T) {
	l := newLive(t)
	l.serve()
	dir := put(t, l.conf, alone(t))
	// The daemon isn't root, to which the files of this test belong.
	if err := filepath.WalkDir(string(dir), func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, 0o777)
	}); err != nil {
		t.Fatal(err)
	}
	says := func(want string) {
		t.Helper()
		if !slurmtest.Wait(t.Context(), 30*time.Second, func() bool {
			text, err := os.ReadFile(l.Path("log", "bridge.log"))
			return err == nil && strings.Contains(string(text), want)
		}) {
			text, _ := os.ReadFile(l.Path("log", "bridge.log"))
			t.Fatalf("no %q in\n%s", want, text)
		}
	}
	says("another network decides\" network=\"site 2")
	l.says([]string{"site 2", "No round of training has run yet."}, "models", "list")
	must.OK(t, dir.Return())
	says("network=\"" + pretrained.BuiltInFor(policy.Turnaround))
	l.says([]string{"policy dqn"}, "status")
}
