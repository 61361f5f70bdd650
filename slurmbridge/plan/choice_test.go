package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// oneGPU is a cluster of one node with one idle GPU and jobs that wait.
func oneGPU(jobs ...job.Job) *Input {
	in := withCards(snapshot(jobs...))
	in.Snap.Nodes = in.Snap.Nodes[:1]
	in.Snap.Nodes[0].GPUs, in.Snap.Nodes[0].Units = 1, job.Units
	return in
}

// sharesOf are the shares of a plan's members, by ref.
func sharesOf(p *job.Plan) map[string]int {
	out := map[string]int{}
	for i := range p.Groups {
		for _, m := range p.Groups[i].Group.Members {
			out[m.Ref] = m.Shares
		}
	}
	return out
}

// Where decisions may be carried out at all: on GPUs with shares that nothing keeps closed.
func TestGPUsThatAreLeftAlone(t *testing.T) {
	for name, set := range map[string]func(in *Input){
		"the node is down":       func(in *Input) { in.Snap.Nodes[0].Up = false },
		"the node is reserved":   func(in *Input) { in.Snap.Nodes[0].Reserved = true },
		"the node has no shares": func(in *Input) { in.Snap.Nodes[0].Units = 0 },
		"a member may still start": func(in *Input) {
			send(in, "2", job.StartNow, 50)
			in.Tracker.Groups[7].Members[0].State = job.MemberRestoring
		},
		"the MPS server failed": func(in *Input) {
			in.Snap.Jobs = append(in.Snap.Jobs, running("r", "n1", 0, job.Shares, 0))
			in.Snap.Jobs[1].Request.Count, in.Apps["r"] = 40, in.Apps["1"]
			in.Tracker.Faulted[job.GPUAddr{Node: "n1"}] = true
		},
		"it is a foreign job's turn": func(in *Input) {
			in.come(whole("w", 1, 1, "Resources"))
			in.Snap.Jobs[1].Priority = 5000
		},
	} {
		in := oneGPU(sharer("1"))
		set(in)
		must.Equal(t, sharesOf(planner().Plan(in)), nil, name)
	}
	must.Equal(t, sharesOf(planner().Plan(oneGPU(sharer("1")))), map[string]int{"1": 50})
}

// A node that sleeps is woken only after the GPUs of all that are awake have their jobs.
func TestSleepingNodesComeLast(t *testing.T) {
	in := withCards(snapshot(sharer("1")))
	in.Snap.Nodes[0].Asleep = true
	must.Equal(t, planner().Plan(in).Groups[0].Group.Node, "n2")
}

// Of idle nodes the one with the lowest Weight comes first, as on plain Slurm: sites spare their dear ones so.
func TestNodesComeByWeight(t *testing.T) {
	in := withCards(snapshot(sharer("1")))
	in.Snap.Nodes[0].Weight, in.Snap.Nodes[1].Weight = 9, 2
	must.Equal(t, planner().Plan(in).Groups[0].Group.Node, "n2")
}

// Where Slurm may keep a node for a job of several GPUs, the job goes first that Slurm's backfill starts there, whichever
// comes first in the queue.
func TestTheOneThatBackfillStarts(t *testing.T) {
	in := withCards(snapshot(running("b", "n1", 0, job.WholeGPU, 0), whole("w", 2, 1, "Resources"), sharer("long"),
		sharer("short")))
	in.Snap.Nodes = in.Snap.Nodes[:1]
	in.Snap.Jobs[0].TimeLimit, in.Snap.Jobs[2].TimeLimit = time.Hour, 2*time.Hour
	for _, ref := range []string{"long", "short"} {
		in.Apps[ref] = job.App{Key: ref, Profile: runs(60, 100)}
	}
	must.Equal(t, sharesOf(planner().Plan(in)), map[string]int{"short": 50})
}

// How a GPU's shares are divided on a node with one GPU.
func TestHowSharesAreDivided(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(p *Planner, in *Input)
		want map[string]int
	}{
		"with room for a third": {
			func(p *Planner, _ *Input) {
				p.Decider.Guard.MaxMembers = 3
				p.Decider.M = 2
			},
			map[string]int{"1": 33, "2": 33},
		},
		"all of them where the GPU serves no third": {func(*Planner, *Input) {}, map[string]int{"1": 50, "2": 50}},
		"users share by hand on cards of one user: the longest job gets the rest": {
			func(_ *Planner, in *Input) {
				byHand(in)
				in.Apps["2"].Profile.DurationS = 700
			},
			map[string]int{"1": 1, "2": 99},
		},
		"next to a job that waits for its turn each part is larger than that leaves": {
			func(_ *Planner, in *Input) { send(in, "3", job.Turn, 70); in.Tracker.Groups[7].Node = "n9" },
			map[string]int{"1": 50, "2": 50},
		},
	} {
		in, p := oneGPU(sharer("1"), sharer("2")), planner()
		c.set(p, in)
		must.Equal(t, sharesOf(p.Plan(in)), c.want, name)
	}
}

// A job joins a running one on the shares that it left.
func TestAJobJoinsARunningOne(t *testing.T) {
	in, p := oneGPU(sharer("1"), running("r", "n1", 0, job.Shares, 0)), planner()
	in.Snap.Jobs[1].Request.Count = 50
	plan := p.Plan(in)
	must.Equal(t, sharesOf(plan), map[string]int{"1": 50})
	must.Equal(t, plan.Groups[0].Group.Kind, job.Join)
}

// Two jobs on their way to one node that must not meet wait for each other's start, and where a group is refused its
// first job starts alone.
func TestJobsThatMustNotMeetStartApart(t *testing.T) {
	in := withCards(snapshot(sharer("1"), sharer("2"), sharer("3"), sharer("4")))
	in.Snap.Nodes = in.Snap.Nodes[:1]
	for i, user := range []string{"ann", "ann", "bob", "bob"} { // the cards serve one user
		in.Snap.Jobs[i].User = user
	}
	must.Equal(t, sharesOf(planner().Plan(in)), map[string]int{"1": 50, "2": 50, "3": 100})
}

// What a decision refused is told as the decision found it: alone, then with each other job of the window. To tell it
// takes no decision's budget: the plan is the one that the decider makes by itself.
func TestExplanationsTakeNothingFromDecisions(t *testing.T) {
	in := idleCluster(250, 2000, runs(600, 100))
	explained := sizes(shortest(slowing(.05)).Plan(in))

	p := shortest(slowing(.05))
	q := count(in)
	q.scheduleAlone()
	s := newDraft(q.view, q.waiting, p.Decider.Guard)
	s.guard.Begin(&s.state)
	share := func(shares int, number int64) {
		for i := range s.members(number) {
			s.members(number)[i].Shares = shares
		}
	}
	plainly := map[int]int{}
	for g := range s.state.GPUs {
		number := int64(0)
		for {
			dec := p.Decider.Choose(rlcore.NewWindow(nil, &s.state, g, p.Decider.Window()))
			if dec.Combo == 0 {
				break
			}
			number = s.take(g, job.StartNow, number, dec.Jobs())
			share(1, number)
			s.refresh(s.state.GPUs[g].Node, number)
		}
		plainly[len(s.members(number))]++
		share(33, number)
		s.refresh(s.state.GPUs[g].Node, 0)
	}
	must.Equal(t, explained, plainly, "groups by size")
}

// Each explanation is bounded, whatever the window.
func TestExplanationsAreBounded(t *testing.T) {
	var jobs []job.Job
	for i := range 40 {
		jobs = append(jobs, sharer(fmt.Sprint(i)))
		jobs[i].User = fmt.Sprint("user", i) // none may share
	}
	p := planner()
	p.Decider.M = 12
	plan := p.Plan(withCards(snapshot(jobs...)))
	for ref, e := range plan.Explanations {
		if len(e.Vetoes) > mostVetoes || len(e.Considered) > mostConsidered {
			t.Errorf("job %s: %d refused, %d considered", ref, len(e.Vetoes), len(e.Considered))
		}
	}
	e := plan.Explanations["1"]
	first := slices.IndexFunc(e.Vetoes, func(r job.Veto) bool { return slices.Equal(r.With, []string{"2"}) })
	if first < 0 || e.Vetoes[first].Reason != rlcore.VetoUser {
		t.Errorf("with another user's job: %+v", e.Vetoes)
	}
}
