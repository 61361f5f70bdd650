package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// still is a Slurm that answers at once, in which what is released runs for ever.
type still struct {
	job.Slurm
	snap job.Snapshot
	at   map[string]int // of jobs in snap
	// most is how many jobs of one user Slurm starts, 0 = all.
	most    int
	running map[string]int // by user
}

func (s *still) Poll(context.Context) (*job.Snapshot, error) {
	c := s.snap
	c.At, c.Jobs = time.Now(), slices.Clone(c.Jobs)
	return &c, nil
}

func (s *still) UpdateAll(ctx context.Context, all []job.Update) []error {
	errs := make([]error, len(all))
	for i, u := range all {
		errs[i] = s.Update(ctx, u)
	}
	return errs
}

func (s *still) Update(_ context.Context, u job.Update) error {
	for _, ref := range u.Jobs {
		j := &s.snap.Jobs[s.at[ref]]
		if u.Gres != nil {
			j.Request = text.ParseRequest(text.TRES{PerNode: "gres:" + *u.Gres})
		}
		if u.ReqNodes != nil {
			j.ReqNodes = *u.ReqNodes
		}
		if u.Dependency != nil {
			j.Dependency = text.ParseDependencies(*u.Dependency)
		}
		switch {
		case !u.StartNow:
		case s.most > 0 && s.running[j.User] >= s.most:
			j.Reason = "QOSMaxJobsPerUserLimit"
		default:
			s.running[j.User]++
			j.State, j.Start, j.Nodes, j.GPUs = job.Running, time.Now(), j.ReqNodes, []int{0}
		}
	}
	return nil
}

func (s *still) CreateGate(context.Context, time.Duration, []string) (id, account string, err error) {
	return "1", "", nil
}
func (s *still) ClaimGate(context.Context, string) error                 { return nil }
func (s *still) MendGate(context.Context, job.GateState, []string) error { return nil }
func (s *still) RenewGate(context.Context, string, time.Duration) error  { return nil }
func (s *still) Script(context.Context, string) ([]byte, error)          { return nil, nil }
func (s *still) Describe(context.Context, []string) (map[string]job.Description, error) {
	return nil, nil
}

// known tells a job's application by its name.
type known struct{}

func (known) Identify(_ context.Context, _ *job.Job, t job.Terms, _ []byte) (string, error) {
	return t.App, nil
}

func (known) Profile(_ context.Context, _, key, _ string) (*rlcore.Profile, error) {
	p, _ := apps.ByName(key)
	return p, nil
}

// BenchmarkTick is a look at 10,000 waiting jobs and 500 GPUs, without the time of
// Slurm's own commands: the first, which finds out what runs where and fills all
// GPUs, and those that follow. dqn decides, and the journal is a file. With limits
// Slurm starts 8 jobs of each of 40 users, which leaves GPUs idle.
func BenchmarkTick(b *testing.B) {
	b.Run("free", func(b *testing.B) { benchmarkTick(b, 0) })
	b.Run("limits", func(b *testing.B) { benchmarkTick(b, 8) })
}

func benchmarkTick(b *testing.B, most int) {
	const gpus, jobs = 500, 10000
	ctx := b.Context()
	snap := job.Snapshot{
		Release: "22.05.8",
		Gates:   []job.GateState{{ID: "1", Priority: job.GatePriority, Begin: time.Now().Add(time.Hour)}},
	}
	for i := range gpus {
		snap.Nodes = append(snap.Nodes, job.Node{
			Name: fmt.Sprintf("n%d", i), Up: true, CPUs: 64, MemMiB: 1 << 18, Partitions: []string{"gpu"},
			GPUs: 1, GPUType: "titanxp", Sharing: job.MPS, Units: 100,
		})
	}
	names := apps.Names()
	for i := range jobs {
		snap.Jobs = append(snap.Jobs, job.Job{
			Ref: fmt.Sprint(i + 10), ID: int64(i + 10), User: fmt.Sprint("user", i%40), Partition: "gpu", State: job.Pending,
			Priority: int64(jobs - i), Submit: time.Now(), CPUs: 2, NumNodes: 1, Comment: "app=" + names[i%len(names)],
			Request:    job.GPURequest{Kind: job.Shares, Sharing: job.MPS, Count: 100, Raw: "gres:mps:100"},
			Dependency: job.Dependencies{Raw: "after:1", List: []job.Dependency{{Type: "after", Job: "1"}}},
		})
	}
	cfg := must.Get(config.Load("", nil))(b)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	st := must.Get(store.Open(ctx, filepath.Join(b.TempDir(), "s.db")))(b)
	defer st.Close()
	j := journal.New(st.DB())
	model := interference.New(&contention.MPS)
	policies := must.Get(newPolicies(cfg, model, log))(b)
	sl := &still{snap: snap, at: map[string]int{}, most: most, running: map[string]int{}}
	for i := range snap.Jobs {
		sl.at[snap.Jobs[i].Ref] = i
	}
	bridge := &loop.Bridge{
		Slurm: sl, Apps: known{}, Journal: j, Runs: past(st), Beliefs: model, Mode: job.Active, Log: log,
		PollEvery: time.Minute,
		Card:      func(string) (rlcore.GPUSpec, bool) { return rlcore.TitanXp, true },
		Gate:      &loop.Gate{Slurm: sl, Lease: time.Minute, Sharing: job.MPS, Now: time.Now},
		Planner:   &plan.Planner{Decider: newDecider(cfg, policies, model), Join: true, Room: true, Wanted: "dqn"},
	}
	began := time.Now()
	must.Get(bridge.Tick(ctx))(b)
	first := time.Since(began)
	groups := len(bridge.Status().Groups)
	if groups < gpus && most == 0 {
		b.Fatalf("%d groups on %d GPUs", groups, gpus)
	}
	for range 3 { // until all is settled
		must.Get(bridge.Tick(ctx))(b)
	}
	for b.Loop() {
		must.Get(bridge.Tick(ctx))(b)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(first.Seconds()*1e3, "first-ms")
	b.ReportMetric(float64(len(bridge.Status().Plan.Limited)), "limited")
	b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "heap-MiB") // the fake cluster's is in it
	runtime.KeepAlive(bridge)
}
