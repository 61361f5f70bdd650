package loop

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Facts is everything a plan is made from.
type PlanInput struct {
	Snap *job.Snapshot
	// Gate is the job that waiting jobs depend on; "" = there is none.
	Gate string
	// Gated tells a plan for a cluster without a gate (shadow) to take every
	// pending job that asks for a whole GPU's shares as waiting for the bridge.
	Ungated bool
	// Apps holds the application and profile of each job that was looked up, by
	// ref. A job that isn't there was not looked up yet and isn't planned with.
	Apps map[string]job.App
	// Touched holds the jobs that repairs are about to change: what the look saw
	// of them is no longer true, and this plan leaves them out.
	Touched map[string]bool
	// Terms by ref; jobs without an entry have none.
	Terms   map[string]job.Terms
	Card    Card
	Tracker *Tracker
}

// Scope limits what the bridge takes on.
type PartitionFilter struct {
	Include, Exclude []string // partitions; an empty Include means all
	MaxSlowdown      float64
}

// covers reports whether a job of these partitions is the bridge's business.
func (s *PartitionFilter) Covers(partitions string) bool {
	for _, p := range strings.Split(partitions, ",") {
		if slices.Contains(s.Exclude, p) || len(s.Include) > 0 && !slices.Contains(s.Include, p) {
			return false
		}
	}
	return true
}

// gpuRef says which GPU of the cluster a rlcore.State's GPU is.
type gpuRef struct {
	node  *job.Node
	index int
}

// built is a State with the way back to the snapshot.
type clusterView struct {
	State rlcore.State
	gpus  []gpuRef
	jobs  map[string]*job.Job // every job of the snapshot by ref
	soft  map[string]*job.Group
	seats map[string]seat     // of the book's groups
	at    map[job.GPUAddr]int // GPUs' indexes
	lists map[[3]string][]int // see allowed
	// due holds the jobs that were released to start now and haven't yet. They
	// count as running where they were sent.
	due map[string]bool
	// undoing holds the GPUs (by index) whose group is being put back, what its
	// members may still do isn't known before a look shows them, and those whose MPS
	// server failed: nothing more is sent there for now.
	undoing map[int]bool
	// unsure holds the nodes on which some job's GPU isn't known yet, or where a
	// released group has not started: on nodes with several GPUs nothing more is
	// released there before that is settled.
	unsure map[string]bool
	letGo  []job.Change
	gating []job.Change
}

// build makes the State of a look, and the changes for jobs that the bridge
// can't or needn't group.
func build(f *PlanInput, scope *PartitionFilter) *clusterView {
	b := &clusterView{
		jobs:  make(map[string]*job.Job, len(f.Snap.Jobs)),
		soft:  map[string]*job.Group{},
		seats: f.Tracker.seats(),
		at:    map[job.GPUAddr]int{},
		lists: map[[3]string][]int{},
		due:   map[string]bool{},

		undoing: map[int]bool{},
		unsure:  map[string]bool{},
	}
	b.State.NowS = float64(f.Snap.At.UnixMilli()) / 1000
	byNode := map[string][]int{} // GPUs of a node, as indexes in State.GPUs
	for n := range f.Snap.Nodes {
		node := &f.Snap.Nodes[n]
		if !node.Up || node.Reserved || node.Units == 0 {
			continue
		}
		spec, known := rlcore.GPUSpec{}, false
		if f.Card != nil {
			spec, known = f.Card(node.GPUType)
		}
		if !known {
			// A card nobody described: one job at a time.
			spec = rlcore.GPUSpec{Model: node.GPUType, SameUser: true, MaxClients: 1}
		}
		for i := range node.GPUs {
			byNode[node.Name] = append(byNode[node.Name], len(b.gpus))
			b.at[job.GPUAddr{Node: node.Name, GPU: i}] = len(b.gpus)
			b.gpus = append(b.gpus, gpuRef{node, i})
			b.State.GPUs = append(b.State.GPUs, rlcore.GPU{
				ID: fmt.Sprintf("%s:%d", node.Name, i), Node: node.Name, Spec: spec,
				FreeCPUs: node.CPUs - node.CPUsAlloc, FreeHostMemMiB: node.MemMiB - node.MemAlloc,
			})
		}
	}
	for i := range f.Snap.Jobs {
		j := &f.Snap.Jobs[i]
		b.jobs[j.Ref] = j
		if j.State != job.Pending {
			b.place(f, j, byNode)
		}
	}
	for _, id := range f.Tracker.groupIDs() {
		g := f.Tracker.Groups[id]
		for i := range g.Members {
			m := &g.Members[i]
			j := b.jobs[m.Ref]
			if m.Gone != "" || j == nil || j.State != job.Pending {
				continue
			}
			if m.Undo != "" {
				for x, r := range b.gpus {
					if r.node.Name == g.Node && (r.index == g.GPU || r.node.GPUs > 1) {
						b.undoing[x] = true
					}
				}
				continue
			}
			if g.Kind == job.Next {
				b.soft[m.Ref] = g
				continue
			}
			b.unsure[g.Node] = true
			b.due[m.Ref] = true
			for x, r := range b.gpus {
				if r.node.Name == g.Node && r.index == g.GPU {
					card := &b.State.GPUs[x]
					card.Running = append(card.Running, rlcore.Running{Job: b.job(f, j), Shares: m.Shares})
					card.FreeCPUs -= j.CPUs
					card.FreeHostMemMiB -= j.HostMemMiB
				}
			}
		}
	}
	for p := range f.Tracker.faulted {
		if i, ok := b.at[p]; ok && len(b.State.GPUs[i].Running) > 0 {
			b.undoing[i] = true
		}
	}
	pending := make([]*job.Job, 0, len(f.Snap.Jobs))
	for i := range f.Snap.Jobs {
		if j := &f.Snap.Jobs[i]; j.State == job.Pending {
			pending = append(pending, j)
		}
	}
	slices.SortFunc(pending, before)
	for _, j := range pending {
		b.pend(f, j, scope)
	}
	return b
}

// before is Slurm's order: highest priority first, of equals the one submitted
// first.
func before(x, y *job.Job) int {
	return cmp.Or(-cmp.Compare(x.Priority, y.Priority), x.Submit.Compare(y.Submit),
		cmp.Compare(x.ID, y.ID), cmp.Compare(len(x.Ref), len(y.Ref)), cmp.Compare(x.Ref, y.Ref))
}

// sort puts jobs in Slurm's order again.
func (b *clusterView) sort(jobs []rlcore.Job) {
	slices.SortStableFunc(jobs, func(x, y rlcore.Job) int { return before(b.jobs[x.ID], b.jobs[y.ID]) })
}

// place puts a job that holds a GPU where it is.
func (b *clusterView) place(f *PlanInput, j *job.Job, byNode map[string][]int) {
	gpus := byNode[j.Nodes]
	if len(gpus) == 0 {
		return // on a node out of service, or on several: those are whole
	}
	where := make([]int, 0, 1)
	switch {
	case len(gpus) == 1:
		where = append(where, gpus[0])
	case j.GPUs != nil:
		for _, i := range j.GPUs {
			if i >= 0 && i < len(gpus) {
				where = append(where, gpus[i])
			}
		}
	default:
		b.unsure[j.Nodes] = true
		where = gpus
	}
	if j.State == job.Completing && len(gpus) == 1 {
		// Its processes have ended; by the time Slurm looks at what is released
		// now, its shares and cores are free.
		card := &b.State.GPUs[gpus[0]]
		card.FreeCPUs += j.CPUs
		card.FreeHostMemMiB += j.HostMemMiB
		return
	}
	if j.State == job.Completing {
		b.unsure[j.Nodes] = true
	}
	shared := j.Request.Kind == job.Shares && len(where) == 1 && len(gpus) > 0
	r := rlcore.Running{Job: b.job(f, j), Shares: j.Request.Count, Whole: !shared || j.Request.Count >= job.Units && !f.known(j)}
	r.ElapsedS = max(0, f.Snap.At.Sub(j.Start).Seconds())
	r.DoneS = r.ElapsedS
	if p := f.Tracker.Done[j.Ref]; p != nil {
		r.DoneS = p.DoneS
	}
	if r.Profile != nil {
		r.DoneS = rlcore.Believed(r.DoneS, r.Profile.DurationS)
	}
	for _, g := range where {
		b.State.GPUs[g].Running = append(b.State.GPUs[g].Running, r)
	}
}

func (f *PlanInput) known(j *job.Job) bool { return f.Apps[j.Ref].Profile != nil }

func (b *clusterView) job(f *PlanInput, j *job.Job) rlcore.Job {
	t := f.Terms[j.Ref]
	out := rlcore.Job{
		ID: j.Ref, User: j.User, Profile: f.Apps[j.Ref].Profile,
		SubmitS: float64(j.Submit.UnixMilli()) / 1000, LimitS: j.TimeLimit.Seconds(),
		MaxSlowdown: t.MaxSlowdown, NoShare: t.NoShare,
		CPUs: j.CPUs, HostMemMiB: j.HostMemMiB, ArrayOnly: t.ArrayOnly,
	}
	if j.ArrayID != 0 {
		out.Array = strconv.FormatInt(j.ArrayID, 10)
	}
	if w := f.Tracker.Waits[j.Ref]; w != nil {
		out.PassedOver, out.DelayedS = w.PassedOver, w.DelayedS
	}
	return out
}

// gated reports whether the job waits for the bridge, and for nothing else.
func (f *PlanInput) gated(j *job.Job) bool {
	if f.Ungated {
		return len(j.Dependency.List) == 0
	}
	for _, g := range f.Snap.Gates {
		if !g.Open && j.Dependency.Only("after", g.ID) {
			return true
		}
	}
	return false
}

// behindGate reports whether the gate is among what the job waits for.
func (f *PlanInput) behindGate(j *job.Job) bool {
	for _, g := range f.Snap.Gates {
		if !g.Open && j.Dependency.Has("after", g.ID) {
			return true
		}
	}
	return false
}

// pend sorts one pending job: into the queue of the State, to the gate, or back
// to Slurm.
func (b *clusterView) pend(f *PlanInput, j *job.Job, scope *PartitionFilter) {
	if f.Touched[j.Ref] {
		return
	}
	if j.State != job.Pending || f.Tracker.Unmanaged[j.Ref] != "" {
		if j.State == job.Pending && f.behindGate(j) && !f.Ungated {
			b.release(f, j, "left to Slurm: "+f.Tracker.Unmanaged[j.Ref])
		}
		return
	}
	if j.Request.Kind == job.SharedGPU {
		b.gate(f, j, scope)
		return
	}
	soft := b.soft[j.Ref] != nil
	if !soft && !f.behindGate(j) && !f.Ungated {
		return // not ours
	}
	if b.seats[j.Ref].group != nil && !soft {
		return // released, about to start
	}
	if !soft {
		why := notOurs(j, scope)
		if why == "" && !f.fits(j) {
			why = "no one node of its partition with a GPU is as large"
		}
		if why != "" {
			if !f.Ungated {
				b.release(f, j, why)
			}
			return
		}
		if f.holds(j) != "" {
			return // it waits for something of its owner's, too
		}
	}
	if _, seen := f.Apps[j.Ref]; !seen {
		return
	}
	rj := b.job(f, j)
	rj.GPUs = b.allowed(f, j)
	b.State.Pending = append(b.State.Pending, rj)
}

// notOurs says why a job behind the gate can't be grouped; "" = it can.
func notOurs(j *job.Job, scope *PartitionFilter) string {
	switch {
	case j.HetID != 0:
		return "a heterogeneous job is left alone"
	case j.Request.Kind != job.Shares || j.Request.Count != job.Units:
		return "its owner asks for other shares"
	case j.NumNodes > 1:
		return "it asks for several nodes"
	case j.Features != "":
		return "it asks for node features"
	case j.Reservation != "":
		return "it asks for a reservation"
	case j.Exclusive:
		return "it asks for its nodes to itself"
	case strings.ContainsAny(j.ReqNodes, ",["):
		return "it asks for several nodes by name"
	case j.Dependency.Or:
		return "its dependencies are alternatives"
	case !scope.Covers(j.Partition):
		return "its partition is left alone"
	}
	return ""
}

// fits reports whether a node is large enough for the job when nobody else is there.
// Where none is, Slurm may still spread its tasks over several.
func (f *PlanInput) fits(j *job.Job) bool {
	parts := strings.Split(j.Partition, ",")
	return slices.ContainsFunc(f.Snap.Nodes, func(n job.Node) bool {
		return n.CPUs >= j.CPUs && n.MemMiB >= j.HostMemMiB && n.Serves(parts)
	})
}

// release lets a gated job go: it becomes an ordinary job with what it asks for.
func (b *clusterView) release(f *PlanInput, j *job.Job, why string) {
	dep := j.Dependency.Without(f.Snap.Gates)
	b.letGo = append(b.letGo, job.Change{
		Step: "let-go", Why: why,
		Update: job.Update{Jobs: []string{j.Ref}, Dependency: &dep, StartNow: dep == "" && startable(j)},
		Was:    map[string]string{j.Ref: describe(j)},
	})
}

// gate adds the gate to a job that still asks for gpu:shared as its owner wrote
// it: a cluster without the job_submit script.
func (b *clusterView) gate(f *PlanInput, j *job.Job, scope *PartitionFilter) {
	if f.Gate == "" || f.Ungated || j.Dependency.Or || j.HetID != 0 || !scope.Covers(j.Partition) || len(f.Snap.Nodes) == 0 {
		return
	}
	dep := "after:" + f.Gate
	if own := j.Dependency.Plain(); own != "" {
		dep = own + "," + dep
	}
	gres := fmt.Sprintf("%s:%d", f.Snap.Nodes[0].Sharing, job.Units)
	b.gating = append(b.gating, job.Change{
		Step: "gate", Why: "asks for gpu:shared",
		Update: job.Update{Jobs: []string{j.Ref}, Gres: &gres, Dependency: &dep},
		Was:    map[string]string{j.Ref: describe(j)},
	})
}

// allowed lists the GPUs a pending job may use, nil = all. Jobs with the same
// demands share one list.
func (b *clusterView) allowed(f *PlanInput, j *job.Job) []int {
	// A member of a soft group is bound to its node by the bridge, not by its
	// owner.
	own := j.ReqNodes
	if g := b.soft[j.Ref]; g != nil {
		if m := b.seats[j.Ref].member; m != nil {
			own = m.WasNodes
		}
	}
	key := [3]string{j.Partition, own, j.ExcNodes}
	out, ok := b.lists[key]
	if !ok {
		out = b.list(strings.Split(j.Partition, ","), own, expandHosts(j.ExcNodes))
		b.lists[key] = out
	}
	return out
}

func (b *clusterView) list(parts []string, own string, exclude map[string]bool) []int {
	out := make([]int, 0, len(b.gpus))
	for i, r := range b.gpus {
		if own != "" && own != r.node.Name || exclude[r.node.Name] {
			continue
		}
		if !r.node.Serves(parts) {
			continue
		}
		out = append(out, i)
	}
	if len(out) == len(b.gpus) {
		return nil
	}
	return out
}

// describe is what the journal keeps of a job before a change.
func describe(j *job.Job) string {
	return fmt.Sprintf("Gres=%s ReqNodeList=%s Dependency=%s", j.Request.Raw, j.ReqNodes, j.Dependency.Raw)
}

// sameGres reports whether a gres to set is what the job already asks for.
func sameGres(set string, a job.GPURequest) bool {
	return a.Kind == job.Shares && set == fmt.Sprintf("%s:%d", a.Sharing, a.Count)
}
