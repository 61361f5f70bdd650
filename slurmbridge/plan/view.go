package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/extend"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// clusterView is what was polled: the GPUs with shares, and what runs or is about to start there. No decision changes
// it. A GPU is its index in state.GPUs, which has nodes in the order in which Slurm fills them, by Weight; the GPUs of
// one type of a node follow each other in gres.conf's order.
type clusterView struct {
	in    *Input
	state rlcore.State // without a queue
	gpus  []gpuRef
	index map[job.GPUAddr]int // the other way round
	nodes map[string][]int    // the GPUs of a node
	// pools are the GPUs of a node among which Slurm chooses by numbers of shares: all of them, or one type where requests
	// name types.
	pools      map[gpuPool][]int
	jobs       map[string]*job.Job
	membership map[string]tracker.Membership
	// pending holds the jobs that wait, in Slurm's order.
	pending []*job.Job
	// starting holds the released jobs that are still pending. They count as running where they were sent.
	starting map[string]bool
	// closed holds the GPUs to which nothing is sent for now: members of a group there are being restored and may still
	// start, or the MPS server failed.
	closed map[int]bool
	// unsettled holds the nodes where a job runs on GPUs that aren't known: nothing more is released there.
	unsettled map[string]bool
	users     map[string][]string    // by node: the users with jobs that are there or about to start there
	present   [][]rlcore.Running     // by GPU: the jobs that run there
	owned     bool                   // some nodes are one user's at a time
	onWay     map[string][]placement // by node with several GPUs: the released jobs, in the order of their groups
	grain     int                    // of how many CPUs at a time Slurm allocates, the most on any node

	// What many jobs have in common, found once: by their demands the GPUs that they may use and whether they may have one
	// without shares, by partition a node of each kind that allocates several CPUs at a time, and the nodes that other
	// users keep a user's jobs off.
	reaches  map[demand]reach
	fits     map[fit]reach
	unshared map[demand]bool
	grains   map[string][]*job.Node
	others   map[tenant][]string

	sizes map[string]int // by type: see size
	mig   bool           // some GPUs are MIG instances
}

// gpuRef is a GPU of the State in the poll.
type gpuRef struct {
	node     *job.Node
	index    int    // on the node, as Slurm counts
	typ      string // by which its shares are asked for, "" = none
	instance bool   // of MIG
}

// gpuPool names GPUs of a node; typ as in gpuRef.
type gpuPool struct{ node, typ string }

// pool is the one that the GPU is in.
func (r gpuRef) pool() gpuPool { return gpuPool{r.node.Name, r.typ} }

// placement is a job on a GPU, from its draft to the change that releases it: it runs there, is on its way there, or
// starts there by this plan.
type placement struct {
	rlcore.Running       // as it will run; Shares 0 = to be chosen, least of them at the least
	gpu            int   // that it is meant for
	group          int64 // its number, below 0 of one of this plan; 0 = it runs, or is foreign and has its turn
	least          int
	tried          bool // with a part of the GPU's memory; see tryMiB
	first          bool // run under MPS; see firstUnderMPS
}

// onTrial reports whether the run is to show what its application needs or can do: no job joins it.
func (p *placement) onTrial() bool { return p.tried || p.first }

// once returns a map's value, made if there is none.
func once[K comparable, V any](in map[K]V, key K, make func() V) V {
	v, known := in[key]
	if !known {
		v = make()
		in[key] = v
	}
	return v
}

func newView(in *Input) *clusterView {
	v := &clusterView{
		in: in, grain: 1, membership: in.Tracker.Memberships(),
		index: map[job.GPUAddr]int{}, nodes: map[string][]int{}, pools: map[gpuPool][]int{},
		jobs: make(map[string]*job.Job, len(in.Snap.Jobs)), users: map[string][]string{}, others: map[tenant][]string{},
		sizes:    map[string]int{},
		starting: map[string]bool{}, closed: map[int]bool{}, unsettled: map[string]bool{}, onWay: map[string][]placement{},
		reaches: map[demand]reach{}, fits: map[fit]reach{}, unshared: map[demand]bool{}, grains: map[string][]*job.Node{},
	}
	v.state.NowS = tracker.Seconds(in.Snap.At)
	nodes := make([]*job.Node, len(in.Snap.Nodes))
	for i := range in.Snap.Nodes {
		nodes[i] = &in.Snap.Nodes[i]
	}
	slices.SortStableFunc(nodes, func(a, b *job.Node) int { return cmp.Compare(a.Weight, b.Weight) })
	for _, n := range nodes {
		v.addNode(n)
		v.grain = max(v.grain, n.CPUsPerAlloc)
	}
	for i := range in.Snap.Jobs {
		j := &in.Snap.Jobs[i]
		if v.jobs[j.Ref] = j; j.State == job.Pending {
			v.pending = append(v.pending, j)
			continue
		}
		v.addRunning(j)
	}
	slices.SortFunc(v.pending, ByPriority)
	for g := range v.state.GPUs {
		v.present = append(v.present, slices.Clip(v.state.GPUs[g].Running))
	}
	for _, id := range in.Tracker.GroupIDs() {
		v.addGroup(in.Tracker.Groups[id])
	}
	for addr := range in.Tracker.Faulted {
		if g, ok := v.index[addr]; ok && len(v.state.GPUs[g].Running) > 0 {
			v.closed[g] = true
		}
	}
	return v
}

// addNode adds the GPUs of a node that is in service.
func (v *clusterView) addNode(node *job.Node) {
	if !node.Up || node.Reserved || node.Units == 0 {
		return
	}
	typed := node.Typed()
	oneUser := slices.ContainsFunc(node.Partitions, func(name string) bool { return v.in.Snap.OneUser[name] })
	v.owned = v.owned || oneUser || node.Owner != ""
	for _, i := range v.filled(node) {
		c := node.GPU(i)
		if c.Units < job.Units {
			continue // without shares: no business of the bridge's
		}
		addr := job.GPUAddr{Node: node.Name, GPU: i}
		ref := gpuRef{node: node, index: i, instance: v.size(c.Type) != noInstance}
		spec := v.in.Specs.Of(c.Type, v.in.Models[addr])
		spec.MemLimits = spec.MemLimits && !v.in.NoLimits[node.Name]
		spec.SameUser = spec.SameUser || oneUser
		if typed {
			ref.typ = c.Type
		}
		v.mig = v.mig || ref.instance
		g := len(v.gpus)
		v.gpus = append(v.gpus, ref)
		v.index[addr] = g
		v.nodes[node.Name] = append(v.nodes[node.Name], g)
		v.pools[ref.pool()] = append(v.pools[ref.pool()], g)
		v.state.GPUs = append(v.state.GPUs, rlcore.GPU{
			ID: fmt.Sprintf("%s:%d", node.Name, i), Node: node.Name, Spec: spec, Model: v.in.Models[addr],
			FreeCPUs: node.CPUs - node.CPUsAlloc, FreeHostMemMiB: node.MemMiB - node.MemAlloc,
		})
	}
}

// filled lists a node's GPUs in the order in which jobs are to fill them: MIG instances before whole GPUs, the smallest
// first, and otherwise as Slurm counts them.
func (v *clusterView) filled(node *job.Node) []int {
	out := make([]int, node.GPUs)
	for i := range out {
		out[i] = i
	}
	size := func(i int) int { return v.size(node.GPU(i).Type) }
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(size(a), size(b)) })
	return out
}

// noInstance is the size of what is no MIG instance, larger than any of them.
const noInstance = math.MaxInt

// size is how much memory MIG instances of a type have, GB; noInstance where the type is no instance's.
func (v *clusterView) size(typ string) int {
	return once(v.sizes, typ, func() int {
		of, instance := job.InstanceOf(typ)
		if !instance {
			return noInstance
		}
		return of.GB
	})
}

// addRunning puts a job on the GPUs that it holds, of nodes in service.
func (v *clusterView) addRunning(j *job.Job) {
	if j.NumNodes < 2 {
		v.addRunningOn(j, j.Nodes, v.nodes[j.Nodes])
		return
	}
	for host := range text.ExpandHosts(j.Nodes) {
		v.addRunningOn(j, host, v.nodes[host])
	}
}

func (v *clusterView) addRunningOn(j *job.Job, node string, gpus []int) {
	v.users[node] = append(v.users[node], j.User)
	if j.State == job.Completing {
		// Its processes have ended. By the time Slurm looks at what is released now, its shares and cores are free: until its
		// epilog has ended nothing starts on the node. How many cores it has of each of several nodes isn't known.
		if j.Nodes == node {
			takeHost(v.state.GPUs, gpus, -j.CPUs, -j.HostMemMiB)
		}
		return
	}
	where := gpus
	if has, known := j.GPUsOn(node); known {
		where = nil
		for _, i := range has {
			if g, ok := v.index[job.GPUAddr{Node: node, GPU: i}]; ok {
				where = append(where, g)
			}
		}
	} else if len(gpus) > 1 && j.Request.Count < len(gpus) {
		v.unsettled[node] = true
	}
	r := v.running(j, j.Request.Kind == job.Shares && len(where) == 1)
	for _, g := range where {
		v.state.GPUs[g].Running = append(v.state.GPUs[g].Running, r)
	}
}

// running converts a running job. shares: it holds shares of one GPU.
func (v *clusterView) running(j *job.Job, shares bool) rlcore.Running {
	r := rlcore.Running{Job: v.convert(j), Shares: j.Request.Count}
	if m := v.membership[j.Ref].Member; m != nil {
		r.MemLimitMiB = float64(m.MemMiB)
		r.FirstRun = m.Tried || m.First
		r.NoShare = r.NoShare || r.FirstRun
	}
	r.Profile = held(v.in.Profile(j), r.MemLimitMiB)
	r.Whole = !shares || j.Request.Count >= job.Units && r.Profile == nil
	r.ElapsedS = max(0, v.in.Snap.At.Sub(j.Start).Seconds())
	r.DoneS = r.ElapsedS
	if d := v.in.Tracker.Done[j.Ref]; d != nil {
		r.DoneS = d.DoneS
	}
	if r.Profile != nil {
		r.DoneS = r.Profile.Believed(r.DoneS)
	}
	return r
}

// addGroup adds the pending members of a group.
func (v *clusterView) addGroup(g *job.Group) {
	if g.Kind == job.Turn {
		return // its job is in the queue; see queue.add
	}
	at, inService := v.index[g.Addr()]
	for i := range g.Members {
		m := &g.Members[i]
		j := v.jobs[m.Ref]
		if m.State.Final() || j == nil || j.State != job.Pending {
			continue
		}
		if m.State == job.MemberRestoring { // it may start on any GPU of the node
			for _, at := range v.nodes[g.Node] {
				v.closed[at] = true
			}
			continue
		}
		v.users[g.Node] = append(v.users[g.Node], j.User)
		v.starting[m.Ref] = true
		if !inService {
			continue
		}
		card := &v.state.GPUs[at]
		app := v.in.Apps[m.Ref]
		x := rlcore.Running{Job: v.convert(j), Shares: m.Shares, MemLimitMiB: float64(m.MemMiB)}
		x.Profile = held(app.On(card.Model), x.MemLimitMiB)
		x.FirstRun = m.Tried || m.First
		x.NoShare = x.NoShare || x.FirstRun
		if len(v.nodes[g.Node]) > 1 {
			v.onWay[g.Node] = append(v.onWay[g.Node], placement{Running: x, group: g.ID, gpu: at})
		}
		card.Running = append(slices.Clip(card.Running), x)
		takeHost(v.state.GPUs, v.nodes[g.Node], x.CPUs, x.HostMemMiB)
	}
}

// held is a running job's profile; nil if it states the memory that the owner asked for and nothing holds the job to
// it.
func held(p *rlcore.Profile, limitMiB float64) *rlcore.Profile {
	if p != nil && p.Asked && limitMiB == 0 {
		return nil
	}
	return p
}

// takeHost takes cores and memory of a node from its GPUs, by their indexes.
func takeHost(gpus []rlcore.GPU, of []int, cpus int, memMiB float64) {
	for _, g := range of { // below 0 would mean that they aren't counted
		gpus[g].FreeCPUs = max(0, gpus[g].FreeCPUs-cpus)
		gpus[g].FreeHostMemMiB = max(0, gpus[g].FreeHostMemMiB-memMiB)
	}
}

// waitsForTurn reports whether a job was released to keep its turn.
func (v *clusterView) waitsForTurn(ref string) bool {
	g := v.membership[ref].Group
	return g != nil && g.Kind == job.Turn
}

// convert converts a job to the decider's type.
func (v *clusterView) convert(j *job.Job) rlcore.Job {
	t := v.in.Terms[j.Ref]
	out := rlcore.Job{
		ID: j.Ref, User: j.User, Profile: v.in.Apps[j.Ref].Profile,
		SubmitS: tracker.Seconds(j.Submit), LimitS: j.TimeLimit.Seconds(),
		Priority: float64(j.Rank()), MaxSlowdown: t.MaxSlowdown,
		NoShare: t.NoShare || v.in.standing(j).NoMPS,
		CPUs:    j.CPUs, HostMemMiB: j.HostMemMiB, ArrayOnly: t.ArrayOnly,
		Rank: v.in.Snap.Ranks.Of(j),
	}
	if j.State == job.Pending { // for running jobs Slurm reports the allocation
		out.CPUs, out.HostMemMiB = v.host(j)
	}
	// An adopted job allows what its rule says, and as a member of a group what the rule said then.
	if m := v.membership[j.Ref].Member; release.Adopted(m) && j.Request.Kind == job.Shares {
		out.MaxSlowdown = m.Contract
		out.Grace = m.Grace
	} else if r := v.in.Rule(j); r != nil {
		out.MaxSlowdown = cmp.Or(out.MaxSlowdown, r.MaxSlowdown)
		out.Grace = r.Grace
	}
	if !j.Deadline.IsZero() {
		out.DeadlineS = tracker.Seconds(j.Deadline)
	}
	out.LimitFixed = j.TimeLimit > 0 && v.in.limitFixed(j, t.MaxSlowdown)
	if j.ArrayID != 0 {
		out.Array = strconv.FormatInt(j.ArrayID, 10)
	}
	if w := v.in.Tracker.Waits[j.Ref]; w != nil {
		out.DelayedS = w.DelayedS
	}
	return out
}

// host returns the CPUs and the memory that Slurm allocates to a pending job, the most on any node that the job may
// use.
func (v *clusterView) host(j *job.Job) (cpus int, memMiB float64) {
	kinds := once(v.grains, j.Partition, func() (kinds []*job.Node) {
		for i := range v.in.Snap.Nodes {
			n := &v.in.Snap.Nodes[i]
			alike := func(o *job.Node) bool {
				return n.CPUsPerAlloc == o.CPUsPerAlloc && n.TaskPerCore == o.TaskPerCore && n.CPUs == o.CPUs
			}
			if n.CPUsPerAlloc > 1 && !slices.ContainsFunc(kinds, alike) && n.Serves(j.Partitions()) {
				kinds = append(kinds, n)
			}
		}
		return kinds
	})
	cpus, memMiB = j.CPUs, j.HostMemMiB
	for _, n := range kinds {
		if n.CPUs >= j.CPUs {
			cpus = max(cpus, n.Allocates(j.CPUs))
			memMiB = max(memMiB, n.Takes(j))
		}
	}
	return cpus, memMiB
}

// mostExtended is the slowdown for which a limit must leave room where no contract is set.
const mostExtended = rlcore.DefaultMaxSlowdown

// limitFixed reports whether the time that sharing costs can't be given back: MaxTime or a reservation leaves no room,
// or the owner has lowered the limit.
func (in *Input) limitFixed(j *job.Job, contract float64) bool {
	if in.Bounds == nil {
		return true
	}
	own, runS := j.TimeLimit, 0.0
	if l := in.Tracker.Loans[j.Ref]; l != nil {
		if l.Closed {
			return true
		}
		own = min(own, l.Own)
	}
	if !j.Start.IsZero() {
		runS = in.Snap.At.Sub(j.Start).Seconds()
	}
	needs := time.Duration(float64(own) * cmp.Or(contract, mostExtended))
	return extend.Latest(j, in.Snap.At, runS, in.Bounds) < needs.Truncate(time.Minute)
}

// ByPriority is Slurm's order: highest rank first, of equals the one submitted first. Tasks of an array come in the
// order of their own numbers, whichever of them are jobs with numbers already (sort_job_queue2, 22.05 to 26.05).
func ByPriority(x, y *job.Job) int {
	return cmp.Or(-cmp.Compare(x.Rank(), y.Rank()), x.Submit.Compare(y.Submit),
		cmp.Compare(cmp.Or(x.ArrayID, x.ID), cmp.Or(y.ArrayID, y.ID)),
		cmp.Compare(len(x.Ref), len(y.Ref)), cmp.Compare(x.Ref, y.Ref))
}
