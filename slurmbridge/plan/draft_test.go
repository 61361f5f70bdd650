package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// begun is a draft that has taken nothing yet: so many jobs wait, and one runs on the first of four GPUs.
func begun(jobs int) *draft {
	all := []job.Job{running("r", "n1", 0, job.Shares, 0)}
	all[0].Request.Count = 40
	for i := range jobs {
		all = append(all, sharer(fmt.Sprint(i)))
	}
	q := count(withCards(snapshot(all...)))
	s := newDraft(q.view, q.waiting, rlcore.NewGuard(rlcore.Rules{}))
	s.guard.Begin(&s.state)
	return s
}

// ids are the jobs of the queue in their order.
func ids(s *draft) []string {
	var out []string
	for i := range s.state.Pending {
		out = append(out, s.state.Pending[i].ID)
	}
	return out
}

// on are the jobs on a GPU in their order.
func on(card *rlcore.GPU) []string {
	var out []string
	for i := range card.Running {
		out = append(out, card.Running[i].ID)
	}
	return out
}

// What is taken leaves the queue and is on its GPU with its cores and its memory; the poll doesn't see it.
func TestTakenJobsAreOnTheirGPU(t *testing.T) {
	s := begun(5)
	before := s.view.state.GPUs[0].FreeCPUs
	number := s.take(0, job.Join, 0, []int{1, 3})
	s.members(number)[0].Shares, s.members(number)[1].Shares = 30, 30
	s.refresh("n1", 0)
	must.Equal(t, ids(s), []string{"0", "2", "4"}, "in the queue")
	must.Equal(t, on(&s.state.GPUs[0]), []string{"r", "1", "3"}, "on the GPU")
	must.Equal(t, s.state.GPUs[0].FreeShares(), 0, "free shares")
	must.Equal(t, s.state.GPUs[0].FreeCPUs, before-2, "free cores")
	must.Equal(t, s.state.GPUs[1].FreeCPUs, before-2, "free cores of the node's other GPU")
	must.Equal(t, on(&s.view.state.GPUs[0]), []string{"r"}, "on the GPU by the poll")
	must.Equal(t, s.view.state.GPUs[0].FreeCPUs, before, "free cores by the poll")
}

// A group that may still grow holds a share for each member, so that the others look free.
func TestAGroupThatMayGrowHoldsOneShareEach(t *testing.T) {
	s := begun(3)
	number := s.take(1, job.StartNow, 0, []int{0, 1})
	s.members(number)[0].Shares, s.members(number)[1].Shares = 50, 50
	for open, want := range map[int64]int{number: 98, 0: 0} {
		s.refresh("n1", open)
		must.Equal(t, s.state.GPUs[1].FreeShares(), want, "shares look free")
	}
}

// Whatever is taken since a checkpoint, rolled back it is as if it had never been: the queue, the GPUs and the groups.
func TestRollBackUndoesAllSinceACheckpoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := begun(12)
		grow := func(node string) { // by some jobs of the queue, on one of the node's GPUs
			n := len(s.state.Pending)
			at := rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 1, min(3, n), rapid.ID[int]).Draw(t, "jobs")
			slices.Sort(at)
			into := int64(0)
			if k := len(s.groups); k > 0 && s.groups[k-1].node == node && rapid.Bool().Draw(t, "grows") {
				into = -int64(k)
			}
			number := s.take(rapid.SampledFrom(s.view.nodes[node]).Draw(t, "GPU"), job.StartNow, into, at)
			s.of(number).spare = rapid.IntRange(0, 50).Draw(t, "spare")
			for i := range s.members(number) {
				s.members(number)[i].Shares = rapid.IntRange(1, 30).Draw(t, "shares")
			}
			s.refresh(node, 0)
		}
		nodes := rapid.SampledFrom([]string{"n1", "n2"})
		for range rapid.IntRange(0, 3).Draw(t, "before") {
			grow(nodes.Draw(t, "node"))
		}
		node := nodes.Draw(t, "node")
		queue, groups, placed := slices.Clone(s.state.Pending), slices.Clone(s.groups), slices.Clone(s.placed[node])
		before := s.checkpoint(node)
		grow(node)
		s.placed[node][0].Shares, s.placed[node][0].gpu = 99, 3 // groups exchange their GPUs
		s.rollBack(before)
		must.Equal(t, s.state.Pending, queue, "the queue")
		must.Equal(t, s.groups, groups, "groups")
		must.Equal(t, s.placed[node], placed, "what is placed")
	})
}

// A plan changes nothing of what it is made from: another one of the same input is the same, and polls, tracker and
// profiles are what they were.
func TestAPlanChangesNothingOfItsInput(t *testing.T) {
	in := withCards(snapshot(
		running("b1", "n1", 0, job.WholeGPU, 0), running("s1", "n2", 0, job.Shares, 0),
		sharer("1"), sharer("2"), whole("w", 2, 1, "Resources"), sharer("3"), sharer("4"), sharer("5"),
	))
	in.Snap.Jobs[1].Request.Count = 40
	picture := func() string {
		of := []any{in.Snap, in.Apps, in.Tracker, in.Tracker.Groups}
		return string(must.Get(json.MarshalIndent(of, "", " "))(t))
	}
	was, first := picture(), planner().Plan(in)
	must.Equal(t, len(first.Groups) > 0, true, "something is decided")
	must.Equal(t, picture(), was)
	must.Equal(t, planner().Plan(in).Changes(), first.Changes(), "another plan")
	var there []string
	for g := range first.Running.GPUs {
		there = append(there, on(&first.Running.GPUs[g])...)
	}
	must.Equal(t, there, []string{"b1", "s1"}, "jobs in the plan's picture of the cluster")
}
