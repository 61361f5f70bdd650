package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/limit"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// view is the queue and the GPUs of one poll: the decider's State, with the way back to the poll. A GPU is its index in
// State.GPUs.
type view struct {
	State rlcore.State
	in    *Input
	gpus  []gpuRef
	index map[job.GPUAddr]int // the other way round
	nodes map[string][]int    // the GPUs of a node, in gres.conf's order
	jobs  map[string]*job.Job
	seats map[string]tracker.Seat
	// starting holds the released jobs that are still pending. They count as running where they were sent.
	starting map[string]bool
	// closed holds the GPUs to which nothing is sent for now: members of a group there are being restored and may still
	// start, or the MPS server failed.
	closed map[int]bool
	// unsettled holds the nodes where a job runs on GPUs that aren't known: nothing more is released there.
	unsettled map[string]bool
	present   [][]rlcore.Running   // by GPU: the jobs that run there
	seated    [][]rlcore.Running   // by GPU: these, and the released jobs that will start there
	onWay     map[string][]floater // by node with several GPUs: the released jobs, in the order of their groups
	usable    map[[5]string]usable // see mayUse
	budget    *limit.Budget
	quota     *limit.GPUs // of adopted jobs
	// limited says, by ref, which of Slurm's limits keeps a job out of the queue, and closedTo why a node is closed to
	// a job in the queue.
	limited, closedTo map[string]string
	withheld          []rlcore.Job // the jobs that a limit keeps out of the queue
	gate, ungate      []job.Change
	unfit             map[string]job.Unfit // by ref: why the bridge leaves the job to Slurm
	notAdopted        map[string]job.Unfit // by ref: why a job that a rule of the site matches has its own GPU
	unstarted         map[string]bool      // foreign jobs that could start on idle GPUs
	foreign           int                  // how many foreign jobs are in the queue
	divideHost        bool                 // see Planner
	grain             int                  // of how many CPUs at a time Slurm allocates, the most on any node
}

// usable are the GPUs that a pending job may use, nil = all, the largest number of them on one node, and their models.
type usable struct {
	gpus   *rlcore.GPUSet
	most   int
	models []string
}

// gpuRef is the node and index of a GPU of the State.
type gpuRef struct {
	node  *job.Node
	index int // there
	place int // among the node's GPUs with shares
	model string
}

func newView(in *Input, managed *job.PartitionFilter, divideHost bool) *view {
	v := &view{
		in: in, divideHost: divideHost, grain: 1,
		index:     map[job.GPUAddr]int{},
		nodes:     map[string][]int{},
		jobs:      make(map[string]*job.Job, len(in.Snap.Jobs)),
		seats:     in.Tracker.Seats(),
		unfit:     map[string]job.Unfit{},
		unstarted: map[string]bool{}, notAdopted: map[string]job.Unfit{},
		starting:  map[string]bool{},
		closed:    map[int]bool{},
		unsettled: map[string]bool{},
		onWay:     map[string][]floater{},
		usable:    map[[5]string]usable{},
		limited:   map[string]string{},
		closedTo:  map[string]string{},
	}
	in.grains, in.members, in.unshared = map[string][]*job.Node{}, map[string]*job.Member{}, map[[3]string]bool{}
	for ref, seat := range v.seats {
		in.members[ref] = seat.Member
	}
	v.State.NowS = tracker.Seconds(in.Snap.At)
	for i := range in.Snap.Nodes {
		v.addNode(&in.Snap.Nodes[i])
		v.grain = max(v.grain, in.Snap.Nodes[i].CPUsPerAlloc)
	}
	pending := make([]*job.Job, 0, len(in.Snap.Jobs))
	for i := range in.Snap.Jobs {
		j := &in.Snap.Jobs[i]
		v.jobs[j.Ref] = j
		if j.State == job.Pending {
			pending = append(pending, j)
		} else {
			v.addRunning(j)
		}
	}
	v.present = make([][]rlcore.Running, len(v.gpus))
	for g := range v.State.GPUs {
		v.present[g] = slices.Clip(v.State.GPUs[g].Running)
	}
	for _, id := range in.Tracker.GroupIDs() {
		v.addGroup(in.Tracker.Groups[id])
	}
	v.seated = make([][]rlcore.Running, len(v.gpus))
	for g := range v.State.GPUs {
		v.seated[g] = slices.Clip(v.State.GPUs[g].Running)
	}
	for addr := range in.Tracker.Faulted {
		if g, ok := v.index[addr]; ok && len(v.State.GPUs[g].Running) > 0 {
			v.closed[g] = true
		}
	}
	v.budget = in.Tracker.Limits.Budget(in.Snap, v.jobs)
	for ref := range v.starting {
		v.budget.Starts(ref)
	}
	v.quota = limit.CountGPUs(in.Snap, func(j *job.Job) bool { return release.Adopted(in.members[j.Ref]) && j.Request.Kind == job.Shares }, in.WaitsForBridge)
	slices.SortFunc(pending, ByPriority)
	for _, j := range pending {
		v.addPending(j, managed)
	}
	return v
}

// addNode adds the GPUs of a node that is in service.
func (v *view) addNode(node *job.Node) {
	if !node.Up || node.Reserved || node.Units == 0 {
		return
	}
	for i := range node.GPUs {
		c := node.Card(i)
		if c.Units < job.Units {
			continue // without shares: no business of the bridge's
		}
		g := len(v.gpus)
		v.index[job.GPUAddr{Node: node.Name, GPU: i}] = g
		v.gpus = append(v.gpus, gpuRef{node, i, len(v.nodes[node.Name]), v.in.Models[job.GPUAddr{Node: node.Name, GPU: i}]})
		v.nodes[node.Name] = append(v.nodes[node.Name], g)
		v.State.GPUs = append(v.State.GPUs, rlcore.GPU{
			ID: fmt.Sprintf("%s:%d", node.Name, i), Node: node.Name, Spec: v.in.Card.Spec(c.Type),
			Card: v.gpus[g].model, FreeCPUs: node.CPUs - node.CPUsAlloc, FreeHostMemMiB: node.MemMiB - node.MemAlloc,
		})
	}
}

// Spec describes a GPU type; an unknown one has one job at a time.
func (c Card) Spec(typ string) rlcore.GPUSpec {
	if c != nil {
		if spec, known := c(typ); known {
			return spec
		}
	}
	return rlcore.GPUSpec{Model: typ, SameUser: true, MaxClients: 1}
}

// addRunning puts a job on the GPUs that it holds, of nodes in service.
func (v *view) addRunning(j *job.Job) {
	if j.NumNodes < 2 {
		v.addRunningOn(j, j.Nodes, v.nodes[j.Nodes])
		return
	}
	for host := range text.ExpandHosts(j.Nodes) {
		v.addRunningOn(j, host, v.nodes[host])
	}
}

func (v *view) addRunningOn(j *job.Job, node string, gpus []int) {
	several := j.Nodes != node // what it has of each node isn't known
	if j.State == job.Completing && !several {
		// Its processes have ended. By the time Slurm looks at what is released now, its shares and cores are free:
		// until its epilog has ended nothing starts on the node.
		v.take(gpus, -j.CPUs, -j.HostMemMiB)
		return
	}
	where := gpus
	if !several && j.GPUs != nil {
		where = nil
		for _, i := range j.GPUs {
			if g, ok := v.index[job.GPUAddr{Node: node, GPU: i}]; ok {
				where = append(where, g)
			}
		}
	} else if len(gpus) > 1 && j.Request.Count < len(gpus) {
		v.unsettled[node] = true
	}
	r := v.running(j, j.Request.Kind == job.Shares && len(where) == 1)
	for _, g := range where {
		v.State.GPUs[g].Running = append(v.State.GPUs[g].Running, r)
	}
}

// running converts a running job. shares: it holds shares of one GPU.
func (v *view) running(j *job.Job, shares bool) rlcore.Running {
	r := rlcore.Running{Job: v.in.rlJob(j), Shares: j.Request.Count}
	r.Profile = v.in.Profile(j)
	r.Whole = !shares || j.Request.Count >= job.Units && r.Profile == nil
	if m := v.seats[j.Ref].Member; m != nil {
		r.MemLimitMiB, r.NoShare = float64(m.MemMiB), r.NoShare || m.Tried
	}
	r.ElapsedS = max(0, v.in.Snap.At.Sub(j.Start).Seconds())
	r.DoneS = r.ElapsedS
	if p := v.in.Tracker.Done[j.Ref]; p != nil {
		r.DoneS = p.DoneS
	}
	if r.Profile != nil {
		r.DoneS = r.Profile.Believed(r.DoneS)
	}
	return r
}

// addGroup adds the pending members of a group to the view.
func (v *view) addGroup(g *job.Group) {
	if g.Kind == job.Turn {
		return // its job is in the queue; see addPending
	}
	at, inService := v.index[g.Addr()]
	for i := range g.Members {
		m := &g.Members[i]
		j := v.jobs[m.Ref]
		switch {
		case m.State.Final() || j == nil || j.State != job.Pending:
		case m.State == job.MemberRestoring: // it may start on any GPU of the node
			for _, at := range v.nodes[g.Node] {
				v.closed[at] = true
			}
		case !inService:
			v.starting[m.Ref] = true
		default:
			v.starting[m.Ref] = true
			x := rlcore.Running{Job: v.in.rlJob(j), Shares: m.Shares, MemLimitMiB: float64(m.MemMiB)}
			x.NoShare = x.NoShare || m.Tried
			app := v.in.Apps[m.Ref]
			x.Profile = app.On(v.gpus[at].model)
			if len(v.nodes[g.Node]) > 1 {
				v.onWay[g.Node] = append(v.onWay[g.Node], floater{Running: x, group: g.ID, gpu: at})
			}
			card := &v.State.GPUs[at]
			card.Running = append(slices.Clip(card.Running), x)
			v.take(v.nodes[g.Node], x.CPUs, x.HostMemMiB)
		}
	}
}

// take takes cores and memory of the node that the GPUs are in.
func (v *view) take(gpus []int, cpus int, memMiB float64) {
	for _, g := range gpus {
		card := &v.State.GPUs[g] // below 0 would mean that they aren't counted
		card.FreeCPUs, card.FreeHostMemMiB = max(0, card.FreeCPUs-cpus), max(0, card.FreeHostMemMiB-memMiB)
	}
}

// addPending puts a pending job into the queue, behind the gate, or back to Slurm. A foreign job is in the queue, too:
// it waits for the same GPUs.
func (v *view) addPending(j *job.Job, managed *job.PartitionFilter) {
	in := v.in
	behind := release.Behind(in.Snap.Gates, j)
	switch why := in.Tracker.Unmanaged[j.Ref]; {
	case in.Touched[j.Ref]:
	case why != "" && behind:
		v.handBack(j, job.UnfitLeft, ": "+why)
	case why != "":
		v.addForeign(j)
	case j.Request.Kind == job.SharedGPU:
		v.putBehindGate(j, managed)
	case v.turns(j.Ref) && v.seats[j.Ref].Member.State != job.MemberRestoring:
		v.addForeign(j)
	case v.seats[j.Ref].Group != nil: // about to start
	case !in.WaitsForBridge(j), in.Shadow && j.Request.Kind == job.WholeGPU && in.unadoptable(j) != "":
		v.addForeign(j)
	default:
		if why := in.unmanageable(j, managed); why != "" {
			v.handBack(j, why, "")
			return
		}
		if _, identified := in.Apps[j.Ref]; !identified || in.WaitsBesides(j) != "" {
			return
		}
		rj := in.rlJob(j)
		if v.divideHost && j.Note.Defaults.Has(j) {
			if rj.HostMemDivides = j.Note.Defaults.MemMiB > 0; j.Note.Defaults.CPUs > 0 {
				rj.CPUGrain = v.grain
			}
		}
		if j.Request.Kind == job.WholeGPU {
			switch by, waits := v.quota.Pass(j); {
			case waits:
				v.limited[j.Ref], v.withheld = by, append(v.withheld, rj)
				return
			case by != "":
				v.handBack(j, job.UnfitGPULimit, ": "+by)
				return
			}
		}
		if by := v.budget.Pass(j.Ref); by != nil {
			v.limited[j.Ref], v.withheld = by.Text(in.Snap.At), append(v.withheld, rj)
			return
		}
		use := v.mayUse(j, v.closedFor(j), typed(j))
		rj.GPUs = use.gpus
		use.know(&rj, in.Apps[j.Ref])
		v.State.Pending = append(v.State.Pending, rj)
	}
}

// closedFor lists the nodes that a limit closes to a job for now, separated by commas.
func (v *view) closedFor(j *job.Job) string {
	var closed []string
	for _, node := range v.budget.Shut() {
		if by := v.budget.ClosedTo(j.Ref, node); by != nil {
			closed = append(closed, node)
			v.closedTo[j.Ref] = by.Text(v.in.Snap.At)
		}
	}
	return strings.Join(closed, ",")
}

// ignoredAfterS is how long Slurm leaves a foreign job pending next to enough idle GPUs, s, before the bridge concludes
// that it waits for something else.
const ignoredAfterS = 60

// addForeign adds a job that waits for GPUs without the bridge, or will once this plan has ungated it: Slurm starts it
// before a group of this plan. The queue leaves out jobs that Slurm keeps for other reasons, and requests for a part of a
// GPU's shares, which start on any GPU with enough.
func (v *view) addForeign(j *job.Job) {
	in := v.in
	part := j.Request.Kind == job.Shares && j.Request.Count < job.Units && !v.turns(j.Ref)
	waits := len(j.Dependency.List) > 0 || !waitsForNodes(j.Reason)
	if v.unfit[j.Ref] != "" && len(j.Dependency.List) > 0 {
		waits = !in.waitsOnly(j)
	}
	if j.Request.Kind == job.NoGPU || part || waits || in.notYet(j) != "" {
		return
	}
	rj := in.rlJob(j)
	use := v.mayUse(j, "", "")
	if of := v.ofType(j, use.gpus); of.gpus.Len(len(v.gpus)) > 0 && of.gpus != nil {
		use.gpus, use.models = of.gpus, of.models
	}
	use.know(&rj, in.Apps[j.Ref])
	rj.GPUs, rj.Foreign, rj.Nodes, rj.PerNode = use.gpus, true, max(1, j.NumNodes), 1
	switch {
	case j.Exclusive:
		rj.PerNode = use.most
	case j.Request.Kind == job.WholeGPU:
		rj.PerNode = min(max(1, j.Request.Count), use.most)
	}
	if why := in.notAdopted(j); why != "" {
		v.notAdopted[j.Ref] = why
	}
	w := in.Tracker.Waits[j.Ref]
	ignored := w != nil && w.UnstartedS >= ignoredAfterS
	if !ignored { // an ignored job isn't watched any more
		v.foreign++
	}
	if v.foreign <= mostWatched && v.couldStart(&rj) {
		if v.unstarted[j.Ref] = true; ignored {
			return
		}
	}
	v.State.Pending = append(v.State.Pending, rj)
}

// waitsForNodes reports whether a Reason is, or may hide, a wait for GPUs.
func waitsForNodes(reason string) bool {
	switch reason {
	case "", "None", "Priority", "Resources":
		return true
	}
	return limit.PassedOver(reason)
}

// mostWatched is the number of foreign jobs, by priority, that the bridge watches next to idle GPUs.
const mostWatched = 32

// ofType returns those of the GPUs that a foreign job may use that have the type it asks for; none = any type will do, or
// the job takes whole nodes. Jobs with the same demands share one set.
func (v *view) ofType(j *job.Job, gpus *rlcore.GPUSet) (of usable) {
	typ := gpuType(j)
	if typ == "" || j.Exclusive {
		return of
	}
	key := [5]string{j.Partition, j.ReqNodes, j.ExcNodes, "", "card " + typ}
	of, known := v.usable[key]
	if !known {
		var list []int
		for i, r := range v.gpus {
			if gpus.Has(i) && r.node.Card(r.index).Type == typ {
				list, of.models = append(list, i), append(of.models, r.model)
			}
		}
		of.gpus, of.models = rlcore.NewGPUSet(list...), of.models[:min(1, len(of.models))]
		v.usable[key] = of
	}
	return of
}

// know sets what is known of a job's application on the GPUs that it may use.
func (u usable) know(j *rlcore.Job, app job.App) {
	if len(u.models) < 2 {
		model := ""
		if len(u.models) == 1 {
			model = u.models[0]
		}
		j.Profile = app.On(model)
		return
	}
	j.Profile, j.Cards = app.Profile, &rlcore.Cards{}
	for _, model := range u.models {
		(*j.Cards)[model] = app.On(model)
	}
}

// couldStart reports whether enough GPUs are idle for a foreign job.
func (v *view) couldStart(j *rlcore.Job) bool {
	nodes := 0
	for _, gpus := range v.nodes {
		idle := 0
		for _, g := range gpus {
			if len(v.State.GPUs[g].Running) == 0 && j.MayUse(g) {
				idle++
			}
		}
		if idle >= j.PerNode {
			nodes++
		}
	}
	return nodes >= j.Nodes
}

// handBack ungates a job that this plan can't group. Slurm starts it before the groups of this plan.
func (v *view) handBack(j *job.Job, why job.Unfit, more string) {
	v.letGo(j, why, more)
	v.addForeign(j)
}

// letGo ungates a job; more is added to the reason.
func (v *view) letGo(j *job.Job, why job.Unfit, more string) {
	if v.unfit[j.Ref] != "" {
		return
	}
	v.unfit[j.Ref] = why
	if !v.in.Shadow {
		v.ungate = append(v.ungate, release.Ungate(j, v.in.Snap.Gates, why.String()+more, v.in.Snap.At))
	}
}

// putBehindGate gates a job with a request that is still gpu:shared. Without a gate the job gets a GPU of its own.
func (v *view) putBehindGate(j *job.Job, managed *job.PartitionFilter) {
	in := v.in
	if in.Shadow || j.Dependency.Or || j.HetID != 0 || !managed.Covers(j.Partition) {
		return
	}
	i := slices.IndexFunc(in.Snap.Nodes, func(n job.Node) bool { return n.Sharing != "" })
	if i < 0 {
		return
	}
	v.gate = append(v.gate, release.Gate(j, in.Gate, in.Snap.Nodes[i].Sharing))
}

// mayUse returns the GPUs that a pending job may use, without closed nodes, and of one type if one is given. Jobs with the same
// demands share one list.
func (v *view) mayUse(j *job.Job, closed, typ string) usable {
	key := [5]string{j.Partition, j.ReqNodes, j.ExcNodes, closed, typ}
	out, known := v.usable[key]
	if known {
		return out
	}
	only, exclude, shut := text.ExpandHosts(j.ReqNodes), text.ExpandHosts(j.ExcNodes), strings.Split(closed, ",")
	out = usable{most: 1}
	var list []int
	on := map[*job.Node]int{}
	for i, r := range v.gpus {
		name := r.node.Name
		if (j.ReqNodes == "" || only[name]) && !exclude[name] && !slices.Contains(shut, name) && r.node.Serves(j.Partitions()) && hasOnly(r.node, typ) {
			list = append(list, i)
			on[r.node]++
			out.most = max(out.most, on[r.node])
			if !slices.Contains(out.models, r.model) {
				out.models = append(out.models, r.model)
			}
		}
	}
	if len(list) < len(v.gpus) {
		out.gpus = rlcore.NewGPUSet(list...)
	}
	v.usable[key] = out
	return out
}

// ByPriority is Slurm's order: highest priority first, of equals the one submitted first.
func ByPriority(x, y *job.Job) int {
	return cmp.Or(-cmp.Compare(x.Priority, y.Priority), x.Submit.Compare(y.Submit),
		cmp.Compare(x.ID, y.ID), cmp.Compare(len(x.Ref), len(y.Ref)), cmp.Compare(x.Ref, y.Ref))
}

// dequeue removes the jobs at the given ascending indexes from the State's queue. They are near its front, so that the
// jobs before them move, in the queue's own storage.
func (v *view) dequeue(at []int) {
	for k, i := range at {
		copy(v.State.Pending[k+1:i+1], v.State.Pending[k:i])
	}
	v.State.Pending = v.State.Pending[len(at):]
}

// predict predicts the slowdowns of all members of a GPU; nil where a profile is unknown.
func predict(p rlcore.Predictor, spec *rlcore.GPUSpec, members []*rlcore.Profile) []rlcore.Prediction {
	if p == nil || slices.Contains(members, nil) {
		return nil
	}
	out := make([]rlcore.Prediction, len(members))
	if len(members) == 1 {
		out[0].Slowdown = 1
		return out
	}
	p.Predict(out, spec, members)
	return out
}
