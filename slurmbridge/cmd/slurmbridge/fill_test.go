package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// sleeps knows applications that sleep, by name.
type sleeps map[string]*rlcore.Profile

func (sleeps) Identify(_ context.Context, _ *job.Job, t job.Terms, _ []byte) (string, error) {
	return t.App, nil
}

func (s sleeps) Profile(_ context.Context, _, key, _ string) (*rlcore.Profile, error) {
	return s[key], nil
}

// Idle nodes with several GPUs are filled in one round, with groups: jobs of different lengths, of which three
// fit on a GPU, and which Slurm takes in the order of the queue.
func TestSeveralGPUsAreFilledAtOnce(t *testing.T) {
	for _, c := range []struct {
		policy             string
		nodes, gpus, least int // members of groups of three
	}{{"greedy", 1, 8, 24}, {"dqn", 1, 8, 15}, {"greedy", 5, 8, 110}, {"dqn", 5, 8, 110}, {"srpt", 10, 4, 100}} {
		t.Run(fmt.Sprintf("%s, %d of %d", c.policy, c.nodes, c.gpus), func(t *testing.T) {
			b := sleepers(t, c.policy, c.nodes, c.gpus)
			if _, err := b.Tick(t.Context()); err != nil {
				t.Fatal(err)
			}
			on, grouped := map[job.GPUAddr]int{}, 0
			for _, g := range b.Status().Groups {
				if g.Kind != job.StartNow {
					continue
				}
				on[job.GPUAddr{Node: g.Node, GPU: g.GPU}]++
				if len(g.Members) == 3 {
					grouped += 3
				}
			}
			if len(on) != c.nodes*c.gpus || grouped < c.least {
				t.Errorf("groups on %d of %d GPUs, %d jobs in groups of three", len(on), c.nodes*c.gpus, grouped)
			}
		})
	}
}

// sleepers is a bridge with idle nodes and six waiting jobs a GPU, of 10 to 25 s.
func sleepers(t *testing.T, policy string, nodes, gpus int) *loop.Bridge {
	t.Helper()
	snap := job.Snapshot{Release: "22.05.8", Gates: []job.GateState{{ID: "1", Priority: job.GatePriority, Begin: time.Now().Add(time.Hour)}}}
	for i := range nodes {
		snap.Nodes = append(snap.Nodes, job.Node{
			Name: fmt.Sprintf("n%d", i+1), Up: true, CPUs: 64, MemMiB: 1 << 18, Partitions: []string{"gpu"},
			GPUs: gpus, GPUType: "titanxp", Sharing: job.Shard, Units: job.Units * gpus,
		})
	}
	known, r := sleeps{}, rand.New(rand.NewPCG(1, 0))
	sl := &still{at: map[string]int{}, running: map[string]int{}}
	for i := range 6 * nodes * gpus {
		d := 10 + r.IntN(16)
		key, ref := fmt.Sprint("sleep", d), fmt.Sprint(i+2)
		known[key] = &rlcore.Profile{App: key, DurationS: float64(d), PeriodS: float64(d), Series: []rlcore.Use{{GPU: 0.1, Core: 0.1, MemMiB: 3600}}}
		sl.at[ref] = i
		snap.Jobs = append(snap.Jobs, job.Job{
			Ref: ref, ID: int64(i + 2), User: "ann", Partition: "gpu", State: job.Pending,
			Priority: int64(1000 - i), Submit: time.Now(), CPUs: 1, NumNodes: 1, Comment: "app=" + key, TimeLimit: 3 * time.Minute,
			Request:    job.GPURequest{Kind: job.Shares, Sharing: job.Shard, Count: 100, Raw: "gres:shard:100"},
			Dependency: job.Dependencies{Raw: "after:1", List: []job.Dependency{{Type: "after", Job: "1"}}},
		})
	}
	sl.snap = snap
	cfg, err := config.Load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Policy, cfg.MaxGroup = policy, 3
	log := slog.New(slog.DiscardHandler)
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "s.db"), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	model := interference.New(&contention.MPS)
	policies, err := newPolicies(cfg, model, log)
	if err != nil {
		t.Fatal(err)
	}
	j := journal.New(st.DB())
	return &loop.Bridge{
		Slurm: sl, Apps: known, Journal: j, Runs: &history.History{Records: st, Journal: j}, Beliefs: model, Mode: job.Active, Log: log, PollEvery: time.Minute,
		Card:    func(string) (rlcore.GPUSpec, bool) { return rlcore.TitanXp, true },
		Gate:    &loop.Gate{Slurm: sl, Lease: time.Minute, Sharing: job.Shard, Now: time.Now},
		Planner: &plan.Planner{Decider: newDecider(cfg, policies, model), Join: true, Wanted: policy},
	}
}
