package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// snapshot is two nodes of two GPUs and the given jobs, in Slurm's order.
func snapshot(jobs ...job.Job) *Input {
	at := time.Unix(1e9, 0)
	s := &job.Snapshot{At: at, Release: "22.05.8", Gates: []job.GateState{{ID: "9", Begin: at.Add(time.Minute)}}}
	for _, name := range []string{"n1", "n2"} {
		s.Nodes = append(s.Nodes, job.Node{
			Name: name, Up: true, GPUs: 2, GPUType: "titanxp", Sharing: job.Shard, Units: 200, Partitions: []string{"gpu"},
			CPUs: 64, MemMiB: 1 << 18,
		})
	}
	in := &Input{Snap: s, Gate: "9", Apps: map[string]job.App{}, Terms: map[string]job.Terms{}, Tracker: tracker.New()}
	for i := range jobs {
		jobs[i].Priority, jobs[i].Partition, jobs[i].CPUs, jobs[i].NumNodes = int64(1000-i), "gpu", 1,
			max(1, jobs[i].NumNodes)
		jobs[i].TimeLimit = time.Hour
		in.Apps[jobs[i].Ref] = job.App{Key: "app", Profile: &rlcore.Profile{
			App: "app", DurationS: 600, PeriodS: 600,
			Series: []rlcore.Use{{MemMiB: 100}},
		}}
	}
	s.Jobs = jobs
	return in
}

// count is the queue of an input.
func count(in *Input) *queue { return newQueue(newPoll(in), &job.PartitionFilter{}, false) }

func sharer(ref string) job.Job {
	return job.Job{
		Ref: ref, State: job.Pending, Request: job.GPURequest{Kind: job.Shares, Sharing: job.Shard, Count: 100},
		Dependency: job.Dependencies{Raw: "after:9", List: []job.Dependency{{Type: "after", Job: "9"}}},
	}
}

func whole(ref string, gpus, nodes int, reason string) job.Job {
	return job.Job{
		Ref: ref, State: job.Pending, NumNodes: nodes, Reason: reason,
		Request: job.GPURequest{Kind: job.WholeGPU, Count: gpus},
	}
}

// Every job that waits for GPUs is in the queue, in Slurm's order, with what it takes; one that waits for something
// else isn't.
func TestQueueHoldsAllJobsThatWaitForGPUs(t *testing.T) {
	held := whole("held", 1, 1, "JobHeldUser")
	later := whole("later", 1, 1, "BeginTime")
	depends := whole("depends", 1, 1, "Dependency")
	depends.Dependency.List = []job.Dependency{{Type: "afterok", Job: "1"}}
	part := job.Job{Ref: "part", State: job.Pending, Request: job.GPURequest{
		Kind: job.Shares, Sharing: job.Shard,
		Count: 30,
	}}
	exclusive := whole("exclusive", 1, 1, "Priority")
	exclusive.Exclusive = true
	in := snapshot(sharer("1"), whole("2", 1, 1, "Priority"), held, later, depends, part, whole("3", 4, 2, "Resources"),
		whole("4", 2, 2, ""), exclusive, whole("limit", 1, 1, "QOSMaxJobsPerUserLimit"), sharer("5"))
	in.Snap.Jobs[2].Priority = 0
	v := count(in)
	want := []rlcore.Job{
		{ID: "1"},
		{ID: "2", Foreign: true, PerNode: 1, Nodes: 1},
		{ID: "3", Foreign: true, PerNode: 2, Nodes: 2},
		{ID: "4", Foreign: true, PerNode: 2, Nodes: 2},
		{ID: "exclusive", Foreign: true, PerNode: 2, Nodes: 1},
		{ID: "5"},
	}
	if len(v.waiting) != len(want) {
		t.Fatalf("in the queue: %+v", v.waiting)
	}
	for i, w := range want {
		if j := v.waiting[i]; j.ID != w.ID || j.Foreign != w.Foreign || j.PerNode != w.PerNode || j.Nodes != w.Nodes {
			t.Errorf("place %d: %+v, want %+v", i, j, w)
		}
	}
}

// However many jobs of whole GPUs Slurm leaves pending next to idle GPUs, those that have been for long claim none; and
// a job of one type of GPU claims none of another.
func TestQueueIgnoresWhatCannotStart(t *testing.T) {
	var jobs []job.Job
	for i := range 3 * mostWatched {
		jobs = append(jobs, whole(fmt.Sprint(i), 1, 1, "Resources"))
	}
	in := snapshot(append(jobs, sharer("s"))...)
	minutes := 0
	for ; minutes < 10; minutes++ {
		v := count(in)
		if len(v.waiting) == 1 {
			break
		}
		for ref := range v.unstarted {
			in.Tracker.Wait(ref).UnstartedS += 60
		}
	}
	must.Equal(t, minutes, 3)

	typed := whole("a100", 1, 1, "Resources")
	typed.Request.Raw = "gres/gpu:a100:1"
	in = snapshot(typed, sharer("s"))
	in.Snap.Nodes[1].GPUType = "a100"
	v := count(in)
	must.Equal(t, slices.Collect(v.waiting[0].GPUs.Of(4)), []int{2, 3})
	in.Snap.Jobs[0].Exclusive = true // it takes the node with all GPUs
	v = count(in)
	must.Equal(t, v.waiting[0].GPUs.Len(4), 4)
	in.Snap.Jobs[0].Exclusive = false
	in.Snap.Nodes[1].GPUType = "h100" // the site's names aren't understood
	v = count(in)
	must.Equal(t, v.waiting[0].GPUs.Len(4), 4)
}

// A clock that was ahead for a while leaves no dues behind that are as far ahead.
func TestPlainAfterAClockThatWasAhead(t *testing.T) {
	in := snapshot(sharer("1"), whole("2", 1, 1, "Priority"))
	ahead := in.Snap.At.AddDate(1, 0, 0)
	at := in.Snap.At
	in.Snap.At = ahead
	v := count(in)
	in.Tracker.Plain = v.schedulePlain()
	in.Snap.At = at
	v = count(in)
	p := v.schedulePlain()
	if end := tracker.Time(p.EndS("1")); end.After(at.Add(time.Hour)) {
		t.Errorf("its plain end is %v", end)
	}
}

// A job on several nodes holds GPUs on each of them. Where it isn't known which, nothing else is sent there.
func TestQueueKnowsJobsOnSeveralNodes(t *testing.T) {
	for gpus, unsettled := range map[int]bool{1: true, 2: false} {
		j := whole("1", gpus, 2, "")
		j.State, j.Nodes, j.Start = job.Running, "n[1-2]", time.Unix(1e9-60, 0)
		v := count(snapshot(j))
		for g := range v.State.GPUs {
			if r := v.State.GPUs[g].Running; len(r) != 1 || !r[0].Whole {
				t.Errorf("%d GPUs a node: on GPU %d run %+v", gpus, g, r)
			}
		}
		if v.unsettled["n1"] != unsettled || v.unsettled["n2"] != unsettled {
			t.Errorf("%d GPUs a node: unsettled %v", gpus, v.unsettled)
		}
	}
}

// A job with room for what sharing may cost it before MaxTime, reservations and its own limit has a limit that isn't
// fixed.
func TestLimitFixed(t *testing.T) {
	for name, c := range map[string]struct {
		bounds *job.Bounds
		want   bool
	}{
		"nothing is known":  {nil, true},
		"no MaxTime":        {&job.Bounds{MaxTime: map[string]time.Duration{"gpu": 0}}, false},
		"MaxTime near":      {&job.Bounds{MaxTime: map[string]time.Duration{"gpu": 2 * time.Hour}}, true},
		"MaxTime far":       {&job.Bounds{MaxTime: map[string]time.Duration{"gpu": 3 * time.Hour}}, false},
		"another partition": {&job.Bounds{MaxTime: map[string]time.Duration{"cpu": 0}}, true},
		"a reservation ahead": {&job.Bounds{
			MaxTime:      map[string]time.Duration{"gpu": 0},
			Reservations: []job.Reservation{{Name: "m", Start: time.Unix(1e9+7200, 0)}},
		}, true},
		"a reservation far off": {&job.Bounds{
			MaxTime:      map[string]time.Duration{"gpu": 0},
			Reservations: []job.Reservation{{Name: "m", Start: time.Unix(1e9+86400, 0)}},
		}, false},
	} {
		in := snapshot(sharer("1"))
		in.Bounds = c.bounds
		if got := newPoll(in).convert(&in.Snap.Jobs[0]).LimitFixed; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Memory is limited where the card can and the node's driver does.
func TestAnOldDriverLimitsNoMemory(t *testing.T) {
	in := snapshot(sharer("1"))
	in.Card = func(typ string) (rlcore.GPUSpec, bool) {
		return rlcore.GPUSpec{Model: typ, MemMiB: 1000, MemLimits: true}, true
	}
	in.NoLimits = map[string]bool{"n2": true}
	for _, g := range count(in).State.GPUs {
		if want := g.Node != "n2"; g.Spec.MemLimits != want {
			t.Errorf("%s limits memory: %v", g.ID, g.Spec.MemLimits)
		}
	}
}

// A job is decided about by its profile on the model of the GPU in question: it doesn't share on one where it is
// unknown, and runs there by itself.
func TestDecisionsGoByTheModel(t *testing.T) {
	in := snapshot(sharer("1"), sharer("2"), sharer("3"), sharer("4"))
	in.Models = map[job.GPUAddr]string{}
	for g := range 2 {
		in.Models[job.GPUAddr{Node: "n1", GPU: g}] = "fast"
		in.Models[job.GPUAddr{Node: "n2", GPU: g}] = "slow"
	}
	fast := &rlcore.Profile{App: "app", Card: "fast", DurationS: 600, PeriodS: 600, Series: []rlcore.Use{{MemMiB: 100}}}
	for ref := range in.Apps {
		in.Apps[ref] = job.App{Key: "app", Profile: fast, Cards: map[string]*rlcore.Profile{"fast": fast, "slow": nil}}
	}
	in.Snap.Jobs[3].ReqNodes = "n2"
	p := planner()
	v := count(in)
	if j := v.waiting[0]; j.Profile != fast {
		t.Errorf("a job of any GPU: %+v", j.Profile)
	}
	if j := v.waiting[3]; j.Profile != nil {
		t.Errorf("a job of the slow GPUs: %+v", j.Profile)
	}
	for _, g := range p.Plan(in).Groups {
		if n := len(g.Group.Members); n > 1 && g.Group.Node == "n2" {
			t.Errorf("%d jobs share a GPU of a model on which they are unknown", n)
		}
	}
	for g, want := range map[int]*rlcore.Profile{0: fast, 2: nil} {
		if got := v.waiting[0].On(&v.State.GPUs[g]); got != want {
			t.Errorf("on GPU %d: %+v", g, got)
		}
	}
}
