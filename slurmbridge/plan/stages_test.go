package plan

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// largest wants as many jobs together as may be.
type largest struct{}

func (largest) Name() string { return "largest" }

func (largest) Score(dst []float64, _ *rlcore.Window, combos []rlcore.Combo) {
	for i, c := range combos {
		dst[i] = float64(c.Len())
	}
}

// free predicts that sharing costs nothing.
type free struct{}

func (free) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, _ []*rlcore.Profile) {
	for i := range dst {
		dst[i] = rlcore.Prediction{Slowdown: 1}
	}
}

func planner() *Planner {
	return &Planner{Decider: &rlcore.Decider{Policy: largest{}, Guard: &rlcore.Guard{Predictor: free{}, MaxMembers: 2}, M: 5}, Join: true}
}

// running is a job that has been running on a GPU of a node for so long.
func running(ref, node string, gpu int, kind job.RequestKind, since time.Duration) job.Job {
	j := job.Job{Ref: ref, State: job.Running, Nodes: node, GPUs: []int{gpu}, NumNodes: 1, Start: time.Unix(1e9, 0).Add(-since)}
	j.Request = job.GPURequest{Kind: kind, Sharing: job.Shard, Count: 100}
	if kind == job.WholeGPU {
		j.Request.Count = 1
	}
	return j
}

func withCards(in *Input) *Input {
	in.Card = func(string) (rlcore.GPUSpec, bool) { return rlcore.TitanXp, true }
	return in
}

// Choice and seats: what starts together has shares by which Slurm puts it on its GPU, in the order of priority, and no
// GPU is given away twice. Planning again gives the same.
func TestSeatsLeadMembersToTheirGPU(t *testing.T) {
	in := withCards(snapshot(sharer("1"), sharer("2"), sharer("3"), sharer("4"), sharer("5")))
	plan := planner().Plan(in)
	free := map[string][]int{"n1": {100, 100}, "n2": {100, 100}}
	var members []job.Member
	at := map[string]job.GPUAddr{}
	for _, g := range plan.Groups {
		members = append(members, g.Group.Members...)
		for _, m := range g.Group.Members {
			at[m.Ref] = g.Group.Addr()
		}
	}
	slices.SortFunc(members, func(a, b job.Member) int { return plan.Order[a.Ref] - plan.Order[b.Ref] })
	if len(members) != 5 {
		t.Fatalf("%d of 5 jobs start: %+v", len(members), plan.Groups)
	}
	for _, m := range members {
		a := at[m.Ref]
		if g := firstFit.pick(free[a.Node], m.Shares); g != a.GPU {
			t.Errorf("job %s with %d shares lands on GPU %d of %s, meant for %d", m.Ref, m.Shares, g, a.Node, a.GPU)
		} else {
			free[a.Node][g] -= m.Shares
		}
	}
	if again := planner().Plan(in); !reflect.DeepEqual(again.Changes(), plan.Changes()) {
		t.Errorf("another plan of the same input:\n%+v\n%+v", plan.Changes(), again.Changes())
	}
}

// Waiting: foreign jobs may go first as long as a sharer has the time for it; else those whose turn is next are ungated.
func TestTurnsAreKeptWhereTheyWouldBeLost(t *testing.T) {
	busy := func() []job.Job {
		return []job.Job{
			running("b1", "n1", 0, job.WholeGPU, 0), running("b2", "n1", 1, job.WholeGPU, 0),
			running("b3", "n2", 0, job.WholeGPU, 0), running("b4", "n2", 1, job.WholeGPU, 0),
		}
	}
	for name, c := range map[string]struct {
		waits []job.Job
		letGo []string
	}{
		"no foreign jobs":            {[]job.Job{sharer("1"), sharer("2")}, nil},
		"foreign jobs in front":      {[]job.Job{whole("w", 1, 1, "Priority"), sharer("1")}, nil},
		"as many GPUs as jobs":       {[]job.Job{sharer("1"), whole("w", 1, 1, "Priority")}, nil},
		"foreign jobs take all GPUs": {[]job.Job{sharer("1"), whole("w", 2, 2, "Resources"), sharer("2")}, []string{"1"}},
	} {
		in := withCards(snapshot(append(busy(), c.waits...)...))
		plan := planner().Plan(in)
		var letGo []string
		for ref, why := range plan.Unfit {
			if why != job.UnfitTurn {
				t.Errorf("%s: job %s is let go for %q", name, ref, why)
			}
			letGo = append(letGo, ref)
		}
		if !slices.Equal(letGo, c.letGo) {
			t.Errorf("%s: let go: %v, want %v", name, letGo, c.letGo)
		}
	}
}

// Explanation: each job of a window is told what was considered and why the rest was refused.
func TestWhatADecisionConsideredIsExplained(t *testing.T) {
	own := sharer("2")
	own.User = "bob"
	in := withCards(snapshot(
		running("b1", "n1", 0, job.WholeGPU, 0), running("b2", "n1", 1, job.WholeGPU, 0), running("b3", "n2", 0, job.WholeGPU, 0),
		sharer("1"), own))
	plan := planner().Plan(in)
	first, second := plan.Explanations["1"], plan.Explanations["2"]
	if first == nil || second == nil {
		t.Fatalf("explained: %v", plan.Explanations)
	}
	if first.Status != "starts now on n2 gpu 1" || len(first.Considered) == 0 || !first.Considered[0].Taken {
		t.Errorf("the first: %+v", first)
	}
	if !slices.ContainsFunc(second.Refused, func(r job.Refusal) bool { return r.Reason == rlcore.RefusedUser && slices.Equal(r.With, []string{"1"}) }) {
		t.Errorf("the second, another user's: %+v", second)
	}
	if plan.Starts["2"].IsZero() {
		t.Errorf("it isn't told when the second starts")
	}
}
