package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// mixed is a cluster of one node with a whole GPU of 80 GB and two instances of 20 GB.
func mixed(jobs ...job.Job) *Input {
	in := snapshot(jobs...)
	n := &in.Snap.Nodes[0]
	in.Snap.Nodes = in.Snap.Nodes[:1]
	cut(n, "h100", "2g.20gb", "2g.20gb")
	n.Units, n.Sharing = 300, job.Shard
	in.Card = func(typ string) (rlcore.GPUSpec, bool) {
		return rlcore.GPUSpec{Model: typ, MemMiB: map[string]float64{"h100": 80_000, "2g.20gb": 20_000, slice: 20_000}[typ]},
			true
	}
	in.Models = map[job.GPUAddr]string{{Node: "n1"}: "H100", {Node: "n1", GPU: 1}: slice, {Node: "n1", GPU: 2}: slice}
	return in
}

// cut gives a node GPUs of these types, each with shares.
func cut(n *job.Node, types ...string) {
	n.GPUs, n.GPUType, n.Cards = len(types), "", nil
	if len(slices.Compact(slices.Clone(types))) == 1 {
		n.GPUType = types[0]
		return
	}
	for _, typ := range types {
		n.Cards = append(n.Cards, job.Card{Type: typ, Units: job.Units})
	}
}

const slice = "H100 MIG 2g.20gb"

// uses gives a job an application that takes so long on a whole GPU, and on a slice.
func uses(in *Input, ref string, mib, wholeS, sliceS float64) {
	of := func(s float64, card string) *rlcore.Profile {
		return &rlcore.Profile{
			App: ref, DurationS: s, PeriodS: s, Series: []rlcore.Use{{GPU: .3, Core: .2, MemMiB: mib}}, Card: card, Runs: 3,
		}
	}
	p := of(wholeS, "H100")
	in.Apps[ref] = job.App{Key: ref, Profile: p, Cards: map[string]*rlcore.Profile{"H100": p, slice: of(sliceS, slice)}}
	if sliceS == 0 { // a slice is another model, and the memory is what it was
		in.Apps[ref].Cards[slice] = of(wholeS, slice)
		in.Apps[ref].Cards[slice].Runs = 0
	}
}

// requests are the new requests of the jobs that start, by ref.
func requests(p *job.Plan) map[string]string {
	out := map[string]string{}
	for i := range p.Groups {
		for _, c := range p.Groups[i].Prepare {
			for _, ref := range c.Update.Jobs {
				if out[ref] = ""; c.Update.Gres != nil {
					out[ref] = *c.Update.Gres
				}
			}
		}
	}
	return out
}

// Where GPUs are mixed with instances, shares are asked for by type, and the stamp says so.
func TestSharesOfSlicesAreAskedForByType(t *testing.T) {
	in := mixed(sharer("1"), sharer("2"))
	uses(in, "1", 5000, 100, 100)
	uses(in, "2", 5000, 100, 100)
	plan := planner().Plan(in)
	got := requests(plan)
	for _, ref := range []string{"1", "2"} {
		if !strings.HasPrefix(got[ref], "shard:2g.20gb:") || got[ref] == "shard:2g.20gb:100" {
			t.Errorf("job %s requests %q", ref, got[ref])
		}
	}
	if c := plan.Groups[0].Prepare[0].Update.AdminComment; c == nil ||
		!strings.Contains(*c, "[shard:2g.20gb:50 on n1, was shard:100]") &&
			!strings.Contains(*c, "[shard:2g.20gb:50, was shard:100]") {
		t.Errorf("%+v", plan.Groups[0].Prepare[0].Update)
	}
	if m := plan.Groups[0].Group.Members[0]; m.GPUType != "2g.20gb" {
		t.Errorf("%+v", m)
	}
}

// Memory decides what fits: the jobs in front, which are small, take the slices, and leave the whole GPU to the large
// one.
func TestALargeJobGetsTheWholeGPU(t *testing.T) {
	in := mixed(sharer("1"), sharer("2"), sharer("3"))
	uses(in, "1", 15_000, 100, 100)
	uses(in, "2", 15_000, 100, 100)
	uses(in, "3", 50_000, 100, 0)
	got := requests(planner().Plan(in))
	if !strings.HasPrefix(got["3"], "shard:h100:") || !strings.HasPrefix(got["1"], "shard:2g.20gb:") ||
		!strings.HasPrefix(got["2"], "shard:2g.20gb:") {
		t.Errorf("%v", got)
	}
}

// No slice is meant for a job that is too large for it, though each is idle; where no GPU has memory enough it is as on
// plain Slurm. What was measured on a slice fits there.
func TestALargeJobIsMeantForNoSlice(t *testing.T) {
	in := mixed(sharer("1"))
	uses(in, "1", 50_000, 100, 0)
	must.Equal(t, requests(planner().Plan(in))["1"], "shard:h100:100")
	in.Snap.Jobs = append(in.Snap.Jobs, running("w", "n1", 0, job.WholeGPU, 0))
	must.Equal(t, requests(planner().Plan(in)), map[string]string{})
	in = mixed(sharer("1"))
	cut(&in.Snap.Nodes[0], "2g.20gb", "2g.20gb")
	in.Models = map[job.GPUAddr]string{{Node: "n1"}: slice, {Node: "n1", GPU: 1}: slice}
	uses(in, "1", 50_000, 100, 0)
	must.Equal(t, len(planner().Plan(in).Groups), 1)
}

// What is promised to a job goes by the models that it may have: not by a whole GPU where its owner wants an instance.
func TestPromisesAreOfTheModelsThatAJobMayHave(t *testing.T) {
	in := mixed(sharer("1"))
	cut(&in.Snap.Nodes[0], "h100", "2g.20gb", "3g.40gb")
	const other = "H100 MIG 3g.40gb"
	in.Models[job.GPUAddr{Node: "n1", GPU: 2}] = other
	uses(in, "1", 15_000, 100, 300)
	in.Apps["1"].Cards[other] = &rlcore.Profile{
		App: "1", DurationS: 200, PeriodS: 200, Series: []rlcore.Use{{}},
		Card: other, Runs: 1,
	}
	q := count(in)
	must.Equal(t, q.waiting[0].Profile.DurationS, 100.)
	of := q.reachOf(func(g int) bool { return g > 0 })
	of.know(&q.waiting[0], in.Apps["1"])
	must.Equal(t, q.waiting[0].Profile.DurationS, 200.)
}

// A job that takes three times as long on a slice as on the idle whole GPU gets that; one that takes as long gets a
// slice.
func TestAJobGetsWhereItEndsFirst(t *testing.T) {
	for sliceS, want := range map[float64]string{300: "shard:h100:100", 102: "shard:2g.20gb:100"} {
		in := mixed(sharer("1"))
		uses(in, "1", 15_000, 100, sliceS)
		p := planner()
		p.Decider.Guard.Grace = rlcore.DefaultGrace
		must.Equal(t, requests(p.Plan(in))["1"], want, sliceS)
	}
}

// Who names a type of GPU gets it and no other; a type that nobody has is as none.
func TestAnOwnerNamesTheModel(t *testing.T) {
	for model, want := range map[string]string{
		"h100": "shard:h100:100", "2g.20gb": "shard:2g.20gb:100",
		"4g.40gb": "shard:2g.20gb:100",
	} {
		in := mixed(sharer("1"))
		uses(in, "1", 15_000, 100, 100)
		in.Terms = map[string]job.Terms{"1": job.ParseTerms("share:model=" + model)}
		plan := planner().Plan(in)
		must.Equal(t, requests(plan)["1"], want, model)
		must.Equal(t, len(plan.Explanations["1"].Ignored), map[bool]int{true: 1}[model == "4g.40gb"], model)
	}
}

// While the nodes of the type that an owner names are out of service, the job waits for them.
func TestAModelOutOfServiceIsWaitedFor(t *testing.T) {
	in := mixed(sharer("1"))
	uses(in, "1", 15_000, 100, 100)
	down := in.Snap.Nodes[0]
	down.Name, down.Up = "n3", false
	cut(&down, "3g.40gb")
	in.Snap.Nodes = append(in.Snap.Nodes, down)
	in.Terms = map[string]job.Terms{"1": {Model: "3g.40gb"}}
	plan := planner().Plan(in)
	must.Equal(t, requests(plan), map[string]string{})
	must.Equal(t, len(plan.Ungated), 0)
	in.Snap.Nodes[1].Cards = []job.Card{{Type: "3g.40gb"}} // without shares, it is none
	must.Equal(t, requests(planner().Plan(in))["1"], "shard:2g.20gb:100")
	in.Snap.Nodes[1].Cards = nil
	in.Snap.Jobs[0].ReqNodes = "n1" // where there is none
	must.Equal(t, requests(planner().Plan(in))["1"], "shard:2g.20gb:100")
}

// Jobs of one node's slices and of its whole GPU land where they are meant: Slurm chooses among the GPUs of a type.
func TestSeatsOfEachType(t *testing.T) {
	in := mixed(sharer("1"), sharer("2"), sharer("3"), sharer("4"), sharer("5"), sharer("6"))
	for _, ref := range []string{"1", "2", "3", "4", "5", "6"} {
		uses(in, ref, 5_000, 100, 100)
	}
	plan := planner().Plan(in)
	var members []job.Member
	at := map[string]int{}
	for _, g := range plan.Groups {
		for _, m := range g.Group.Members {
			members, at[m.Ref] = append(members, m), g.Group.GPU
		}
	}
	slices.SortFunc(members, func(a, b job.Member) int { return plan.Order[a.Ref] - plan.Order[b.Ref] })
	free := map[string][]int{"h100": {100}, "2g.20gb": {100, 100}}
	first := map[string]int{"h100": 0, "2g.20gb": 1}
	if len(members) != 6 {
		t.Fatalf("%d of 6 start: %+v", len(members), members)
	}
	for _, m := range members {
		g := firstFit.pick(free[m.GPUType], m.Shares)
		if g < 0 || g+first[m.GPUType] != at[m.Ref] {
			t.Fatalf("job %s with %d of %s lands on %d, meant for %d", m.Ref, m.Shares, m.GPUType, g, at[m.Ref])
		}
		free[m.GPUType][g] -= m.Shares
	}
}
