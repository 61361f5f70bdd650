package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
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

// A job whose turn would be lost waits in Slurm's own queue, with so many shares that it starts on an empty GPU alone,
// and with room for jobs that join it. Where that can't be it is ungated: it waits as a job of a whole GPU then.
func TestATurnIsKeptWithRoomForOthers(t *testing.T) {
	adopted := func(partners ...job.Job) func(*Planner, *Input) {
		return func(_ *Planner, in *Input) {
			in.Adopt, in.Snap.Jobs[4].Request = adopting().Adopt, wholeGPU
			in.Apps["1"].Profile.Runs = 1
			in.come(partners...)
		}
	}
	beside := func(shares int) func(*Planner, *Input) { return func(_ *Planner, in *Input) { holds(in, shares) } }
	for name, c := range map[string]struct {
		set    func(p *Planner, in *Input)
		shares int // 0 = it is ungated
	}{
		"nobody holds less than a GPU":       {func(*Planner, *Input) {}, leastTurnShares},
		"the less a sharer holds, the more":  {beside(31), 70},
		"so that it fits next to no sharer":  {beside(30), 71},
		"such as this one":                   {beside(20), 81},
		"or this one":                        {beside(2), 99},
		"a job that runs holds one share":    {beside(1), 0},
		"groups leave no room":               {func(_ *Planner, in *Input) { byHand(in) }, 0},
		"it never shares":                    {func(_ *Planner, in *Input) { in.Terms["1"] = job.Terms{NoShare: true} }, 0},
		"its application is unknown":         {func(_ *Planner, in *Input) { in.Apps["1"] = job.App{} }, 0},
		"a rule adopts it, and one may join": {adopted(sharer("2")), 70},
		"a rule adopts it, and nobody may":   {adopted(), 0},
	} {
		p, in := planner(), losing()
		c.set(p, in)
		plan := p.Plan(in)
		must.Equal(t, turns(plan)["1"].Shares, c.shares, name)
		must.Equal(t, plan.Ungated["1"] == job.UngatedTurn, c.shares == 0, "%s: ungated for %q", name, plan.Ungated["1"])
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

// GPUs on which jobs of unknown length run may become free together: of the jobs that would lose their turn one for
// each waits in Slurm's own queue, and otherwise the first.
func TestSeveralTurnsAtOnce(t *testing.T) {
	for _, unknown := range []int{0, 3} {
		var waits []job.Job
		for i := range 6 {
			waits = append(waits, sharer(fmt.Sprint(i)))
		}
		for i := range 4 {
			waits = append(waits, whole(fmt.Sprint("w", i), 1, 1, "Priority"))
		}
		in := full(job.WholeGPU, waits...)
		for g := range unknown {
			in.Apps[fmt.Sprint("b", g)] = job.App{}
		}
		plan := planner().Plan(in)
		for i := range 6 {
			_, goes := turns(plan)[fmt.Sprint(i)]
			must.Equal(t, goes, i < max(1, unknown), "job %d, %d unknown", i, unknown)
		}
	}
}

// In front of a job of two nodes Slurm's backfill starts what ends in time, by its limit. A job that it would start waits
// in Slurm's own queue where another one behind it would be started in its place; one that it wouldn't start stays.
func TestBackfillInFrontOfALargeJob(t *testing.T) {
	large, next := whole("w", 2, 2, "Resources"), whole("f", 1, 1, "Priority")
	for name, c := range map[string]struct {
		waits []job.Job
		limit time.Duration
		goes  bool
	}{
		"it ends in time":      {[]job.Job{large, sharer("1"), next}, 30 * time.Minute, true},
		"it may take too long": {[]job.Job{large, sharer("1"), next}, 2 * time.Hour, false},
		"nobody is behind it":  {[]job.Job{large, sharer("1")}, 30 * time.Minute, false},
	} {
		in := full(job.WholeGPU, c.waits...)
		for i := range in.Snap.Jobs {
			if j := &in.Snap.Jobs[i]; j.Ref == "1" {
				j.TimeLimit = c.limit
			}
		}
		in.Apps["1"] = job.App{Key: "1", Profile: runs(900, 100)}
		_, goes := turns(planner().Plan(in))["1"]
		must.Equal(t, goes, c.goes, name)
	}
}

// A released job waits for the bridge beside an idle GPU only if that is of the type which its owner asked for.
func TestAnotherTypeIsNoneToWaitBeside(t *testing.T) {
	for was, idle := range map[string]bool{"shard:titanxp:100": false, "shard:t4:100": true, "shard:100": true} {
		in := snapshot(running("b", "n1", 1, job.WholeGPU, 0))
		in.Snap.Nodes[1].GPUType = "t4"
		send(in, "1", job.StartNow, 50)
		in.Tracker.Groups[7].Members[0].WasGres = was
		must.Equal(t, planner().Plan(withCards(in)).Idle["1"], idle, was)
	}
}

// While a job waits for its turn with 70 shares no group gives a member 30 or fewer: the job would start next to it.
func TestNoMemberFitsNextToAJobThatKeepsItsTurn(t *testing.T) {
	for shares, want := range map[int]int{70: 31, 90: 11} {
		in := losing()
		send(in, "2", job.Turn, shares)
		must.Equal(t, newView(in).leastShares(), want, "the least of a member next to one of %d shares", shares)
	}
	must.Equal(t, newView(losing()).leastShares(), 1, "the least of a member without such a job")
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
	if len(q.waiting) != 3 || len(q.view.onWay["n1"]) > 0 || q.view.starting["2"] {
		t.Errorf("in the queue: %d, on their way: %v, starting: %v", len(q.waiting), q.view.onWay, q.view.starting)
	}
}

// A job that waits beside an idle GPU for as long as it may is ungated, one that no idle GPU may serve waits on. A job
// that finds none and may preempt others is Slurm's to start, and one that Slurm would cancel for its deadline, if the
// bridge died now and the gate held it, isn't held.
func TestAWaitHasAnEnd(t *testing.T) {
	noneIdle := func(in *Input) {
		in.Snap.Jobs = append(in.Snap.Jobs, running("b0", "n1", 0, job.WholeGPU, 0), running("b1", "n1", 1, job.WholeGPU, 0))
	}
	preempts := func(in *Input, partition string) {
		noneIdle(in)
		in.Snap.Ranks.Partitions = map[string]job.PartitionRank{"": {Tier: 1, Preemptible: true}, "urgent": {Tier: 2}}
		for i := range in.Snap.Nodes {
			in.Snap.Nodes[i].Partitions = []string{"gpu", "urgent"}
		}
		in.Snap.Jobs[0].Partition = partition
	}
	preemptsByQOS := func(in *Input) {
		noneIdle(in)
		in.Snap.Ranks = job.Ranks{ByQOS: true, QOS: map[string][]string{"": {"low"}}}
		for i := range in.Snap.Jobs[len(in.Snap.Jobs)-2:] {
			in.Snap.Jobs[len(in.Snap.Jobs)-1-i].QOS = "low"
		}
	}
	draws := func(in *Input, users []string) { // to both nodes
		in.Snap.Jobs[0].User, in.Snap.Nodes[0].Reserved, in.Snap.Nodes[1].Reserved = "ann", true, true
		in.Bounds = &job.Bounds{Reservations: []job.Reservation{
			{Start: in.Snap.At.Add(-time.Hour), End: in.Snap.At.Add(time.Hour), Magnetic: true, Users: users},
		}}
	}
	due := func(in *Input, left time.Duration) { // its limit is an hour
		noneIdle(in)
		in.HoldS, in.Snap.Jobs[0].Deadline = 120, in.Snap.At.Add(time.Hour+left)
	}
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
		"it may preempt others":        {func(in *Input) { preempts(in, "urgent") }, job.UngatedPreempts},
		"its QOS may preempt others":   {preemptsByQOS, job.UngatedPreempts},
		"it may preempt nobody":        {func(in *Input) { preempts(in, "gpu") }, ""},
		"a reservation draws it":       {func(in *Input) { draws(in, nil) }, job.UngatedDrawn},
		"a reservation draws its user": {func(in *Input) { draws(in, []string{"ann"}) }, job.UngatedDrawn},
		"a reservation draws others":   {func(in *Input) { draws(in, []string{"bob"}) }, ""},
		"a reservation draws it, and a GPU is idle": {
			func(in *Input) { draws(in, nil); in.Snap.Nodes[0].Reserved = false }, "",
		},
		"its deadline is near":    {func(in *Input) { due(in, time.Minute) }, job.UngatedDeadline},
		"its deadline is far off": {func(in *Input) { due(in, time.Hour) }, ""},
	} {
		in := withCards(snapshot(sharer("1"), running("b2", "n2", 0, job.WholeGPU, 0),
			running("b3", "n2", 1, job.WholeGPU, 0)))
		in.Unproved = true // so nothing is decided
		c.set(in)
		must.Equal(t, planner().Plan(in).Ungated["1"], c.want, name)
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

// A job that waits for the GPU on which plain Slurm has it, while another one is idle that no job of the queue gets, is
// delayed by the bridge: it keeps that GPU for jobs that can only run there, for no longer than max_delay.
func TestAnIdleGPUThatNobodyGets(t *testing.T) {
	for _, c := range []struct {
		name  string
		queue []job.Job
		delay bool
	}{
		{"nobody gets it", []job.Job{sharer("1")}, true},
		{"a job of whole GPUs has its turn there", []job.Job{sharer("1"), whole("2", 1, 1, "Resources")}, false},
		{"a job of both nodes gets it later", []job.Job{whole("2", 1, 2, "Resources"), sharer("1")}, false},
	} {
		in := withCards(snapshot(append([]job.Job{running("b", "n2", 0, job.WholeGPU, 0)}, c.queue...)...))
		for i := range in.Snap.Nodes {
			in.Snap.Nodes[i].GPUs, in.Snap.Nodes[i].Units = 1, 100
		}
		in.Snap.Nodes[0].Partitions = []string{"gpu", "confined"}
		in.Apps["b"], in.Apps["1"] = job.App{Key: "b", Profile: runs(3600, 100)}, job.App{Key: "1", Profile: runs(7200, 100)}
		for i := range in.Snap.Jobs {
			in.Snap.Jobs[i].TimeLimit = 3 * time.Hour
		}
		now := float64(in.Snap.At.Unix())
		plain := schedule.NewSlurmAlone(count(in).view.state.GPUs[0].ID, count(in).view.state.GPUs[1].ID)
		over := schedule.Entry{ID: "over", SubmitS: now - 100, TakesS: 4000} // on n1, which is free in reality
		plain.Add(over, now-100)
		plain.Runs(over, []int{0}, now-100, now-100)
		plain.Ended(now-10, schedule.End{ID: "over", DoneS: 4000})
		in.Tracker.Plain = plain
		got := planner().Plan(in)
		must.Equal(t, len(got.Groups), 0, c.name)
		must.Equal(t, got.Idle["1"], c.delay, c.name)
	}
}
