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
	return &Planner{Decider: &rlcore.Decider{
		Policy: largest{},
		Guard:  rlcore.NewGuard(rlcore.Rules{Predictor: free{}, MaxMembers: 2}), M: 5,
	}, Join: true}
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

// Waiting: foreign jobs may go first as long as a sharer has the time for it; else those whose turn is next are
// ungated.
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
		for ref, why := range plan.Ungated {
			if why != job.UngatedTurn {
				t.Errorf("%s: job %s is let go for %q", name, ref, why)
			}
			letGo = append(letGo, ref)
		}
		if !slices.Equal(letGo, c.letGo) {
			t.Errorf("%s: let go: %v, want %v", name, letGo, c.letGo)
		}
	}
}

// An interactive session waits in Slurm's own queue from the beginning, with room for jobs that join it, and is held to
// its memory alone.
func TestSessionsWaitAsWholeGPUsDo(t *testing.T) {
	session := sharer("s")
	in := withCards(snapshot(
		running("b1", "n1", 0, job.WholeGPU, 0), running("b2", "n1", 1, job.WholeGPU, 0),
		running("b3", "n2", 0, job.WholeGPU, 0), running("b4", "n2", 1, job.WholeGPU, 0), session, sharer("2"),
	))
	in.Card = func(string) (rlcore.GPUSpec, bool) {
		return rlcore.GPUSpec{Model: "v100", MemMiB: 16000, MemLimits: true}, true
	}
	in.Terms["s"] = job.Terms{Session: true, SessionMiB: 4096, MaxSlowdown: 1.3}
	terms := in.Terms["s"]
	in.Apps["s"] = job.SessionApp(&in.Snap.Jobs[4], &terms)
	p := planner()
	p.Room = true
	p.RoomAnyway = true
	plan := p.Plan(in)
	if len(plan.Groups) != 1 || len(plan.Groups[0].Group.Members) != 1 {
		t.Fatalf("released: %+v, ungated: %v", plan.Groups, plan.Ungated)
	}
	m := plan.Groups[0].Group.Members[0]
	if g := plan.Groups[0].Group; g.Kind != job.Turn || m.Ref != "s" || m.Shares >= job.Units || m.MemMiB < 4096 ||
		m.MemMiB > 4506 {
		t.Errorf("%+v", g)
	}
	// Without a gate, or with one that Slurm has not shown yet, nothing could take such a job back.
	for _, held := range []func(){func() { in.Unproved = true }, func() { in.Unproved, in.Gate = false, "" }} {
		held()
		if plan := p.Plan(in); len(plan.Groups) > 0 || len(plan.Ungated) > 0 {
			t.Errorf("gate %q: released: %+v, ungated: %v", in.Gate, plan.Groups, plan.Ungated)
		}
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
		in := withCards(snapshot(
			running("b1", "n1", 0, job.WholeGPU, 0), running("b2", "n1", 1, job.WholeGPU, 0),
			running("b3", "n2", 0, job.WholeGPU, 0),
			sharer("1"), sharer("2")))
		in.Card = func(string) (rlcore.GPUSpec, bool) {
			return rlcore.GPUSpec{Model: "x", MemMiB: 16000, MemLimits: c.holds}, true
		}
		for _, ref := range []string{"1", "2"} {
			in.Apps[ref] = job.App{Key: "new" + ref, Profile: job.AskedProfile("ann", "new"+ref, 3600, c.mib)}
		}
		in.Bounds = &job.Bounds{MaxTime: map[string]time.Duration{"gpu": c.mostHours * time.Hour}}
		p := planner()
		p.Decider.Guard.ExtendLimit, p.Room, p.RoomAnyway = true, true, true
		plan := p.Plan(in)
		var got []int64
		for _, g := range plan.Groups {
			for _, m := range g.Group.Members {
				got = append(got, m.MemMiB)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: held to %v, want %v; %+v", c.name, got, c.want, plan.Explanations["1"])
		}
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
	in := withCards(snapshot(
		running("b1", "n1", 0, job.WholeGPU, 0), running("b2", "n1", 1, job.WholeGPU, 0),
		running("b3", "n2", 0, job.WholeGPU, 0),
		sharer("1"), own))
	plan := planner().Plan(in)
	first, second := plan.Explanations["1"], plan.Explanations["2"]
	if first == nil || second == nil {
		t.Fatalf("explained: %v", plan.Explanations)
	}
	if first.Status != "starts now on n2 gpu 1" || len(first.Considered) == 0 || !first.Considered[0].Taken {
		t.Errorf("the first: %+v", first)
	}
	if !slices.ContainsFunc(second.Refused, func(r job.Refusal) bool {
		return r.Reason == rlcore.RefusedUser &&
			slices.Equal(r.With, []string{"1"})
	}) {
		t.Errorf("the second, another user's: %+v", second)
	}
	if plan.Starts["2"].IsZero() {
		t.Errorf("it isn't told when the second starts")
	}
}

// A first run that starts alone leaves one share, so that it runs under MPS as later runs will; no job joins it.
func TestFirstRunsAreUnderMPS(t *testing.T) {
	card := func(sharing string) func(in *Input) {
		return func(in *Input) {
			in.Card = func(string) (rlcore.GPUSpec, bool) { c := rlcore.TitanXp; c.Sharing = sharing; return c, true }
		}
	}
	for name, c := range map[string]struct {
		set  func(in *Input)
		want int
	}{
		"on a node with one GPU": {func(*Input) {}, 99},
		"on a node with several": {func(in *Input) { in.Snap.Nodes[0].GPUs, in.Snap.Nodes[0].Units = 4, 4*job.Units }, 99},
		"jobs take turns there":  {card("time-slice"), 100},
		"it can't run under MPS": {func(in *Input) {
			in.NoMPS = map[rlcore.Identity]bool{{
				App:   "new",
				Owner: "ann",
			}: true}
		}, 100},
		"another user's can't": {func(in *Input) {
			in.NoMPS = map[rlcore.Identity]bool{{
				App:   "new",
				Owner: "bob",
			}: true}
		}, 99},
		"it can't run again":        {func(in *Input) { in.Snap.Jobs[0].Requeue = false }, 100},
		"another waits for its end": {func(in *Input) { in.Snap.Awaited = map[string]bool{"1": true} }, 100},
		"the site wants no retries": {func(in *Input) { in.RetryAlone = false }, 100},
		"nobody could tell":         {func(in *Input) { in.Apps["1"] = job.App{} }, 100},
		"its owner wants it alone":  {func(in *Input) { in.Terms["1"] = job.Terms{NoShare: true} }, 100},
		"users share by hand": {func(in *Input) {
			in.Tracker.HandwrittenSeen, in.Tracker.Handwritten = true,
				in.Snap.At
		}, 100},
		"it has run before": {
			func(in *Input) { in.Apps["1"] = job.App{Key: "new", Profile: in.Apps["2"].Profile} },
			100,
		},
	} {
		first, second := sharer("1"), sharer("2")
		first.User, second.User, first.Requeue = "ann", "ann", true
		in := oneGPU(first, second)
		in.RetryAlone = true
		known := in.Apps["2"]
		in.Apps["1"] = job.App{Key: "new"}
		c.set(in)
		delete(in.Apps, "2") // it comes later
		p := planner()
		plan := p.Plan(in)
		if got := sharesOf(plan); got["1"] != c.want {
			t.Errorf("%s: %v, want %d", name, got, c.want)
			continue
		}
		g := plan.Groups[0].Group
		g.Members[0].State = job.MemberRunning
		in.Tracker.Groups[1] = &g
		in.Snap.Jobs[0] = running("1", "n1", g.GPU, job.Shares, time.Minute)
		in.Snap.Jobs[0].Request.Count, in.Snap.Jobs[0].User = c.want, "ann"
		in.Apps["2"] = known
		if in.Apps["1"].Key == "new" { // meanwhile another run of it has told what it takes
			in.Apps["1"] = job.App{Key: "new", Profile: known.Profile}
		}
		for _, g2 := range p.Plan(in).Groups {
			if g2.Group.GPU == g.GPU {
				t.Errorf("%s: joined by %+v", name, g2.Group.Members)
			}
		}
	}
}

// A job whose application takes a card's memory at its start tries, alone, to make do with a part of it, if its owner
// or the site wants that; no job joins it meanwhile.
func TestAJobThatTriesWithLessMemory(t *testing.T) {
	full := func(held float64) *rlcore.Profile {
		return &rlcore.Profile{
			App: "tf", DurationS: 600, PeriodS: 600, Runs: 1, Processes: 2, HeldMiB: held,
			Series: []rlcore.Use{{MemMiB: 12000}},
		}
	}
	for name, c := range map[string]struct {
		profile *rlcore.Profile
		owner   float64
		set     func(p *Planner, in *Input)
		want    int64
	}{
		"its owner asks":         {profile: full(0), owner: 8192, want: 8192},
		"nothing is known of it": {owner: 8192, want: 8192},
		"nobody asks":            {profile: full(0)},
		"the site asks": {
			profile: full(0), set: func(p *Planner, _ *Input) { p.TryMiB = 6000 },
			want: 6000,
		},
		"the site asks, and owners know": {
			profile: full(0), owner: 8192,
			set: func(p *Planner, _ *Input) { p.TryMiB = 6000 }, want: 8192,
		},
		"the site asks of an unknown one": {set: func(p *Planner, _ *Input) { p.TryMiB = 6000 }},
		"it can't run again": {
			profile: full(0),
			set:     func(p *Planner, in *Input) { p.TryMiB = 6000; in.Snap.Jobs[0].Requeue = false },
		},
		"another waits for it": {
			profile: full(0),
			set:     func(p *Planner, in *Input) { p.TryMiB = 6000; in.Snap.Awaited = map[string]bool{"1": true} },
		},
		"it takes what it needs": {profile: &rlcore.Profile{
			App: "tf", DurationS: 600, PeriodS: 600, Runs: 1,
			Series: []rlcore.Use{{MemMiB: 5000}},
		}, owner: 8192},
		"it has tried": {profile: full(8192), owner: 8192},
		"that much didn't suffice": {profile: full(0), owner: 8192, set: func(_ *Planner, in *Input) {
			in.TriedMiB = map[rlcore.Identity]float64{{App: "tf", Owner: "ann"}: 8192}
		}},
		"less didn't suffice": {profile: full(0), owner: 8192, set: func(_ *Planner, in *Input) {
			in.TriedMiB = map[rlcore.Identity]float64{{App: "tf", Owner: "ann"}: 4096}
		}, want: 8192},
		"it never shares": {
			profile: full(0), owner: 8192,
			set: func(_ *Planner, in *Input) { in.Terms["1"] = job.Terms{TryMiB: 8192, NoShare: true} },
		},
		"more than the card has": {profile: full(0), owner: 20000},
		"the card's MPS has no limits": {
			profile: full(0), owner: 8192,
			set: func(_ *Planner, in *Input) { withCards(in) },
		},
		"users share by hand": {
			profile: full(0), owner: 8192,
			set: func(_ *Planner, in *Input) { in.Tracker.HandwrittenSeen, in.Tracker.Handwritten = true, in.Snap.At },
		},
		"on a node with one GPU": {
			profile: full(0), owner: 8192,
			set: func(_ *Planner, in *Input) { in.Snap.Nodes[0].GPUs, in.Snap.Nodes[0].Units = 1, 100 }, want: 8192,
		},
		"where groups leave room for others": {
			profile: full(0), owner: 8192,
			set: func(p *Planner, _ *Input) { p.Room = true }, want: 8192,
		},
	} {
		first, second := sharer("1"), sharer("2")
		first.User, second.User, first.Requeue = "ann", "ann", true
		in := withCards(snapshot(first, second))
		in.Snap.Nodes = in.Snap.Nodes[:1]
		in.Card = func(string) (rlcore.GPUSpec, bool) {
			card := rlcore.TitanXp
			card.MemLimits = true
			return card, true
		}
		in.Apps["1"] = job.App{Key: "tf", Profile: c.profile}
		in.Terms["1"] = job.Terms{TryMiB: c.owner}
		delete(in.Apps, "2") // it comes later
		p := planner()
		if c.set != nil {
			c.set(p, in)
		}
		plan := p.Plan(in)
		if len(plan.Groups) != 1 || len(plan.Groups[0].Group.Members) != 1 {
			t.Errorf("%s: %+v", name, plan.Groups)
			continue
		}
		g := plan.Groups[0].Group
		m := &g.Members[0]
		if tried := m.Tried && m.Shares == 99; tried != (c.want > 0) || tried &&
			(m.MemMiB != c.want || c.profile != nil && m.ProcessMiB != c.want/2) {
			t.Errorf("%s: %+v, want %d MiB", name, m, c.want)
		}
		if c.want == 0 {
			continue
		}
		// It runs, and the other job comes.
		m.State = job.MemberRunning
		in.Tracker.Groups[1] = &g
		in.Snap.Jobs[0] = running("1", "n1", g.GPU, job.Shares, time.Minute)
		in.Snap.Jobs[0].Request.Count, in.Snap.Jobs[0].User = 99, "ann"
		in.Apps["2"] = job.App{Key: "app", Profile: &rlcore.Profile{
			App: "app", DurationS: 600, PeriodS: 600,
			Series: []rlcore.Use{{MemMiB: 100}},
		}}
		for _, g2 := range p.Plan(in).Groups {
			if g2.Group.GPU == g.GPU {
				t.Errorf("%s: joined by %+v", name, g2.Group.Members)
			}
		}
	}
}
