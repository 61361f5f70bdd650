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
	in.Specs = func(typ string) (rlcore.GPUSpec, bool) {
		return rlcore.GPUSpec{Model: typ, MemMiB: map[string]float64{"h100": 80_000, "2g.20gb": 20_000, slice: 20_000}[typ]},
			true
	}
	in.Models = map[job.GPUAddr]string{{Node: "n1"}: "H100", {Node: "n1", GPU: 1}: slice, {Node: "n1", GPU: 2}: slice}
	return in
}

// cut gives a node GPUs of these types, each with shares.
func cut(n *job.Node, types ...string) {
	n.GPUs, n.GPUType, n.ByIndex = len(types), "", nil
	if len(slices.Compact(slices.Clone(types))) == 1 {
		n.GPUType = types[0]
		return
	}
	for _, typ := range types {
		n.ByIndex = append(n.ByIndex, job.GPU{Type: typ, Units: job.Units})
	}
}

const slice = "H100 MIG 2g.20gb"

// uses gives a job an application that takes so long on a whole GPU, and on a slice; 0 = it has run on no slice.
func uses(in *Input, ref string, mib, wholeS, sliceS float64) {
	of := func(s float64, card string) *rlcore.Profile {
		p := runs(s, mib)
		p.App, p.Model, p.Runs, p.Series[0].GPU, p.Series[0].Core = ref, card, 3, .3, .2
		return p
	}
	p, onSlice := of(wholeS, "H100"), of(sliceS, slice)
	if sliceS == 0 { // a slice is another model, and the memory is what it was
		onSlice = of(wholeS, slice)
		onSlice.Runs = 0
	}
	in.Apps[ref] = job.App{Key: ref, Profile: p, ByModel: map[string]*rlcore.Profile{"H100": p, slice: onSlice}}
}

// mixedFor is such a cluster and a job that waits.
func mixedFor(mib, wholeS, sliceS float64) *Input {
	in := mixed(sharer("1"))
	uses(in, "1", mib, wholeS, sliceS)
	return in
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

// Memory decides what fits: the jobs in front, which are small, take the slices, and leave the whole GPU to the large
// one. No slice is meant for a job that is too large for it, though each is idle; where no GPU has memory enough it is
// as on plain Slurm.
func TestALargeJobGetsTheWholeGPU(t *testing.T) {
	in := mixed(sharer("1"), sharer("2"), sharer("3"))
	uses(in, "1", 15_000, 100, 100)
	uses(in, "2", 15_000, 100, 100)
	uses(in, "3", 50_000, 100, 0)
	on := map[string]string{}
	for ref, gres := range requests(planner().Plan(in)) {
		on[ref] = gres[:strings.LastIndex(gres, ":")]
	}
	must.Equal(t, on, map[string]string{"1": "shard:2g.20gb", "2": "shard:2g.20gb", "3": "shard:h100"})

	in = mixedFor(50_000, 100, 0)
	must.Equal(t, requests(planner().Plan(in))["1"], "shard:h100:50")
	in.Snap.Jobs = append(in.Snap.Jobs, running("w", "n1", 0, job.WholeGPU, 0))
	must.Equal(t, requests(planner().Plan(in)), nil)
	in = mixedFor(50_000, 100, 0)
	cut(&in.Snap.Nodes[0], "2g.20gb", "2g.20gb")
	in.Models = map[job.GPUAddr]string{{Node: "n1"}: slice, {Node: "n1", GPU: 1}: slice}
	must.Equal(t, len(planner().Plan(in).Groups), 1)
}

// What is promised to a job goes by the models that it may have: not by a whole GPU where its owner wants an instance.
func TestPromisesAreOfTheModelsThatAJobMayHave(t *testing.T) {
	in := mixedFor(15_000, 100, 300)
	cut(&in.Snap.Nodes[0], "h100", "2g.20gb", "3g.40gb")
	const other = "H100 MIG 3g.40gb"
	in.Models[job.GPUAddr{Node: "n1", GPU: 2}] = other
	in.Apps["1"].ByModel[other] = runs(200, 0)
	q := count(in)
	must.Equal(t, q.waiting[0].Profile.DurationS, 100.)
	of := q.view.reachOf(func(g int) bool { return q.view.gpus[g].typ != "h100" })
	of.know(&q.waiting[0], in.Apps["1"])
	must.Equal(t, q.waiting[0].Profile.DurationS, 200.)
}

// A job that takes three times as long on a slice as on the idle whole GPU gets that; one that takes as long gets a
// slice.
func TestAJobGetsWhereItEndsFirst(t *testing.T) {
	for sliceS, want := range map[float64]string{300: "shard:h100:50", 102: "shard:2g.20gb:50"} {
		in := mixedFor(15_000, 100, sliceS)
		p := planner()
		p.Decider.Guard.Grace = rlcore.DefaultGrace
		must.Equal(t, requests(p.Plan(in))["1"], want, sliceS)
	}
}

// Who names a type of GPU gets it and no other; a type that nobody has is as none.
func TestAnOwnerNamesTheModel(t *testing.T) {
	named := map[string]string{"h100": "shard:h100:50", "2g.20gb": "shard:2g.20gb:50", "4g.40gb": "shard:2g.20gb:50"}
	for model, want := range named {
		in := mixedFor(15_000, 100, 100)
		in.Terms = map[string]job.Terms{"1": job.ParseTerms("share:model=" + model)}
		plan := planner().Plan(in)
		must.Equal(t, requests(plan)["1"], want, model)
		must.Equal(t, len(plan.Explanations["1"].Ignored), map[bool]int{true: 1}[model == "4g.40gb"], model)
	}
}

// While the nodes of the type that an owner names are out of service, the job waits for them.
func TestAModelOutOfServiceIsWaitedFor(t *testing.T) {
	in := mixedFor(15_000, 100, 100)
	down := in.Snap.Nodes[0]
	down.Name, down.Up = "n3", false
	cut(&down, "3g.40gb")
	in.Snap.Nodes = append(in.Snap.Nodes, down)
	in.Terms = map[string]job.Terms{"1": {Model: "3g.40gb"}}
	plan := planner().Plan(in)
	must.Equal(t, requests(plan), nil)
	must.Equal(t, len(plan.Ungated), 0)
	in.Snap.Nodes[1].ByIndex = []job.GPU{{Type: "3g.40gb"}} // without shares, it is none
	must.Equal(t, requests(planner().Plan(in))["1"], "shard:2g.20gb:50")
	in.Snap.Nodes[1].ByIndex = nil
	in.Snap.Jobs[0].ReqNodes = "n1" // where there is none
	must.Equal(t, requests(planner().Plan(in))["1"], "shard:2g.20gb:50")
}
