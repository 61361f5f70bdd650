package plan

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Each set of facts fulfils one line of the table, so the order of its lines means nothing.
func TestEachSetOfFactsHasOneClass(t *testing.T) {
	for f := range 2 * ready {
		var is []class
		for _, c := range classes {
			if f&c.all == c.all && f&c.none == 0 {
				is = append(is, c.is)
			}
		}
		must.Equal(t, len(is), 1, "facts %b are of the classes %q", f, is)
	}
}

// What a plan does with a pending job, by what the poll and the tracker say of it. What is ungated tells why, and is in
// the queue as a job of Slurm's from then on.
func TestClassOfAJob(t *testing.T) {
	restoring := job.Member{Ref: "1", State: job.MemberRestoring, Shares: 70}
	waiting := job.Member{Ref: "1", State: job.MemberWaiting, Shares: 70}
	inGroup := func(in *Input, kind job.GroupKind, m job.Member) {
		in.Tracker.Groups[1] = &job.Group{ID: 1, Kind: kind, Node: "n1", State: job.Released, Members: []job.Member{m}}
	}
	edited := func(in *Input) { in.Tracker.Unmanaged["1"] = "edited" }
	after := func(j *job.Job) {
		j.Dependency.List = append(j.Dependency.List, job.Dependency{Type: "afterok", Job: "5"})
	}
	for name, c := range map[string]struct {
		set  func(in *Input, j *job.Job)
		want class
		why  job.Ungated
	}{
		"it waits for the gate": {func(*Input, *job.Job) {}, queued, ""},
		"a repair is about to change it": {
			func(in *Input, _ *job.Job) { in.Touched = map[string]bool{"1": true} }, leftOut, "",
		},
		"its owner has edited it": {func(in *Input, _ *job.Job) { edited(in) }, toSlurm, job.UngatedLeft},
		"its owner has edited it, and it is out": {
			func(in *Input, j *job.Job) { edited(in); j.Dependency = job.Dependencies{} }, foreign, "",
		},
		"it still asks for gpu:shared": {func(_ *Input, j *job.Job) { j.Request.Kind = job.SharedGPU }, toGate, ""},
		"it keeps its turn":            {func(in *Input, _ *job.Job) { inGroup(in, job.Turn, waiting) }, foreign, ""},
		"it kept its turn, and is being restored": {
			func(in *Input, _ *job.Job) { inGroup(in, job.Turn, restoring) }, leftOut, "",
		},
		"it is about to start":   {func(in *Input, _ *job.Job) { inGroup(in, job.StartNow, waiting) }, leftOut, ""},
		"it has no gate":         {func(_ *Input, j *job.Job) { j.Dependency = job.Dependencies{} }, foreign, ""},
		"the gate is open":       {func(in *Input, _ *job.Job) { in.Snap.Gates[0].Open = true }, foreign, ""},
		"it requests two nodes":  {func(_ *Input, j *job.Job) { j.NumNodes = 2 }, toSlurm, job.UngatedNodes},
		"it wants part of a GPU": {func(_ *Input, j *job.Job) { j.Request.Count = 30 }, toSlurm, job.UngatedShares},
		"it wants a whole GPU":   {func(_ *Input, j *job.Job) { j.Request.Kind = job.WholeGPU }, toSlurm, job.UngatedNoRule},
		"it requests a feature":  {func(_ *Input, j *job.Job) { j.Features = "a100" }, toSlurm, job.UngatedFeatures},
		"it prefers a feature":   {func(_ *Input, j *job.Job) { j.Prefers = "fast" }, toSlurm, job.UngatedPrefers},
		"it has a reservation":   {func(_ *Input, j *job.Job) { j.Reservation = "class" }, toSlurm, job.UngatedReservation},
		"it wants own nodes": {
			func(_ *Input, j *job.Job) { j.Exclusive = job.WholeNodes }, toSlurm, job.UngatedWholeNodes,
		},
		"its partition hands out nodes": {
			func(in *Input, _ *job.Job) { in.Snap.WholeNodes = map[string]bool{"gpu": true} }, toSlurm, job.UngatedWholeNodes,
		},
		"it wants no other user": {func(_ *Input, j *job.Job) { j.Exclusive = job.OneUser }, toSlurm, job.UngatedExclusive},
		"its partition keeps users apart": {func(in *Input, j *job.Job) {
			in.Snap.OneUser, j.Exclusive = map[string]bool{"gpu": true}, job.OneUser
		}, queued, ""},
		"no node has its CPUs":   {func(_ *Input, j *job.Job) { j.CPUs = 65 }, toSlurm, job.UngatedSize},
		"no node has its memory": {func(_ *Input, j *job.Job) { j.HostMemMiB = 1<<18 + 1 }, toSlurm, job.UngatedSize},
		"its partition is other": {func(_ *Input, j *job.Job) { j.Partition = "other,cpu" }, toSlurm, job.UngatedSize},
		"its script isn't read":  {func(in *Input, _ *job.Job) { delete(in.Apps, "1") }, leftOut, ""},
		"its owner holds it":     {func(_ *Input, j *job.Job) { j.Priority = 0 }, leftOut, ""},
		"it begins later":        {func(in *Input, j *job.Job) { j.Eligible = in.Snap.At.Add(time.Hour) }, leftOut, ""},
		"it waits for another":   {func(_ *Input, j *job.Job) { after(j) }, leftOut, ""},
		"in shadow it depends on nothing": {
			func(in *Input, j *job.Job) { in.Shadow, j.Dependency = true, job.Dependencies{} }, queued, "",
		},
		"in shadow it depends on another job": {
			func(in *Input, j *job.Job) { in.Shadow, j.Dependency = true, job.Dependencies{}; after(j) }, leftOut, "",
		},
		"in shadow it requests a whole GPU": {
			func(in *Input, j *job.Job) { in.Shadow, j.Request.Kind = true, job.WholeGPU }, foreign, "",
		},
	} {
		in := snapshot(sharer("1"))
		c.set(in, &in.Snap.Jobs[0])
		q := count(in)
		f, _ := q.factsOf(&in.Snap.Jobs[0])
		must.Equal(t, classify(f), c.want, "%s (facts %b)", name, f)
		must.Equal(t, q.reasons["1"], c.why, name)
		for _, j := range q.waiting {
			must.Equal(t, j.Foreign, c.want != queued, "%s: it is Slurm's alone", name)
		}
	}
}

// wholeGPU is the request of a job that rules may adopt.
var wholeGPU = job.GPURequest{Kind: job.WholeGPU, Count: 1, PerNode: true, Raw: "gres/gpu:1"}

// adopting is a cluster of one node whose site lets jobs of one whole GPU share, and such a job behind the gate.
func adopting() *Input {
	j := sharer("1")
	j.Request = wholeGPU
	in := withCards(snapshot(j))
	in.Snap.Nodes = in.Snap.Nodes[:1]
	in.Adopt = &adopt.Policy{Rules: []adopt.Rule{{MaxSlowdown: 1.3}}, Active: true, Percent: 100, Delay: time.Minute}
	in.Apps["1"].Profile.Runs = 1
	return in
}

// Why a job of a whole GPU doesn't share although a rule of the site matches it.
func TestWhyAJobIsNotAdopted(t *testing.T) {
	own := func(in *Input) *rlcore.Profile { return in.Apps["1"].Profile }
	for name, c := range map[string]struct {
		set  func(in *Input)
		want job.Ungated
	}{
		"it may share":                   {func(*Input) {}, ""},
		"no rule matches it":             {func(in *Input) { in.Adopt.Rules[0].Users = []string{"root"} }, job.UngatedNoRule},
		"its owner says no":              {func(in *Input) { in.Terms["1"] = job.Terms{NoShare: true} }, job.UngatedNoRule},
		"Slurm gives away GPUs in use":   {func(in *Input) { in.Snap.GivesUsedGPUs = true }, job.UngatedNoRule},
		"its application is unknown":     {func(in *Input) { in.Apps["1"] = job.App{} }, job.UngatedUnknown},
		"its profile is no run's":        {func(in *Input) { own(in).Runs = 0 }, job.UngatedUnknown},
		"its script is still to be read": {func(in *Input) { delete(in.Apps, "1"); in.Snap.Jobs[0].Submit = in.Snap.At }, ""},
		"its script can't be read":       {func(in *Input) { delete(in.Apps, "1") }, job.UngatedUnknown},
		"it fills a GPU":                 {func(in *Input) { own(in).Series[0].GPU = 1 }, job.UngatedFull},
		"it has a deadline": {
			func(in *Input) { in.Snap.Jobs[0].Deadline = in.Snap.At.Add(24 * time.Hour) }, job.UngatedPromised,
		},
		"its partition has defaults for each GPU": {
			func(in *Input) { in.Snap.PerGPU = map[string]job.PerGPU{"gpu": {CPUs: 4}} }, job.UngatedPerGPU,
		},
		"its partition charges nothing for shares": {
			func(in *Input) { in.Snap.Unbilled = []string{"gpu"} }, job.UngatedUnbilled,
		},
		"another node's GPUs have no shares": {
			func(in *Input) {
				bare := in.Snap.Nodes[0]
				bare.Name, bare.Units, bare.Sharing = "bare", 0, ""
				in.Snap.Nodes = append(in.Snap.Nodes, bare)
			}, job.UngatedUnshared,
		},
		"its application was slower than its contract": {
			func(in *Input) {
				in.Standing = func(of rlcore.Identity) (s interference.Standing) {
					if of.App == "app" {
						s.Slower = in.Snap.At
					}
					return s
				}
			}, job.UngatedBroken,
		},
	} {
		in := adopting()
		c.set(in)
		must.Equal(t, newView(in).unadoptable(&in.Snap.Jobs[0]), c.want, name)
	}
}

// An adopted job that finds no partner keeps its own request, and one that does becomes shares, under its rule's
// contract.
func TestAnAdoptedJobSharesInCompanyOnly(t *testing.T) {
	in := adopting()
	plan := planner().Plan(in)
	must.Equal(t, plan.Ungated["1"], job.UngatedNoPartner)
	must.Equal(t, plan.Groups, nil)
	in.come(sharer("2"))
	plan = planner().Plan(in)
	must.Equal(t, sharesOf(plan), map[string]int{"1": 50, "2": 50})
	if m := plan.Groups[0].Group.Members[0]; m.Contract != 1.3 || m.Rule != "all jobs" || m.WasGres != "gpu:1" {
		t.Errorf("with another: %+v", m)
	}
}

// A rule that was stopped adopts nothing, and one in shadow only says whom it would.
func TestRulesThatAdoptNobody(t *testing.T) {
	in := adopting()
	for range 2 {
		in.Tracker.Stops.Broke("lab", "all jobs", in.Snap.At)
	}
	must.Equal(t, planner().Plan(in).Ungated["1"], job.UngatedNoRule, "stopped")
	in = adopting()
	in.Adopt.Active = false
	in.Snap.Jobs[0].Dependency, in.Snap.Jobs[0].Reason = job.Dependencies{}, "Priority"
	plan := planner().Plan(in)
	must.Equal(t, plan.NotAdopted["1"], job.UngatedRuleInShadow)
	must.Equal(t, plan.Changes(), nil)
}

// Slurm allocates whole cores, and memory for each of their threads: a group has as many members as find room.
func TestWholeCoresAndTheirMemory(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(n *job.Node, j *job.Job)
		want int
	}{
		"cores":              {func(n *job.Node, _ *job.Job) { n.CPUs = 8 }, 4},
		"memory by the CPU":  {func(n *job.Node, j *job.Job) { n.MemMiB, j.HostMemMiB, j.MemPerCPU = 1500, 300, true }, 2},
		"memory by the node": {func(n *job.Node, j *job.Job) { n.MemMiB, j.HostMemMiB = 1500, 300 }, 5},
	} {
		in := oneGPU(sharer("1"), sharer("2"), sharer("3"), sharer("4"), sharer("5"))
		other := in.Snap.Nodes[0] // of another kind in another partition
		other.Name, other.CPUsPerAlloc, other.Partitions = "n9", 8, []string{"big"}
		in.Snap.Nodes = append(in.Snap.Nodes, other)
		n := &in.Snap.Nodes[0]
		n.CPUs, n.CPUsPerAlloc = 16, 2
		for i := range in.Snap.Jobs {
			c.set(n, &in.Snap.Jobs[i])
		}
		p := planner()
		p.Decider.M, p.Decider.Guard.MaxMembers = 5, 5
		must.Equal(t, len(sharesOf(p.Plan(in))), c.want, "%s: jobs that start together", name)
	}
}
