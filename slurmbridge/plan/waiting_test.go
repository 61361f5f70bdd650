package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// full is a cluster of four busy GPUs and the given waiting jobs.
func full(kind job.RequestKind, waits ...job.Job) *Input {
	var all []job.Job
	for g := range 4 {
		all = append(all, running(fmt.Sprint("b", g), fmt.Sprint("n", g/2+1), g%2, kind, 0))
	}
	return withCards(snapshot(append(all, waits...)...))
}

// turns are the groups of a plan that keep a turn, by the ref of their job.
func turns(p *job.Plan) map[string]job.Member {
	out := map[string]job.Member{}
	for i := range p.Groups {
		if g := &p.Groups[i].Group; g.Kind == job.Turn {
			out[g.Members[0].Ref] = g.Members[0]
		}
	}
	return out
}

// losing is a sharer that a job of two nodes behind it would overtake, on a full cluster.
func losing() *Input {
	return full(job.WholeGPU, sharer("1"), whole("w", 2, 2, "Resources"))
}

// roomy is a planner whose groups leave room for later jobs.
func roomy() *Planner {
	p := planner()
	p.Room, p.RoomAnyway = true, true
	return p
}

// A job whose turn would be lost waits in Slurm's own queue, with so many shares that it starts on an empty GPU alone,
// and with room for jobs that join it.
func TestATurnIsKeptWithRoomForOthers(t *testing.T) {
	must.Equal(t, turns(roomy().Plan(losing()))["1"].Shares, leastTurnShares)
}

// Why a job whose turn would be lost is ungated instead: it waits as a job of a whole GPU then.
func TestATurnThatCanNotBeKeptWithShares(t *testing.T) {
	for name, set := range map[string]func(p *Planner, in *Input){
		"jobs never join":                 func(p *Planner, _ *Input) { p.Join = false },
		"groups leave no room":            func(p *Planner, _ *Input) { p.Room = false },
		"it never shares":                 func(_ *Planner, in *Input) { in.Terms["1"] = job.Terms{NoShare: true} },
		"its application is unknown":      func(_ *Planner, in *Input) { in.Apps["1"] = job.App{} },
		"a job that runs holds one share": func(_ *Planner, in *Input) { holds(in, 1) },
	} {
		p, in := roomy(), losing()
		set(p, in)
		if plan := p.Plan(in); len(turns(plan)) > 0 || plan.Ungated["1"] != job.UngatedTurn {
			t.Errorf("%s: turns %v, ungated for %q", name, turns(plan), plan.Ungated["1"])
		}
	}
}

// holds lets the first of the running jobs be a sharer of another user, which nobody may join.
func holds(in *Input, shares int) {
	in.Snap.Jobs[0].User = "bob"
	in.Snap.Jobs[0].Request = job.GPURequest{Kind: job.Shares, Sharing: job.Shard, Count: shares}
}

// send adds a released job that hasn't started yet.
func send(in *Input, ref string, kind job.GroupKind, shares int) {
	j := sharer(ref)
	j.Dependency, j.ReqNodes, j.Request.Count, j.Priority = job.Dependencies{}, "n1", shares, 1
	j.NumNodes, j.Partition = 1, "gpu"
	in.Snap.Jobs = append(in.Snap.Jobs, j)
	in.Tracker.Groups[7] = &job.Group{
		ID: 7, Kind: kind, Node: "n1", State: job.Released,
		Members: []job.Member{{Ref: ref, State: job.MemberWaiting, Shares: shares}},
	}
}

// The less a sharer holds, the more a job needs that is to fit next to no sharer.
func TestTurnSharesFitNextToNobody(t *testing.T) {
	for shares, want := range map[int]int{50: 70, 31: 70, 30: 71, 20: 81, 2: 99} {
		in := losing()
		holds(in, shares)
		must.Equal(t, turns(roomy().Plan(in))["1"].Shares, want, "next to a job of %d shares", shares)
	}
}

// While a job waits for its turn with 70 shares no group gives a member 30 or fewer: the job would start next to it.
func TestNoMemberFitsNextToAJobThatKeepsItsTurn(t *testing.T) {
	for shares, want := range map[int]int{70: 31, 90: 11} {
		in := losing()
		send(in, "2", job.Turn, shares)
		must.Equal(t, newPoll(in).leastShares(), want, "the least of a member next to one of %d shares", shares)
	}
	must.Equal(t, newPoll(losing()).leastShares(), 1, "the least of a member without such a job")
}

// A job that keeps its turn is in the queue as one of Slurm's: no decision starts it, and it is no member on its way.
func TestAJobThatKeepsItsTurnIsInSlurmsQueue(t *testing.T) {
	in := losing()
	send(in, "2", job.Turn, 70)
	q := count(in)
	for _, j := range q.waiting {
		if j.ID == "2" && !j.Foreign {
			t.Error("a decision may start it")
		}
	}
	if len(q.waiting) != 3 || len(q.onWay["n1"]) > 0 || q.starting["2"] {
		t.Errorf("in the queue: %d, on their way: %v, starting: %v", len(q.waiting), q.onWay, q.starting)
	}
}

// A job of a whole GPU by a rule of the site keeps its turn with shares only if a job of the queue may join it.
func TestAnAdoptedJobKeepsItsTurnForAPartner(t *testing.T) {
	for _, partner := range []bool{true, false} {
		in := losing()
		in.Adopt = adopting().Adopt
		in.Snap.Jobs[4].Request = job.GPURequest{Kind: job.WholeGPU, Count: 1, PerNode: true, Raw: "gres/gpu:1"}
		in.Apps["1"].Profile.Runs = 1
		if partner {
			in.come(sharer("2"))
		}
		plan := roomy().Plan(in)
		if _, kept := turns(plan)["1"]; kept != partner || !kept && plan.Ungated["1"] != job.UngatedTurn {
			t.Errorf("with a partner %v: its turn is kept %v, ungated for %q", partner, kept, plan.Ungated["1"])
		}
	}
}

// A job that waits beside an idle GPU for as long as it may is ungated; one that no idle GPU may serve waits on.
func TestADelayHasAnEnd(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(in *Input)
		want job.Ungated
	}{
		"not long enough": {func(in *Input) { in.Tracker.Wait("1").DelayedS = 299 }, ""},
		"long enough":     {func(in *Input) { in.Tracker.Wait("1").DelayedS = 300 }, job.UngatedDelay},
		"in shadow":       {func(in *Input) { in.Tracker.Wait("1").DelayedS, in.Shadow = 300, true }, ""},
		"the idle GPU is another node's": {
			func(in *Input) { in.Tracker.Wait("1").DelayedS, in.Snap.Jobs[0].ReqNodes = 300, "n2" }, "",
		},
	} {
		in := withCards(snapshot(sharer("1"), running("b2", "n2", 0, job.WholeGPU, 0),
			running("b3", "n2", 1, job.WholeGPU, 0)))
		in.Unproved = true // so nothing is decided
		c.set(in)
		must.Equal(t, planner().Plan(in).Ungated["1"], c.want, name)
	}
}

// A job that finds no idle GPU and may preempt others is Slurm's to start.
func TestAJobThatMayPreemptIsUngated(t *testing.T) {
	ranks := map[string]job.PartitionRank{"gpu": {Tier: 1, Preemptible: true}, "urgent": {Tier: 2}}
	for partition, want := range map[string]job.Ungated{"urgent": job.UngatedPreempts, "gpu": ""} {
		in := full(job.WholeGPU, sharer("1"))
		in.Snap.Ranks.Partitions = ranks
		for i := range in.Snap.Nodes {
			in.Snap.Nodes[i].Partitions = []string{"gpu", "urgent"}
		}
		in.Snap.Jobs[4].Partition = partition
		must.Equal(t, planner().Plan(in).Ungated["1"], want, partition)
	}
}

// A job that Slurm would cancel for its deadline, if the bridge died now and the gate held it, isn't held.
func TestADeadlineLeavesNoTimeToWait(t *testing.T) {
	for left, want := range map[time.Duration]job.Ungated{time.Minute: job.UngatedDeadline, time.Hour: ""} {
		in := full(job.WholeGPU, sharer("1"))
		in.HoldS = 120
		in.Snap.Jobs[4].Deadline = in.Snap.At.Add(time.Hour + left) // its limit is an hour
		must.Equal(t, planner().Plan(in).Ungated["1"], want, "with %v to spare", left)
	}
}

// The queue is told when each job starts at the latest, one after the other on GPUs of their own.
func TestExpectedStarts(t *testing.T) {
	in := full(job.Shares, sharer("1"), sharer("2"), sharer("3"), sharer("4"), sharer("5"))
	for g := range 4 { // they end one after the other
		in.Apps[fmt.Sprint("b", g)] = job.App{Key: "b", Profile: runs(float64(100*(g+1)), 100)}
	}
	plan := planner().Plan(in)
	for i, want := range []time.Duration{100, 200, 300, 400, 700} { // the fifth after the first, which takes 600 s
		must.Equal(t, plan.Starts[fmt.Sprint(i+1)].Sub(in.Snap.At), want*time.Second, "job %d starts in", i+1)
	}
}
