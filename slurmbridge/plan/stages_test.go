package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
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
	return &Planner{Decider: &rlcore.Decider{
		Policy: largest{},
		Guard:  rlcore.NewGuard(rlcore.Rules{Predictor: free{}, MaxMembers: 2}), M: 5,
	}}
}

// running is a job that has been running on a GPU of a node for so long.
func running(ref, node string, gpu int, kind job.RequestKind, since time.Duration) job.Job {
	j := job.Job{
		Ref: ref, State: job.Running, Nodes: node, GPUs: []int{gpu}, NumNodes: 1,
		Start: time.Unix(1e9, 0).Add(-since),
	}
	j.Request = job.GPURequest{Kind: kind, Sharing: job.Shard, Count: 100}
	if kind == job.WholeGPU {
		j.Request.Count = 1
	}
	return j
}

// withCards gives an input GPUs of one user at a time.
func withCards(in *Input) *Input { return in.cards(rlcore.TitanXp) }

// cards gives an input GPUs of one kind.
func (in *Input) cards(spec rlcore.GPUSpec) *Input {
	in.Specs = func(string) (rlcore.GPUSpec, bool) { return spec, true }
	return in
}

// landing checks that the members of a plan have shares by which Slurm puts each on the GPU that it is meant for, in
// the order of priority, and no GPU is given away twice. pools are the free shares of the GPUs among which Slurm
// chooses, by node and type, and begin the first of them.
func landing(t *testing.T, plan *job.Plan, by rule, members int, pools map[gpuPool][]int, begin map[gpuPool]int) {
	t.Helper()
	type member struct {
		job.Member
		at job.GPUAddr
	}
	var all []member
	for _, g := range plan.Groups {
		for _, m := range g.Group.Members {
			all = append(all, member{m, g.Group.Addr()})
		}
	}
	if len(all) != members {
		t.Fatalf("%d of %d jobs start: %+v", len(all), members, plan.Groups)
	}
	slices.SortFunc(all, func(a, b member) int { return plan.Order[a.Ref] - plan.Order[b.Ref] })
	for _, m := range all {
		on := gpuPool{m.at.Node, m.GPUType}
		g := by.pick(pools[on], m.Shares)
		if g < 0 || g+begin[on] != m.at.GPU {
			t.Fatalf("job %s with %d shares of %+v lands on %d, meant for %+v", m.Ref, m.Shares, on, g, m.at)
		}
		pools[on][g] -= m.Shares
	}
}

// Choice and shares: what starts together has shares by which Slurm puts it on its GPU, whichever way it chooses.
// Planning again gives the same.
func TestSeatsLeadMembersToTheirGPU(t *testing.T) {
	in := withCards(snapshot(sharer("1"), sharer("2"), sharer("3"), sharer("4"), sharer("5")))
	for _, by := range []rule{firstFit, leastLoaded} {
		in.Snap.LeastLoaded = by == leastLoaded
		plan := planner().Plan(in)
		landing(t, plan, by, 5, map[gpuPool][]int{{"n1", ""}: {100, 100}, {"n2", ""}: {100, 100}}, nil)
		must.Equal(t, planner().Plan(in).Changes(), plan.Changes(), "another plan of the same input")
	}
}

// An interactive session waits in Slurm's own queue from the beginning, with room for jobs that join it, and is held to
// its memory alone.
func TestSessionsWaitAsWholeGPUsDo(t *testing.T) {
	in := full(job.WholeGPU, sharer("s"), sharer("2")).cards(rlcore.GPUSpec{Model: "v100", MemMiB: 16000, MemLimits: true})
	terms := job.Terms{Session: true, SessionMiB: 4096, MaxSlowdown: 1.3}
	in.Terms["s"], in.Apps["s"] = terms, job.SessionApp(&in.Snap.Jobs[4], &terms)
	plan := planner().Plan(in)
	m, kept := turns(plan)["s"]
	if !kept || len(plan.Groups) != 1 || m.Shares >= job.Units || m.MemMiB < 4096 || m.MemMiB > 4506 {
		t.Fatalf("released: %+v, ungated: %v", plan.Groups, plan.Ungated)
	}
	// Without a gate, or with one that Slurm has not shown yet, nothing could take such a job back.
	for _, held := range []func(){func() { in.Unproved = true }, func() { in.Unproved, in.Gate = false, "" }} {
		held()
		if plan := planner().Plan(in); len(plan.Groups) > 0 || len(plan.Ungated) > 0 {
			t.Errorf("gate %q: released: %+v, ungated: %v", in.Gate, plan.Groups, plan.Ungated)
		}
	}
}

// oneIdle is a cluster of four GPUs, three of them busy, and the given waiting jobs.
func oneIdle(waits ...job.Job) *Input {
	in := full(job.WholeGPU, waits...)
	in.Snap.Jobs = slices.Delete(in.Snap.Jobs, 3, 4)
	return in
}

// A group waits some seconds until a job of another of the node's GPUs has ended, where Slurm could start its members
// on the shares that become free. It waits for one job after the other no longer, nor for one that should have ended.
func TestSharesThatAreAboutToBeFree(t *testing.T) {
	for _, c := range []struct {
		ranS    time.Duration
		waitedS float64
		groups  int
	}{{300, 0, 1}, {598, 0, 0}, {700, 0, 1}, {598, 9, 1}} {
		in := oneIdle(sharer("1"), sharer("2"))
		in.Tracker.Waits = map[string]*tracker.Wait{"1": {DelayedS: c.waitedS}}
		for _, ran := range []time.Duration{c.ranS, 100} {
			r := running(fmt.Sprint("r", ran), "n2", 0, job.Shares, ran*time.Second)
			r.Request.Count = 50
			in.come(r)
		}
		in.Snap.Jobs = slices.Delete(in.Snap.Jobs, 2, 3)
		must.Equal(t, len(planner().Plan(in).Groups), c.groups, "groups after %v s beside a job that has run for %d of 600 s",
			c.waitedS, c.ranS)
	}
}

// Jobs of which their owners say how much memory they need share at their first run, held to that, on a GPU that can
// hold them to it. On another GPU they run alone first, as jobs do of which nobody says anything.
func TestMemoryThatAnOwnerSays(t *testing.T) {
	for _, c := range []struct {
		name      string
		holds     bool
		mostHours time.Duration // 0 = a limit may be raised as far as it takes
		mib       float64
		want      []int64 // the members' limits
	}{
		{"two jobs that fit", true, 0, 6000, []int64{6000, 6000}},
		{"two jobs that don't", true, 0, 9000, []int64{9000}},
		{"a GPU without limits", false, 0, 6000, []int64{0}},
		{"jobs that may run to a limit that can't be raised", true, 1, 6000, []int64{6000}},
	} {
		in := oneIdle(sharer("1"), sharer("2")).cards(rlcore.GPUSpec{Model: "x", MemMiB: 16000, MemLimits: c.holds})
		for _, ref := range []string{"1", "2"} {
			in.Apps[ref] = job.App{Key: "new" + ref, Profile: job.AskedProfile("ann", "new"+ref, 3600, c.mib)}
		}
		in.Bounds = &job.Bounds{MaxTime: map[string]time.Duration{"gpu": c.mostHours * time.Hour}}
		p := planner()
		p.Decider.Guard.ExtendLimit = true
		plan := p.Plan(in)
		var got []int64
		for _, g := range plan.Groups {
			for _, m := range g.Group.Members {
				got = append(got, m.MemMiB)
			}
		}
		must.Equal(t, got, c.want, "%s: held to; %+v", c.name, plan.Explanations["1"])
		if e := plan.Explanations["1"]; c.holds && e.AskedMiB != c.mib || !c.holds && (e.AskedMiB != 0 || e.Known) {
			t.Errorf("%s: explained as %+v", c.name, e)
		}
	}
}

// A job that runs and isn't held to what its owner says counts as unknown: no job joins it.
func TestMemoryThatNothingHolds(t *testing.T) {
	said, measured := job.AskedProfile("ann", "new", 3600, 6000), &rlcore.Profile{App: "old"}
	if held(said, 0) != nil || held(said, 6000) != said || held(measured, 0) != measured || held(nil, 0) != nil {
		t.Error("only what is measured counts where nothing holds a job to what its owner says")
	}
}

// Explanation: each job of a window is told what was considered and why the rest was refused.
func TestWhatADecisionConsideredIsExplained(t *testing.T) {
	own := sharer("2")
	own.User = "bob"
	plan := planner().Plan(oneIdle(sharer("1"), own))
	first, second := plan.Explanations["1"], plan.Explanations["2"]
	if first == nil || second == nil {
		t.Fatalf("explained: %v", plan.Explanations)
	}
	if first.Status != "starts now on n2 gpu 1" || len(first.Considered) == 0 || !first.Considered[0].Taken {
		t.Errorf("the first: %+v", first)
	}
	refused := func(r job.Veto) bool { return r.Reason == rlcore.VetoUser && slices.Equal(r.With, []string{"1"}) }
	must.Equal(t, slices.ContainsFunc(second.Vetoes, refused), true, "the second, another user's: %+v", second)
	must.Equal(t, plan.Starts["2"].IsZero(), false, "it isn't told when the second starts")
}

// firstOfTwo plans with a job of ann's that starts alone, then lets it run and another one come, which must not join
// it. It returns the first job as a member.
func firstOfTwo(t *testing.T, name string, p *Planner, in *Input) (m job.Member) {
	t.Helper()
	plan := p.Plan(in)
	if len(plan.Groups) != 1 || len(plan.Groups[0].Group.Members) != 1 {
		t.Fatalf("%s: %+v", name, plan.Groups)
	}
	g := plan.Groups[0].Group
	m = g.Members[0]
	g.Members[0].State = job.MemberRunning
	in.Tracker.Groups[1] = &g
	in.Snap.Jobs[0] = running("1", "n1", g.GPU, job.Shares, time.Minute)
	in.Snap.Jobs[0].Request.Count, in.Snap.Jobs[0].User = m.Shares, "ann"
	if app := in.Apps["1"]; app.Key == "new" { // meanwhile another run of it has told what it takes
		in.Apps["1"] = job.App{Key: "new", Profile: runs(600, 100)}
	}
	second := sharer("2")
	second.User = "ann"
	in.come(second)
	for _, joins := range p.Plan(in).Groups {
		if m.Shares < job.Units && joins.Group.GPU == g.GPU {
			t.Errorf("%s: joined by %+v", name, joins.Group.Members)
		}
	}
	return m
}

// anns is a pending job of ann's that may be run again.
func anns() job.Job {
	j := sharer("1")
	j.User, j.Requeue = "ann", true
	return j
}

// A first run that starts alone leaves one share, so that it runs under MPS as later runs will; no job joins it.
func TestFirstRunsAreUnderMPS(t *testing.T) {
	cantUnderMPS := func(owner string) func(rlcore.Identity) interference.Standing {
		return func(of rlcore.Identity) interference.Standing {
			return interference.Standing{NoMPS: of == rlcore.Identity{App: "new", Owner: owner}}
		}
	}
	for name, c := range map[string]struct {
		set  func(in *Input)
		want int
	}{
		"on a node with one GPU": {func(*Input) {}, 99},
		"on a node with several": {func(in *Input) { in.Snap.Nodes[0].GPUs, in.Snap.Nodes[0].Units = 4, 4*job.Units }, 99},
		"jobs take turns there": {func(in *Input) {
			card := rlcore.TitanXp
			card.Sharing = "time-slice"
			in.cards(card)
		}, 100},
		"it can't run under MPS":    {func(in *Input) { in.Standing = cantUnderMPS("ann") }, 100},
		"another user's can't":      {func(in *Input) { in.Standing = cantUnderMPS("bob") }, 99},
		"it can't run again":        {func(in *Input) { in.Snap.Jobs[0].Requeue = false }, 100},
		"another waits for its end": {func(in *Input) { in.Snap.Awaited = map[string]bool{"1": true} }, 100},
		"the site wants no retries": {func(in *Input) { in.RetryAlone = false }, 100},
		"nobody could tell":         {func(in *Input) { in.Apps["1"] = job.App{} }, 100},
		"its owner wants it alone":  {func(in *Input) { in.Terms["1"] = job.Terms{NoShare: true} }, 100},
		"users share by hand":       {byHand, 100},
		"it has run before: half of them": {func(in *Input) {
			in.Apps["1"] = job.App{Key: "new", Profile: runs(600, 100)}
			in.Terms["2"] = job.Terms{NoShare: true} // which doesn't join it
		}, 50},
	} {
		in := oneGPU(anns())
		in.RetryAlone, in.Apps["1"] = true, job.App{Key: "new"}
		c.set(in)
		must.Equal(t, firstOfTwo(t, name, planner(), in).Shares, c.want, name)
	}
}

// byHand lets users share by hand.
func byHand(in *Input) { in.Tracker.Handwritten = in.Snap.At }

// A job whose application takes a card's memory at its start tries, alone, to make do with a part of it, if its owner
// or the site wants that; no job joins it meanwhile.
func TestAJobThatTriesWithLessMemory(t *testing.T) {
	full := func(mib, held float64) *rlcore.Profile {
		p := runs(600, mib)
		p.Runs, p.Processes, p.HeldMiB = 1, 2, held
		return p
	}
	failedWith := func(mib float64) func(*Planner, *Input) {
		return func(_ *Planner, in *Input) {
			in.Standing = func(of rlcore.Identity) (s interference.Standing) {
				if of == (rlcore.Identity{App: "tf", Owner: "ann"}) {
					s.TriedMiB = mib
				}
				return s
			}
		}
	}
	nothing := func(*Planner, *Input) {}
	runsOnce := func(_ *Planner, in *Input) { in.Snap.Jobs[0].Requeue = false }
	awaited := func(_ *Planner, in *Input) { in.Snap.Awaited = map[string]bool{"1": true} }
	for name, c := range map[string]struct {
		profile     *rlcore.Profile
		owner, site float64 // what they wish
		set         func(p *Planner, in *Input)
		want        int64
	}{
		"its owner asks":                  {full(12000, 0), 8192, 0, nothing, 8192},
		"nothing is known of it":          {nil, 8192, 0, nothing, 8192},
		"nobody asks":                     {full(12000, 0), 0, 0, nothing, 0},
		"the site asks":                   {full(12000, 0), 0, 6000, nothing, 6000},
		"the site asks, and owners know":  {full(12000, 0), 8192, 6000, nothing, 8192},
		"the site asks of an unknown one": {nil, 0, 6000, nothing, 0},
		"it can't run again":              {full(12000, 0), 0, 6000, runsOnce, 0},
		"another waits for it":            {full(12000, 0), 0, 6000, awaited, 0},
		"it takes what it needs":          {full(5000, 0), 8192, 0, nothing, 0},
		"it has tried":                    {full(12000, 8192), 8192, 0, nothing, 0},
		"that much didn't suffice":        {full(12000, 0), 8192, 0, failedWith(8192), 0},
		"less didn't suffice":             {full(12000, 0), 8192, 0, failedWith(4096), 8192},
		"more than the card has":          {full(12000, 0), 20000, 0, nothing, 0},
		"the card's MPS has no limits":    {full(12000, 0), 8192, 0, func(_ *Planner, in *Input) { withCards(in) }, 0},
		"users share by hand":             {full(12000, 0), 8192, 0, func(_ *Planner, in *Input) { byHand(in) }, 0},
		"on a node with one GPU": {full(12000, 0), 8192, 0, func(_ *Planner, in *Input) {
			in.Snap.Nodes[0].GPUs, in.Snap.Nodes[0].Units = 1, 100
		}, 8192},
		"it never shares": {full(12000, 0), 8192, 0, func(_ *Planner, in *Input) {
			in.Terms["1"] = job.Terms{TryMiB: 8192, NoShare: true}
		}, 0},
	} {
		card := rlcore.TitanXp
		card.MemLimits = true
		in := snapshot(anns()).cards(card)
		in.Snap.Nodes = in.Snap.Nodes[:1]
		in.Apps["1"] = job.App{Key: "tf", Profile: c.profile}
		in.Terms["1"] = job.Terms{TryMiB: c.owner}
		p := planner()
		p.TryMiB = c.site
		c.set(p, in)
		m := firstOfTwo(t, name, p, in)
		if tried := m.Tried && m.Shares == 99; tried != (c.want > 0) || tried &&
			(m.MemMiB != c.want || c.profile != nil && m.ProcessMiB != c.want/2) {
			t.Errorf("%s: %+v, want %d MiB", name, m, c.want)
		}
	}
}
