package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurmlimit"
)

// queue holds the jobs that wait for GPUs, in Slurm's order, and what becomes of the other pending jobs.
type queue struct {
	in      *Input
	view    *clusterView
	managed *job.PartitionFilter

	waiting []rlcore.Job
	claims  map[string]nodeClaim // by node; see nodeClaims
	budget  *slurmlimit.Budget
	quota   *slurmlimit.GPUs // of adopted jobs
	// limited says, by ref, which of Slurm's limits keeps a job out of the queue, and closedTo why a node is closed to a
	// job in the queue. withheld are the jobs that a limit keeps out.
	limited, closedTo map[string]string
	withheld          []rlcore.Job
	tasks             map[int64]int // by array: tasks that run, are about to, or are in the queue
	gate, ungated     []job.Change
	reasons           map[string]job.Ungated // by ref: why the bridge leaves the job to Slurm
	notAdopted        map[string]job.Ungated // by ref: why a job that a rule of the site matches has its own GPU
	noModel           map[string]string      // by ref: what is to be said of a type of GPU that nothing has
	unstarted         map[string]bool        // foreign jobs that could start on idle GPUs
	watched           int                    // how many foreign jobs are watched
}

func newQueue(p *clusterView, managed *job.PartitionFilter) *queue {
	q := &queue{
		in: p.in, view: p, managed: managed,
		limited: map[string]string{}, closedTo: map[string]string{}, unstarted: map[string]bool{},
		noModel: map[string]string{}, tasks: map[int64]int{},
		reasons: map[string]job.Ungated{}, notAdopted: map[string]job.Ungated{},
		budget: p.in.Tracker.Limits.Budget(p.in.Snap.At),
	}
	for ref := range p.starting {
		q.budget.Starts(p.jobs[ref])
	}
	for i := range p.in.Snap.Jobs {
		if j := &p.in.Snap.Jobs[i]; j.State == job.Running || j.State == job.Suspended || p.starting[j.Ref] {
			q.tasks[j.ArrayID]++
		}
	}
	shares := func(j *job.Job) bool {
		return release.Adopted(p.membership[j.Ref].Member) && j.Request.Kind == job.Shares
	}
	q.quota = slurmlimit.CountGPUs(p.in.Snap, shares, p.in.WaitsForBridge)
	for _, j := range p.pending {
		q.add(j)
	}
	q.avoidClaimed()
	return q
}

// add puts a pending job into the queue, behind the gate, or back to Slurm. A foreign job is in the queue, too: it
// waits for the same GPUs.
func (q *queue) add(j *job.Job) {
	f, why := q.factsOf(j)
	switch classify(f) {
	case leftOut:
	case foreign:
		q.addForeign(j)
	case toGate:
		q.putBehindGate(j)
	case toSlurm:
		more := ""
		if f&unmanaged > 0 {
			why = job.UngatedLeft
			more = ": " + q.in.Tracker.Unmanaged[j.Ref]
		}
		q.ungate(j, why, more)
		q.addForeign(j) // Slurm starts it before the groups of this plan
	case queued:
		q.addSharer(j)
	}
}

// addSharer adds a job that may share, unless one of Slurm's limits keeps it waiting.
func (q *queue) addSharer(j *job.Job) {
	rj := q.view.convert(j)
	if j.Note.Defaults.Has(j) {
		rj.HostMemDivides = j.Note.Defaults.MemMiB > 0
		if j.Note.Defaults.CPUs > 0 {
			rj.CPUGrain = q.view.grain
		}
	}
	limited := ""
	if j.Request.Kind == job.WholeGPU {
		by, waits := q.quota.Pass(j)
		if by != "" && !waits {
			q.ungate(j, job.UngatedGPULimit, ": "+by)
			q.addForeign(j)
			return
		}
		limited = by
	}
	if limited == "" && j.ArrayLimit > 0 && q.tasks[j.ArrayID] >= j.ArrayLimit {
		limited = fmt.Sprintf("its array runs %s at a time", job.Count(j.ArrayLimit, "task"))
	}
	if limited == "" {
		if by := q.budget.Pass(j); by != nil {
			limited = by.Text(q.in.Snap.At)
		}
	}
	if limited != "" {
		q.limited[j.Ref] = limited
		q.withheld = append(q.withheld, rj)
		return
	}
	q.tasks[j.ArrayID]++
	q.knowReach(&rj, j, q.closedFor(j))
	q.waiting = append(q.waiting, rj)
}

// knowReach sets the GPUs that a job may use outside the closed nodes, and what is known of its application there.
func (q *queue) knowReach(rj *rlcore.Job, j *job.Job, closed string) {
	app := q.in.Apps[j.Ref]
	q.view.fitting(q.view.reach(j, closed, q.wanted(j)), app).know(rj, app)
}

// wanted returns the type of GPU that a job requests or its owner names (share:model=TYPE), "" = any. A type that none
// of the job's nodes has counts as any.
func (q *queue) wanted(j *job.Job) string {
	own, model := ownType(j), q.in.Terms[j.Ref].Model
	if own != "" || model == "" {
		return own
	}
	may := mayRun(j)
	for i := range q.in.Snap.Nodes {
		n := &q.in.Snap.Nodes[i]
		for g := range n.GPUs {
			if c := n.GPU(g); may(n) && c.Type == model && c.Units >= job.Units && (n.Typed() || hasOnly(n, model)) {
				return model
			}
		}
	}
	q.noModel[j.Ref] = "share:model=" + model + ": no GPU of this type that jobs share is there for it"
	return ""
}

// closedFor lists the nodes that a limit or another user's jobs close to a job for now, separated by commas. Where
// other nodes are idle, they are tried before the nodes that have refused jobs like it.
func (q *queue) closedFor(j *job.Job) string {
	closed, by := q.budget.Closed(j)
	if by != nil {
		q.closedTo[j.Ref] = by.Text(q.in.Snap.At)
	}
	if others := q.view.othersHave(j); others != nil {
		closed = append(slices.Clip(closed), others...)
		q.closedTo[j.Ref] = cmp.Or(q.closedTo[j.Ref],
			"other users' jobs are on "+strings.Join(others, ", ")+", and a node is one user's at a time (ExclusiveUser)")
	}
	if again := q.budget.Again(j); again != nil && q.hasIdle(j, slices.Concat(closed, again)) {
		closed = append(closed, again...)
	}
	return strings.Join(closed, ",")
}

// hasIdle reports whether a GPU is idle on a node where a job may run, of other nodes than those without.
func (q *queue) hasIdle(j *job.Job, without []string) bool {
	may := mayRun(j)
	for g := range q.view.state.GPUs {
		node := q.view.gpus[g].node
		if len(q.view.state.GPUs[g].Running) == 0 && !slices.Contains(without, node.Name) && may(node) {
			return true
		}
	}
	return false
}

// ignoredAfterS is how long Slurm leaves a foreign job pending next to enough idle GPUs, s, before the bridge concludes
// that it waits for something else.
const ignoredAfterS = 60

// mostWatched is the number of foreign jobs, by priority, that the bridge watches next to idle GPUs.
const mostWatched = 32

// addForeign adds a job that waits for GPUs without the bridge, or will once this plan has ungated it: Slurm starts it
// before a group of this plan. The queue leaves out jobs that Slurm keeps for other reasons, and requests for a part of
// a GPU's shares, which start on any GPU with enough.
func (q *queue) addForeign(j *job.Job) {
	part := j.Request.Kind == job.Shares && j.Request.Count < job.Units && !q.view.waitsForTurn(j.Ref)
	waits := len(j.Dependency.List) > 0 || !waitsForNodes(j.Reason)
	if q.reasons[j.Ref] != "" && len(j.Dependency.List) > 0 {
		waits = !q.in.waitsOnly(j)
	}
	if j.Request.Kind == job.NoGPU || part || waits || q.in.notYet(j) != "" {
		return
	}
	rj := q.view.convert(j)
	of := q.view.ofType(j)
	of.know(&rj, q.in.Apps[j.Ref])
	rj.Foreign = true
	rj.Nodes = max(1, j.NumNodes)
	rj.PerNode = 1
	switch {
	case q.in.Snap.TakesNodes(j):
		rj.PerNode = of.most
	case j.Request.Kind == job.WholeGPU:
		rj.PerNode = min(max(1, j.Request.Count), of.most)
	}
	if why := q.view.whyNotAdopted(j); why != "" {
		q.notAdopted[j.Ref] = why
	}
	w := q.in.Tracker.Waits[j.Ref]
	ignored := w != nil && w.UnstartedS >= ignoredAfterS
	if !ignored { // an ignored job isn't watched any more
		q.watched++
	}
	if q.watched <= mostWatched && q.couldStart(&rj) {
		q.unstarted[j.Ref] = true
		if ignored {
			return
		}
	}
	q.waiting = append(q.waiting, rj)
}

// waitsForNodes reports whether a Reason is, or may hide, a wait for GPUs.
func waitsForNodes(reason string) bool {
	switch reason {
	case "", "None", "Priority", "Resources":
		return true
	}
	return slurmlimit.PassedOver(reason)
}

// couldStart reports whether enough GPUs are idle for a foreign job.
func (q *queue) couldStart(j *rlcore.Job) bool {
	nodes := 0
	for _, gpus := range q.view.nodes {
		idle := 0
		for _, g := range gpus {
			if len(q.view.state.GPUs[g].Running) == 0 && j.MayUse(g) {
				idle++
			}
		}
		if idle >= j.PerNode {
			nodes++
		}
	}
	return nodes >= j.Nodes
}

// ungate ungates a job; more is added to the reason.
func (q *queue) ungate(j *job.Job, why job.Ungated, more string) {
	if q.reasons[j.Ref] != "" {
		return
	}
	q.reasons[j.Ref] = why
	if q.in.Shadow {
		return
	}
	c := release.Ungate(j, q.in.Snap.Gates, why.String()+more, q.in.Snap.At)
	if why == job.UngatedWholeNodes && j.Request.Kind == job.Shares && text.RewritesTypes(q.in.Snap.Release) {
		c.Update.Gres = &aGPU // shares of a node with several GPUs never start as a job of whole nodes
	}
	q.ungated = append(q.ungated, c)
}

// aGPU is the request of a job of whole nodes that asked to share: with it Slurm gives the job all of a node's GPUs.
var aGPU = "gpu:1"

// putBehindGate gates a job with a request that is still gpu:shared. Without a gate the job gets a GPU of its own.
func (q *queue) putBehindGate(j *job.Job) {
	if q.in.Shadow || j.Dependency.Or || j.HetID != 0 || !q.managed.Covers(j.Partition) {
		return
	}
	for i := range q.in.Snap.Nodes {
		if sharing := q.in.Snap.Nodes[i].Sharing; sharing != "" {
			c := release.Gate(j, q.in.Gate, sharing)
			if q.in.Snap.TakesNodes(j) {
				c = release.Gate(j, "", sharing)
				c.Update.Gres = &aGPU
			}
			q.gate = append(q.gate, c)
			return
		}
	}
}

// scheduleAlone updates plain Slurm's schedule with the poll, notes in the jobs what it promises, and returns it. A job
// that Slurm keeps waiting for another reason than a GPU (held, at a limit, before its begin time) enters the schedule
// once that is over.
func (q *queue) scheduleAlone() *schedule.SlurmAlone {
	state := &q.view.state
	now := state.NowS
	p := q.in.Tracker.Plain.Clone()
	p.SetClock(now)
	names := make([]string, len(state.GPUs))
	on := map[string][]int{} // by ref: the GPUs of the jobs that run
	for g := range state.GPUs {
		names[g] = state.GPUs[g].ID
		for i := range state.GPUs[g].Running {
			ref := state.GPUs[g].Running[i].ID
			on[ref] = append(on[ref], g)
		}
	}
	p.SetGPUs(names, now)
	here := map[string]bool{}
	for g := range state.GPUs {
		for i := range state.GPUs[g].Running {
			x := &state.GPUs[g].Running[i]
			if !here[x.ID] && !q.view.starting[x.ID] {
				p.Runs(x.ForSchedule(), on[x.ID], now-x.ElapsedS, now)
			}
			here[x.ID] = true
		}
	}
	waits := make([]schedule.Entry, 0, len(q.waiting))
	var gone []string
	for i := range q.waiting {
		j := &q.waiting[i]
		if p.Requeued(j.ID) { // it comes again
			gone = append(gone, j.ID)
		}
		here[j.ID] = true
		waits = append(waits, j.ForSchedule())
	}
	p.Each(func(id string) {
		j := q.view.jobs[id]
		if !here[id] && (j == nil || j.State == job.Pending && !q.retainsPlace(p, id)) {
			gone = append(gone, id)
		}
	})
	p.Remove(now, gone...)
	p.Wait(waits, now)
	q.notePromises(p)
	for _, gpus := range on {
		state.Several = state.Several || len(gpus) > 1
	}
	state.Sets = q.partitions()
	state.PlainFreeS = p.FreeS(nil, now)
	return p
}

// notePromises notes in the jobs what plain Slurm's schedule promises them.
func (q *queue) notePromises(p *schedule.SlurmAlone) {
	state := &q.view.state
	for i := range q.waiting {
		j := &q.waiting[i]
		j.PlainEndS = p.EndS(j.ID)
		j.EarlyS = p.EarlyS(j.ID)
		j.PlainSlot = p.Slot(j.ID)
		state.Several = state.Several || j.WholeGPUs() > 1
	}
	for g := range state.GPUs {
		for i := range state.GPUs[g].Running {
			x := &state.GPUs[g].Running[i]
			x.PlainEndS = p.EndS(x.ID)
			x.EarlyS = p.EarlyS(x.ID)
		}
	}
}

// partitions are the sets of GPUs of the partitions.
func (q *queue) partitions() (out []*rlcore.GPUSet) {
	names := map[string]bool{}
	for i := range q.in.Snap.Nodes {
		for _, name := range q.in.Snap.Nodes[i].Partitions {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		set := q.view.reach(&job.Job{Partition: name}, "", "").gpus
		if set.Len(len(q.view.gpus)) > 0 && set != nil && !slices.Contains(out, set) {
			out = append(out, set)
		}
	}
	return out
}

// retainsPlace reports whether a job that is not in the queue now keeps its place in the plain schedule: it is being
// restored, say, because another job took its GPU.
func (q *queue) retainsPlace(p *schedule.SlurmAlone, ref string) bool {
	held := q.view.jobs[ref].Priority == 0
	return (q.in.Touched[ref] || q.view.membership[ref].Group != nil) && !held && !p.Requeued(ref)
}

// avoidClaimed removes the nodes that Slurm keeps for other jobs from the reach of each job that Slurm would start
// elsewhere now. Plain Slurm does the same.
func (q *queue) avoidClaimed() {
	q.claims = q.nodeClaims()
	claims := map[string]bool{} // by ref: Slurm keeps nodes for it
	for _, c := range q.claims {
		claims[c.by.Ref] = true
	}
	// What is true of all jobs of these GPUs and this limit that come after so many of the jobs that nodes are kept for.
	type alike struct {
		gpus   *rlcore.GPUSet
		limitS float64
		after  int
	}
	avoids := map[alike]string{}
	after := 0
	for i := range q.waiting {
		j := &q.waiting[i]
		if claims[j.ID] {
			after++
		}
		if j.Foreign {
			continue
		}
		nodes := once(avoids, alike{j.GPUs, j.LimitS, after}, func() string { return q.avoids(j) })
		if nodes == "" {
			continue
		}
		own := q.view.jobs[j.ID]
		q.knowReach(j, own, nodes+","+q.closedFor(own))
	}
}
