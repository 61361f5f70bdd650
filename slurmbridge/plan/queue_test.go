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
		in.Apps[jobs[i].Ref] = job.App{Key: "app", Profile: runs(600, 100)}
	}
	s.Jobs = jobs
	return in
}

// runs is an application that takes so long alone, with so much memory.
func runs(s, mib float64) *rlcore.Profile {
	return &rlcore.Profile{App: "app", DurationS: s, PeriodS: s, Series: []rlcore.Use{{MemMiB: mib}}}
}

// come adds jobs behind the others of an input.
func (in *Input) come(jobs ...job.Job) {
	more := snapshot(jobs...)
	for i := range more.Snap.Jobs {
		j := more.Snap.Jobs[i]
		j.Priority = int64(500 - len(in.Snap.Jobs))
		in.Snap.Jobs = append(in.Snap.Jobs, j)
		in.Apps[j.Ref] = more.Apps[j.Ref]
	}
}

// count is the queue of an input.
func count(in *Input) *queue { return newQueue(newView(in), &job.PartitionFilter{}) }

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
	part := sharer("part")
	part.Dependency, part.Request.Count = job.Dependencies{}, 30
	exclusive := whole("exclusive", 1, 1, "Priority")
	exclusive.Exclusive = job.WholeNodes
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
	var got []rlcore.Job
	for _, j := range v.waiting {
		got = append(got, rlcore.Job{ID: j.ID, Foreign: j.Foreign, PerNode: j.PerNode, Nodes: j.Nodes})
	}
	must.Equal(t, got, want)
}

// GPUs are divided by partitions, whoever waits, and by nodes where a job of several GPUs waits or runs. Each waiting
// job knows where plain Slurm has it.
func TestWhatDividesGPUs(t *testing.T) {
	in := snapshot(sharer("1"))
	in.Snap.Nodes[0].Partitions = append(in.Snap.Nodes[0].Partitions, "large")
	q := count(in)
	q.scheduleAlone()
	got := q.view.state.Sets
	if len(got) != 1 || !got[0].Has(0) || got[0].Has(len(q.view.gpus)-1) || q.view.state.Several {
		t.Errorf("sets %v, several: %v", got, q.view.state.Several)
	}
	if slot := q.waiting[0].PlainSlot; slot == nil || len(slot.On) != 1 {
		t.Errorf("the job is at %+v", slot)
	}
	large := whole("3", 2, 1, "Resources")
	runs := whole("4", 2, 1, "")
	runs.State, runs.Nodes, runs.GPUs = job.Running, "n1", []int{0, 1}
	for _, j := range []job.Job{large, runs} {
		q = count(snapshot(sharer("1"), j))
		if q.scheduleAlone(); !q.view.state.Several {
			t.Errorf("job %s of two GPUs divides no GPUs by node", j.Ref)
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
	typed.Request.Type = "a100"
	in = snapshot(typed, sharer("s"))
	gpusFor := func(what, second string, exclusive job.Exclusive, want ...int) {
		in.Snap.Nodes[1].GPUType, in.Snap.Jobs[0].Exclusive = second, exclusive
		must.Equal(t, slices.Collect(count(in).waiting[0].GPUs.Of(4)), want, what)
	}
	gpusFor("it names the second node's", "a100", "", 2, 3)
	gpusFor("it takes the node with all GPUs", "a100", job.WholeNodes, 0, 1, 2, 3)
	gpusFor("the site's names aren't understood", "h100", "", 0, 1, 2, 3)
}

// A clock that was ahead for a while leaves no dues behind that are as far ahead.
func TestPlainAfterAClockThatWasAhead(t *testing.T) {
	in := snapshot(sharer("1"), whole("2", 1, 1, "Priority"))
	at := in.Snap.At
	in.Snap.At = at.AddDate(1, 0, 0)
	in.Tracker.Plain = count(in).scheduleAlone()
	in.Snap.At = at
	if end := tracker.Time(count(in).scheduleAlone().EndS("1")); end.After(at.Add(time.Hour)) {
		t.Errorf("its plain end is %v", end)
	}
}

// A job with room for what sharing may cost it before MaxTime, reservations and its own limit has a limit that isn't
// fixed.
func TestLimitFixed(t *testing.T) {
	most := func(partition string, hours, reservedInHours int) *job.Bounds {
		b := &job.Bounds{MaxTime: map[string]time.Duration{partition: time.Duration(hours) * time.Hour}}
		if reservedInHours > 0 {
			at := time.Unix(1e9, 0).Add(time.Duration(reservedInHours) * time.Hour)
			b.Reservations = []job.Reservation{{Name: "m", Start: at}}
		}
		return b
	}
	for name, c := range map[string]struct {
		bounds *job.Bounds
		want   bool
	}{
		"nothing is known":      {nil, true},
		"no MaxTime":            {most("gpu", 0, 0), false},
		"MaxTime near":          {most("gpu", 2, 0), true},
		"MaxTime far":           {most("gpu", 3, 0), false},
		"another partition":     {most("cpu", 0, 0), true},
		"a reservation ahead":   {most("gpu", 0, 2), true},
		"a reservation far off": {most("gpu", 0, 24), false},
	} {
		in := snapshot(sharer("1"))
		in.Bounds = c.bounds
		must.Equal(t, newView(in).convert(&in.Snap.Jobs[0]).LimitFixed, c.want, name)
	}
}

// Memory is limited where the card can and the node's driver does.
func TestAnOldDriverLimitsNoMemory(t *testing.T) {
	in := snapshot(sharer("1"))
	in.Specs = func(typ string) (rlcore.GPUSpec, bool) {
		return rlcore.GPUSpec{Model: typ, MemMiB: 1000, MemLimits: true}, true
	}
	in.NoLimits = map[string]bool{"n2": true}
	for _, g := range count(in).view.state.GPUs {
		must.Equal(t, g.Spec.MemLimits, g.Node != "n2", "%s limits memory", g.ID)
	}
}

// A job on several nodes has the GPUs that Slurm names, on each node, and no others: what is left there is used. Once
// its processes have ended it has none, however long a node's epilog takes. Where Slurm doesn't name its GPUs it may
// have any.
func TestAJobOnSeveralNodesHasItsGPUs(t *testing.T) {
	wide := running("wide", "n[1-2]", 0, job.WholeGPU, time.Minute)
	wide.NumNodes, wide.GPUs, wide.ByNode = 2, nil, map[string][]int{"n1": {1}, "n2": {}}
	for _, c := range []struct {
		state  job.JobState
		byNode map[string][]int
		busy   []int
	}{
		{job.Running, wide.ByNode, []int{1}}, {job.Completing, wide.ByNode, nil}, {job.Running, nil, []int{0, 1, 2, 3}},
	} {
		wide.State, wide.ByNode = c.state, c.byNode
		p := newView(snapshot(wide))
		var busy []int
		for g := range p.state.GPUs {
			if len(p.state.GPUs[g].Running) > 0 {
				busy = append(busy, g)
			}
		}
		must.Equal(t, busy, c.busy, "%s %v", c.state, c.byNode)
		must.Equal(t, len(p.unsettled) > 0, c.byNode == nil)
	}
}

// Slurm's order is by reservation, tier and priority, then by submission; tasks of an array come by their own numbers,
// though the last one keeps the array's number, the lowest, and the others get numbers as they are changed.
func TestTasksComeInTheirOrder(t *testing.T) {
	task := func(ref string, id int64) job.Job { return job.Job{Ref: ref, ID: id, ArrayID: 7, Priority: 5} }
	other := func(ref string, id, priority int64) job.Job { return job.Job{Ref: ref, ID: id, Priority: priority} }
	jobs := []job.Job{
		other("6", 6, 4), task("7_10", 7), other("12", 12, 5), task("7_2", 30), task("7_0", 31), other("3", 3, 5),
		other("40", 40, 6),
		{Ref: "41", ID: 41, Priority: 1, Tier: 2},
		{Ref: "42", ID: 42, Priority: 1<<32 - 1, Tier: 1},
		{Ref: "43", ID: 43, Priority: 1, Reservation: "class"},
	}
	var all []*job.Job
	for i := range jobs {
		all = append(all, &jobs[i])
	}
	slices.SortFunc(all, ByPriority)
	var got []string
	for _, j := range all {
		got = append(got, j.Ref)
	}
	must.Equal(t, got, []string{"43", "41", "42", "40", "3", "7_0", "7_2", "7_10", "12", "6"})
}

// A job of whole nodes never starts with shares on a node with several GPUs: from 23.02.6 on it gets a GPU in their
// place, whether it is behind the gate already or comes without the script.
func TestWholeNodesInPlaceOfShares(t *testing.T) {
	for release, want := range map[string]string{"24.11.5": "gpu:1", "22.05.8": ""} {
		behind, unconverted := sharer("1"), job.Job{Ref: "2", State: job.Pending, Request: job.GPURequest{Kind: job.SharedGPU}}
		behind.Exclusive, unconverted.Exclusive = job.WholeNodes, job.WholeNodes
		in := snapshot(behind, unconverted)
		in.Snap.Release = release
		q := count(in)
		gres := ""
		if u := q.ungated[0].Update; u.Gres != nil {
			gres = *u.Gres
		}
		must.Equal(t, gres, want, "%s: behind the gate", release)
		if u := q.gate[0].Update; *u.Gres != "gpu:1" || u.Dependency != nil {
			t.Errorf("%s: the one that still asks for gpu:shared: %v", release, u.Words())
		}
	}
}

// Where a node is one user's at a time, a job goes to none that another user's jobs are on, or that Slurm keeps for
// another user, and whoever shares there shares with jobs of the same owner.
func TestNodesOfOneUserAtATime(t *testing.T) {
	job1, job2 := sharer("1"), sharer("2")
	job1.User, job2.User = "ann", "bob"
	other := whole("3", 1, 1, "")
	other.State, other.Nodes, other.GPUs, other.User = job.Running, "n1", []int{0}, "ann"
	in := snapshot(job1, job2, other)
	in.Snap.OneUser = map[string]bool{"gpu": true}
	gpus := func(j int) []int { return slices.Collect(count(in).waiting[j].GPUs.Of(4)) }
	must.Equal(t, gpus(0), []int{0, 1, 2, 3}, "the owner of the job that runs")
	must.Equal(t, gpus(1), []int{2, 3}, "another user")
	q := count(in)
	must.Equal(t, q.closedTo["2"], "other users' jobs are on n1, and a node is one user's at a time (ExclusiveUser)")
	must.Equal(t, q.view.state.GPUs[3].Spec.SameUser, true, "sharers are one user's")
	in.Snap.Nodes[1].Owner = "bob"
	must.Equal(t, gpus(0), []int{0, 1}, "a node that Slurm keeps for another user")
	in = snapshot(job1, job2)
	in.Snap.Nodes, in.Snap.OneUser = in.Snap.Nodes[:1], map[string]bool{"gpu": true}
	must.Equal(t, sharesOf(shortest(slowing(9)).Plan(in)), map[string]int{"1": 100}, "two users in one plan")
}

// Of an array that may run two of its tasks at a time no more than two are in the queue, the first ones; those that run
// or are about to count.
func TestArraysWithALimit(t *testing.T) {
	task := func(n int, limit int) job.Job {
		j := sharer(fmt.Sprintf("7_%d", n))
		j.ArrayID, j.ArrayLimit = 7, limit
		return j
	}
	queued := func(in *Input) (refs []string) {
		for _, j := range count(in).waiting {
			refs = append(refs, j.ID)
		}
		return refs
	}
	in := snapshot(task(0, 2), task(1, 2), sharer("8"), task(2, 2))
	must.Equal(t, queued(in), []string{"7_0", "7_1", "8"})
	must.Equal(t, count(in).limited["7_2"], "its array runs 2 tasks at a time")
	in.Snap.Jobs[0].State, in.Snap.Jobs[0].Nodes, in.Snap.Jobs[0].GPUs = job.Running, "n1", []int{0}
	must.Equal(t, queued(in), []string{"7_1", "8"}, "one runs")
	must.Equal(t, len(queued(snapshot(task(0, 0), task(1, 0), task(2, 0)))), 3, "without a limit")
}

// Where Slurm says that it keeps a node for a job, no job behind that one is sent there unless its time limit ends
// before, by the limits of the jobs that run: it is told so, and has no delay that the bridge would count as its own.
func TestANodeThatSlurmKeeps(t *testing.T) {
	for limit, starts := range map[time.Duration]bool{20 * time.Minute: true, 2 * time.Hour: false, 0: false} {
		for _, planned := range []bool{true, false} {
			busy := running("b", "n1", 0, job.WholeGPU, 30*time.Minute) // of an hour
			in := withCards(snapshot(busy, whole("large", 2, 1, "Resources"), sharer("1")))
			in.Snap.Nodes = in.Snap.Nodes[:1]
			in.Snap.Nodes[0].Planned = planned
			in.Snap.Jobs[2].TimeLimit = limit
			in.Apps["1"] = job.App{Key: "short", Profile: runs(60, 100)}
			plan := planner().Plan(in)
			must.Equal(t, len(plan.Groups) == 1, starts || !planned, "limit %v, planned %v", limit, planned)
			must.Equal(t, plan.Limited["1"] != "", !starts && planned, "%q", plan.Limited)
			must.Equal(t, plan.Idle["1"], false)
		}
	}
}

// The guard keeps a job from an idle GPU that a job of two GPUs needs soon. Where Slurm keeps the node by limits, and
// would start it there, that is the bridge's delay, and ends at max_delay.
func TestTheGuardKnowsBetterThanBackfill(t *testing.T) {
	for limit, delay := range map[time.Duration]bool{20 * time.Minute: true, 2 * time.Hour: false} {
		busy := running("b", "n1", 0, job.WholeGPU, 590*time.Second) // of 600 s, by its profile, and an hour
		in := withCards(snapshot(busy, whole("large", 2, 1, "Resources"), sharer("1")))
		in.Snap.Nodes = in.Snap.Nodes[:1]
		in.Snap.Nodes[0].Planned = true
		in.Snap.Jobs[2].TimeLimit = limit
		plan := planner().Plan(in)
		must.Equal(t, len(plan.Groups), 0)
		must.Equal(t, plan.Idle["1"], delay, limit)
		must.Equal(t, plan.Limited["1"] == "", delay, "%q", plan.Limited)
	}
}

// Jobs that are requeued together cost one schedule, not one each.
func TestRequeuedTogether(t *testing.T) {
	var jobs []job.Job
	for i := range 400 {
		jobs = append(jobs, sharer(fmt.Sprint(i)))
	}
	in := snapshot(jobs...)
	in.Tracker.Plain = count(in).scheduleAlone()
	q, looks := count(in), 0
	in.Tracker.Plain.DoneS = func(string) float64 { looks++; return 0 } // of each job that runs, at each schedule
	for i := range q.waiting {
		j := q.waiting[i].ForSchedule()
		j.LengthS = func(_, _ float64) (meanS, quantileS float64) { return 600, 600 }
		in.Tracker.Plain.Runs(j, []int{0}, q.view.state.NowS, q.view.state.NowS)
	}
	looks = 0
	count(in).scheduleAlone()
	must.Equal(t, looks < 20*len(jobs), true, "%d looks at %d jobs", looks, len(jobs))
}
