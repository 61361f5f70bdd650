package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/extend"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// poll is what was polled: the GPUs with shares, and what runs or is about to start there. No decision changes it. A
// GPU is its index in State.GPUs, which has nodes in the order in which Slurm fills them, by Weight; those of a type of
// a node follow each other in gres.conf's order.
type poll struct {
	*Input
	State rlcore.State // without a queue
	gpus  []gpuRef
	index map[job.GPUAddr]int // the other way round
	nodes map[string][]int    // the GPUs of a node
	// shelves are the GPUs of a node among which Slurm chooses by numbers: all, or those of a type where shares are asked
	// for by type.
	shelves map[shelf][]int
	jobs    map[string]*job.Job
	seats   map[string]tracker.Seat
	// pending holds the jobs that wait, in Slurm's order.
	pending []*job.Job
	// starting holds the released jobs that are still pending. They count as running where they were sent.
	starting map[string]bool
	// closed holds the GPUs to which nothing is sent for now: members of a group there are being restored and may still
	// start, or the MPS server failed.
	closed map[int]bool
	// unsettled holds the nodes where a job runs on GPUs that aren't known: nothing more is released there.
	unsettled map[string]bool
	users     map[string][]string    // by node: whose jobs are there, or about to start there
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

// shelf names GPUs of a node; typ as in gpuRef.
type shelf struct{ node, typ string }

// shelf is the one that the GPU is on.
func (r gpuRef) shelf() shelf { return shelf{r.node.Name, r.typ} }

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

// once returns a map's value, made if there is none.
func once[K comparable, V any](in map[K]V, key K, make func() V) V {
	v, known := in[key]
	if !known {
		v = make()
		in[key] = v
	}
	return v
}

func newPoll(in *Input) *poll {
	p := &poll{
		Input: in, grain: 1, seats: in.Tracker.Seats(),
		index: map[job.GPUAddr]int{}, nodes: map[string][]int{}, shelves: map[shelf][]int{},
		jobs: make(map[string]*job.Job, len(in.Snap.Jobs)), users: map[string][]string{}, others: map[tenant][]string{},
		sizes:    map[string]int{},
		starting: map[string]bool{}, closed: map[int]bool{}, unsettled: map[string]bool{}, onWay: map[string][]placement{},
		reaches: map[demand]reach{}, fits: map[fit]reach{}, unshared: map[demand]bool{}, grains: map[string][]*job.Node{},
	}
	p.State.NowS = tracker.Seconds(in.Snap.At)
	nodes := make([]*job.Node, len(in.Snap.Nodes))
	for i := range in.Snap.Nodes {
		nodes[i] = &in.Snap.Nodes[i]
	}
	slices.SortStableFunc(nodes, func(a, b *job.Node) int { return cmp.Compare(a.Weight, b.Weight) })
	for _, n := range nodes {
		p.addNode(n)
		p.grain = max(p.grain, n.CPUsPerAlloc)
	}
	for i := range in.Snap.Jobs {
		j := &in.Snap.Jobs[i]
		if p.jobs[j.Ref] = j; j.State == job.Pending {
			p.pending = append(p.pending, j)
			continue
		}
		p.addRunning(j)
	}
	slices.SortFunc(p.pending, ByPriority)
	for g := range p.State.GPUs {
		p.present = append(p.present, slices.Clip(p.State.GPUs[g].Running))
	}
	for _, id := range in.Tracker.GroupIDs() {
		p.addGroup(in.Tracker.Groups[id])
	}
	for addr := range in.Tracker.Faulted {
		if g, ok := p.index[addr]; ok && len(p.State.GPUs[g].Running) > 0 {
			p.closed[g] = true
		}
	}
	return p
}

// addNode adds the GPUs of a node that is in service.
func (p *poll) addNode(node *job.Node) {
	if !node.Up || node.Reserved || node.Units == 0 {
		return
	}
	typed := node.Typed()
	oneUser := slices.ContainsFunc(node.Partitions, func(name string) bool { return p.Snap.OneUser[name] })
	p.owned = p.owned || oneUser || node.Owner != ""
	for _, i := range p.filled(node) {
		c, addr := node.Card(i), job.GPUAddr{Node: node.Name, GPU: i}
		if c.Units < job.Units {
			continue // without shares: no business of the bridge's
		}
		g, spec, ref := len(p.gpus), p.Card.Of(c.Type, p.Models[addr]), gpuRef{node: node, index: i}
		spec.MemLimits = spec.MemLimits && !p.NoLimits[node.Name]
		spec.SameUser = spec.SameUser || oneUser
		if typed {
			ref.typ = c.Type
		}
		ref.instance = p.size(c.Type) != noInstance
		p.mig = p.mig || ref.instance
		p.index[addr], p.gpus = g, append(p.gpus, ref)
		p.nodes[node.Name], p.shelves[ref.shelf()] = append(p.nodes[node.Name], g), append(p.shelves[ref.shelf()], g)
		p.State.GPUs = append(p.State.GPUs, rlcore.GPU{
			ID: fmt.Sprintf("%s:%d", node.Name, i), Node: node.Name, Spec: spec, Card: p.Models[addr],
			FreeCPUs: node.CPUs - node.CPUsAlloc, FreeHostMemMiB: node.MemMiB - node.MemAlloc,
		})
	}
}

// filled lists a node's GPUs in the order in which jobs are to fill them: MIG instances before whole GPUs, the smallest
// first, and otherwise as Slurm counts them.
func (p *poll) filled(node *job.Node) []int {
	out := make([]int, node.GPUs)
	for i := range out {
		out[i] = i
	}
	size := func(i int) int { return p.size(node.Card(i).Type) }
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(size(a), size(b)) })
	return out
}

// noInstance is the size of what is no MIG instance, larger than any of them.
const noInstance = math.MaxInt

// size is how much memory MIG instances of a type have, GB; noInstance where the type is no instance's.
func (p *poll) size(typ string) int {
	return once(p.sizes, typ, func() int {
		of, instance := job.InstanceOf(typ)
		if !instance {
			return noInstance
		}
		return of.GB
	})
}

// addRunning puts a job on the GPUs that it holds, of nodes in service.
func (p *poll) addRunning(j *job.Job) {
	if j.NumNodes < 2 {
		p.addRunningOn(j, j.Nodes, p.nodes[j.Nodes])
		return
	}
	for host := range text.ExpandHosts(j.Nodes) {
		p.addRunningOn(j, host, p.nodes[host])
	}
}

func (p *poll) addRunningOn(j *job.Job, node string, gpus []int) {
	p.users[node] = append(p.users[node], j.User)
	if j.State == job.Completing {
		// Its processes have ended. By the time Slurm looks at what is released now, its shares and cores are free: until its
		// epilog has ended nothing starts on the node. How many cores it has of each of several nodes isn't known.
		if j.Nodes == node {
			p.take(gpus, -j.CPUs, -j.HostMemMiB)
		}
		return
	}
	where := gpus
	if has, known := j.GPUsOn(node); known {
		where = nil
		for _, i := range has {
			if g, ok := p.index[job.GPUAddr{Node: node, GPU: i}]; ok {
				where = append(where, g)
			}
		}
	} else if len(gpus) > 1 && j.Request.Count < len(gpus) {
		p.unsettled[node] = true
	}
	r := p.running(j, j.Request.Kind == job.Shares && len(where) == 1)
	for _, g := range where {
		p.State.GPUs[g].Running = append(p.State.GPUs[g].Running, r)
	}
}

// running converts a running job. shares: it holds shares of one GPU.
func (p *poll) running(j *job.Job, shares bool) rlcore.Running {
	r := rlcore.Running{Job: p.convert(j), Shares: j.Request.Count}
	if m := p.seats[j.Ref].Member; m != nil {
		r.MemLimitMiB, r.FirstRun = float64(m.MemMiB), m.Tried || m.First
		r.NoShare = r.NoShare || r.FirstRun
	}
	r.Profile = held(p.Profile(j), r.MemLimitMiB)
	r.Whole = !shares || j.Request.Count >= job.Units && r.Profile == nil
	r.ElapsedS = max(0, p.Snap.At.Sub(j.Start).Seconds())
	r.DoneS = r.ElapsedS
	if d := p.Tracker.Done[j.Ref]; d != nil {
		r.DoneS = d.DoneS
	}
	if r.Profile != nil {
		r.DoneS = r.Profile.Believed(r.DoneS)
	}
	return r
}

// addGroup adds the pending members of a group.
func (p *poll) addGroup(g *job.Group) {
	if g.Kind == job.Turn {
		return // its job is in the queue; see queue.add
	}
	at, inService := p.index[g.Addr()]
	for i := range g.Members {
		m := &g.Members[i]
		j := p.jobs[m.Ref]
		if m.State.Final() || j == nil || j.State != job.Pending {
			continue
		}
		if m.State == job.MemberRestoring { // it may start on any GPU of the node
			for _, at := range p.nodes[g.Node] {
				p.closed[at] = true
			}
			continue
		}
		p.users[g.Node] = append(p.users[g.Node], j.User)
		if p.starting[m.Ref] = true; !inService {
			continue
		}
		card, app := &p.State.GPUs[at], p.Apps[m.Ref]
		x := rlcore.Running{Job: p.convert(j), Shares: m.Shares, MemLimitMiB: float64(m.MemMiB)}
		x.Profile, x.FirstRun = held(app.On(card.Card), x.MemLimitMiB), m.Tried || m.First
		x.NoShare = x.NoShare || x.FirstRun
		if len(p.nodes[g.Node]) > 1 {
			p.onWay[g.Node] = append(p.onWay[g.Node], placement{Running: x, group: g.ID, gpu: at})
		}
		card.Running = append(slices.Clip(card.Running), x)
		p.take(p.nodes[g.Node], x.CPUs, x.HostMemMiB)
	}
}

// held is a running job's profile, nil if it goes by what the job's owner says of its memory and nothing holds the job
// to that.
func held(p *rlcore.Profile, limitMiB float64) *rlcore.Profile {
	if p != nil && p.Asked && limitMiB == 0 {
		return nil
	}
	return p
}

// take takes cores and memory of the node that the GPUs are in.
func (p *poll) take(gpus []int, cpus int, memMiB float64) {
	for _, g := range gpus {
		card := &p.State.GPUs[g] // below 0 would mean that they aren't counted
		card.FreeCPUs, card.FreeHostMemMiB = max(0, card.FreeCPUs-cpus), max(0, card.FreeHostMemMiB-memMiB)
	}
}

// oneUser reports whether a job's partitions give a node to one user at a time.
func (p *poll) oneUser(j *job.Job) bool {
	if j.Exclusive != "" && j.Exclusive != job.OneUser {
		return false
	}
	return !slices.ContainsFunc(j.Partitions(), func(name string) bool { return !p.Snap.OneUser[name] })
}

// tenant is a user whose jobs are to be on nodes with no other user's, or, not alone, on nodes that no other user has.
type tenant struct {
	user  string
	alone bool
}

// othersHave returns the nodes that other users keep a job off.
func (p *poll) othersHave(j *job.Job) []string {
	t := tenant{j.User, p.oneUser(j)}
	if !t.alone && !p.owned {
		return nil
	}
	return once(p.others, t, func() (out []string) {
		others := func(user string) bool { return user != t.user }
		for name, gpus := range p.nodes {
			owner := p.gpus[gpus[0]].node.Owner
			if owner != "" && others(owner) || t.alone && slices.ContainsFunc(p.users[name], others) {
				out = append(out, name)
			}
		}
		slices.Sort(out)
		return out
	})
}

// keepsTurn reports whether a job was released to keep its turn.
func (p *poll) keepsTurn(ref string) bool {
	seat := p.seats[ref]
	return seat.Group != nil && seat.Group.Kind == job.Turn
}

// demand is which GPUs a job asks for. Jobs of one demand share one set of GPUs.
type demand struct{ partition, nodes, excluded, closed, typ string }

// reach are the GPUs that a pending job may use, the largest number of them on one node, and their models.
type reach struct {
	gpus      *rlcore.GPUSet
	most      int
	models    []string
	holds     []bool // by model: all its GPUs hold jobs to their memory
	instances []int  // a GPU of each kind of MIG instance among them
}

// reach returns the GPUs that a pending job may use, without closed nodes. typ is the type that all GPUs of a node must
// have, "" = any: shares lead a job to a node for sure, and to one of its GPUs only if nothing comes in between.
func (p *poll) reach(j *job.Job, closed, typ string) reach {
	return once(p.reaches, demand{j.Partition, j.ReqNodes, j.ExcNodes, closed, typ}, func() reach {
		may, shut := mayRun(j), strings.Split(closed, ",")
		return p.reachOf(func(g int) bool {
			n := p.gpus[g].node
			return may(n) && !slices.Contains(shut, n.Name) && (typ == "" || p.gpus[g].typ == typ || hasOnly(n, typ))
		})
	})
}

// mayRun reports of nodes whether a job may run there, by the nodes and partitions that it names.
func mayRun(j *job.Job) func(n *job.Node) bool {
	only, exclude, partitions := text.ExpandHosts(j.ReqNodes), text.ExpandHosts(j.ExcNodes), j.Partitions()
	return func(n *job.Node) bool {
		return (j.ReqNodes == "" || only[n.Name]) && !exclude[n.Name] && n.Serves(partitions)
	}
}

// ofType returns the GPUs of the type that a foreign job asks for, among all that it may use. All of them where any
// type will do, the job takes whole nodes, or no GPU has a type of that name: the site's names aren't understood.
func (p *poll) ofType(j *job.Job) reach {
	all, typ := p.reach(j, "", ""), j.Request.Type
	if typ == "" || p.Snap.TakesNodes(j) {
		return all
	}
	of := once(p.reaches, demand{j.Partition, j.ReqNodes, j.ExcNodes, "", "card " + typ}, func() reach {
		return p.reachOf(func(g int) bool {
			return all.gpus.Has(g) && p.gpus[g].node.Card(p.gpus[g].index).Type == typ
		})
	})
	if of.gpus.Len(len(p.gpus)) == 0 {
		return all
	}
	return reach{gpus: of.gpus, most: all.most, models: of.models[:1], holds: of.holds[:1]}
}

// reachOf is the GPUs that fulfil a condition.
func (p *poll) reachOf(may func(g int) bool) reach {
	var list []int
	out, on := reach{most: 1}, map[*job.Node]int{}
	for g, r := range p.gpus {
		if !may(g) {
			continue
		}
		list = append(list, g)
		on[r.node]++
		out.most = max(out.most, on[r.node])
		card := &p.State.GPUs[g]
		k := slices.Index(out.models, card.Card)
		if k < 0 {
			k, out.models, out.holds = len(out.models), append(out.models, card.Card), append(out.holds, true)
		}
		out.holds[k] = out.holds[k] && card.Spec.MemLimits
		alike := func(o int) bool { return p.kind(o) == p.kind(g) }
		if p.gpus[g].instance && !slices.ContainsFunc(out.instances, alike) {
			out.instances = append(out.instances, g)
		}
	}
	if len(list) < len(p.gpus) {
		out.gpus = rlcore.NewGPUSet(list...)
	}
	return out
}

// fitting returns what is left of a reach without the MIG instances that have too little memory for the application, by
// its profile: a whole GPU has what the job would get anywhere, and an instance hasn't. All where nothing else is left.
func (p *poll) fitting(r reach, app job.App) reach {
	var small []kind
	for _, g := range r.instances {
		k := p.kind(g)
		if use := app.On(k.card); use != nil && use.Peak().MemMiB > k.spec.MemMiB {
			small = append(small, k)
		}
	}
	if small == nil {
		return r
	}
	fits := once(p.fits, fit{r.gpus, fmt.Sprint(small)}, func() reach {
		return p.reachOf(func(g int) bool { return r.gpus.Has(g) && !slices.Contains(small, p.kind(g)) })
	})
	if fits.gpus.Len(len(p.gpus)) == 0 {
		return r
	}
	return fits
}

// kind is what GPUs have in common that are alike.
type kind struct {
	card string
	spec rlcore.GPUSpec
}

func (p *poll) kind(g int) kind { return kind{p.State.GPUs[g].Card, p.State.GPUs[g].Spec} }

// fit names a reach without kinds of instances.
type fit struct {
	gpus  *rlcore.GPUSet
	small string
}

// know sets the GPUs that a job may use, and what is known of its application there. What a job's owner says of its
// memory counts where the job can be held to it.
func (r reach) know(j *rlcore.Job, app job.App) {
	j.GPUs = r.gpus
	switch len(r.models) {
	case 0:
	case 1:
		j.Profile = r.on(0, app)
	default:
		j.Cards = &rlcore.Cards{}
		var fastest *rlcore.Profile
		for k, model := range r.models {
			on := r.on(k, app)
			(*j.Cards)[model] = on
			if on != nil && (fastest == nil || on.DurationS < fastest.DurationS) {
				fastest = on
			}
		}
		if len(r.instances) > 0 && fastest != nil { // a model that it can't have promises nothing
			j.Profile = fastest
		}
	}
}

// on is what is known of an application on one of the models.
func (r reach) on(k int, app job.App) *rlcore.Profile {
	p := app.On(r.models[k])
	if p != nil && p.Asked && !r.holds[k] {
		return nil
	}
	return p
}

// hasOnly reports whether all GPUs with shares of a node are of a type.
func hasOnly(n *job.Node, typ string) bool {
	for g := range n.GPUs {
		if c := n.Card(g); c.Units >= job.Units && c.Type != typ {
			return false
		}
	}
	return true
}

// convert converts a job to the decider's type.
func (p *poll) convert(j *job.Job) rlcore.Job {
	t := p.Terms[j.Ref]
	out := rlcore.Job{
		ID: j.Ref, User: j.User, Profile: p.Apps[j.Ref].Profile,
		SubmitS: tracker.Seconds(j.Submit), LimitS: j.TimeLimit.Seconds(),
		Priority: float64(j.Priority), MaxSlowdown: t.MaxSlowdown,
		NoShare: t.NoShare || p.NoMPS[rlcore.Identity{App: p.Apps[j.Ref].Key, Owner: j.User}],
		CPUs:    j.CPUs, HostMemMiB: j.HostMemMiB, ArrayOnly: t.ArrayOnly,
		Rank: p.Snap.Ranks.Of(j),
	}
	if j.State == job.Pending { // for running jobs Slurm reports the allocation
		out.CPUs, out.HostMemMiB = p.host(j)
	}
	// An adopted job allows what its rule says, and as a member of a group what the rule said then.
	if m := p.seats[j.Ref].Member; release.Adopted(m) && j.Request.Kind == job.Shares {
		out.MaxSlowdown, out.Grace = m.Contract, m.Grace
	} else if r := p.Rule(j); r != nil {
		out.MaxSlowdown, out.Grace = cmp.Or(out.MaxSlowdown, r.MaxSlowdown), r.Grace
	}
	if !j.Deadline.IsZero() {
		out.DeadlineS = tracker.Seconds(j.Deadline)
	}
	out.LimitFixed = j.TimeLimit > 0 && p.limitFixed(j, t.MaxSlowdown)
	if j.ArrayID != 0 {
		out.Array = strconv.FormatInt(j.ArrayID, 10)
	}
	if w := p.Tracker.Waits[j.Ref]; w != nil {
		out.DelayedS = w.DelayedS
	}
	return out
}

// host returns the CPUs and the memory that Slurm allocates to a pending job, the most on any node that the job may
// use.
func (p *poll) host(j *job.Job) (cpus int, memMiB float64) {
	kinds := once(p.grains, j.Partition, func() (kinds []*job.Node) {
		for i := range p.Snap.Nodes {
			n := &p.Snap.Nodes[i]
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
			cpus, memMiB = max(cpus, n.Allocates(j.CPUs)), max(memMiB, n.Takes(j))
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

// ByPriority is Slurm's order: highest priority first, of equals the one submitted first. Tasks of an array come in the
// order of their own numbers, whichever of them are jobs with numbers already (sort_job_queue2, 22.05 to 26.05).
func ByPriority(x, y *job.Job) int {
	return cmp.Or(-cmp.Compare(x.Priority, y.Priority), x.Submit.Compare(y.Submit),
		cmp.Compare(cmp.Or(x.ArrayID, x.ID), cmp.Or(y.ArrayID, y.ID)),
		cmp.Compare(len(x.Ref), len(y.Ref)), cmp.Compare(x.Ref, y.Ref))
}
