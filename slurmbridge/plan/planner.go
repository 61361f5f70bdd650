package plan

import (
	"maps"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/limit"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// Planner turns an input into a plan. It is not safe for concurrent use: the decider
// keeps scratch.
type Planner struct {
	Decider    *rlcore.Decider
	Partitions PartitionFilter
	// Join lets pending jobs join a GPU on which running jobs left shares free.
	Join bool
	// Room leaves a share of the GPU free for a job that comes later, where one may join and no
	// job with hand-written shares was seen for a week. RoomAnyway: even if one was.
	Room, RoomAnyway bool
	// Wanted is the configured policy; the decider's own is another after a fall-back.
	Wanted string
	// Objective is what decisions keep small, as configured; it is shown.
	Objective string
}

// leavesRoom reports whether jobs leave room for others that may join.
func (p *Planner) leavesRoom(in *Input) bool {
	return p.Room && rlcore.Shares(p.Decider.Policy) && (p.RoomAnyway || in.Snap.At.Sub(in.Tracker.Handwritten) > handwrittenFor)
}

// handwritten reports whether jobs with shares written by hand have been seen lately.
func (in *Input) handwritten() bool {
	return in.Tracker.HandwrittenSeen && in.Snap.At.Sub(in.Tracker.Handwritten) <= handwrittenFor
}

// handwrittenFor is for how long no room is left after a job was seen whose owner asked for a
// part of a GPU's shares: such jobs start wherever there is room, next to jobs that they
// were never checked with.
const handwrittenFor = 7 * 24 * time.Hour

// Window is how many waiting jobs a decision looks at.
func (p *Planner) Window() int {
	if p.Decider.M == 0 {
		return defaultWindow
	}
	return p.Decider.M
}

const defaultWindow = 5

// Plan makes one pass through its stages: the queue and the GPUs, the promise to all jobs of the queue, the choice for
// each GPU with the shares that lead its jobs there, the changes, and what is said of them. Without a gate nothing could
// be put aside while groups are made, so none are.
func (p *Planner) Plan(in *Input) *job.Plan {
	v := newView(in, &p.Partitions)
	r := &pass{
		Planner: p, view: v, in: in, mostLeft: mostMeetings, closedTo: map[string]string{}, budget: in.Tracker.Limits.Budget(in.Snap, v.jobs),
		plan: &job.Plan{
			At: in.Snap.At, Explanations: map[string]*job.Explanation{}, Unstarted: v.unstarted,
			Running: &rlcore.State{NowS: v.State.NowS, GPUs: slices.Clone(v.State.GPUs)},
			Idle:    map[string]bool{}, Limited: map[string]string{}, Starts: map[string]time.Time{},
			Unfit: v.unfit, InCompany: map[string]bool{}, Order: map[string]int{},
		},
	}
	r.explain = explainer{view: v, guard: p.Decider.Guard, plan: r.plan}
	r.withhold()
	r.keepOff()
	r.plan.Plain = v.promise()
	p.Decider.Guard.Begin(&v.State)
	if in.Gate != "" && !in.Unproved || in.Shadow {
		r.fillAll()
	}
	r.makeAll()
	p.Decider.Guard.Begin(&v.State) // of the jobs that are left
	r.heedDeadlines()
	r.keepTurns()
	r.noteDelays()
	r.noteStarts()
	r.plan.Repairs = slices.Concat(r.plan.Repairs, v.gate, v.ungate)
	return r.plan
}

// pass is one call of Plan.
type pass struct {
	*Planner
	*view
	in      *Input
	plan    *job.Plan
	budget  *limit.Budget
	explain explainer
	drafts  []*draft
	window  []int
	// closedTo says, by ref, why a node is closed to a job of the queue.
	closedTo map[string]string
	// withheld are the jobs of the queue that are at one of Slurm's limits.
	withheld []rlcore.Job
	// mostLeft is how many more sets of jobs the guard may be asked about; see meets.
	mostLeft int
}

// keepOff takes the GPUs of nodes that are closed to a job for now out of its list.
func (r *pass) keepOff() {
	type key struct {
		list *int
		node string
	}
	without := map[key][]int{} // many jobs share one list
	for _, node := range r.budget.Shut() {
		for i := range r.State.Pending {
			j := &r.State.Pending[i]
			by := r.budget.ClosedTo(j.ID, node)
			if by == nil || j.Foreign || j.GPUs != nil && len(j.GPUs) == 0 {
				continue
			}
			r.closedTo[j.ID] = by.Text(r.in.Snap.At)
			k := key{node: node}
			if len(j.GPUs) > 0 {
				k.list = &j.GPUs[0]
			}
			list, ok := without[k]
			if !ok {
				list = make([]int, 0, len(r.gpus))
				for g := range r.gpus {
					if r.gpus[g].node.Name != node && j.MayUse(g) {
						list = append(list, g)
					}
				}
				without[k] = list
			}
			j.GPUs = list
		}
	}
}

// withhold takes the jobs out of the queue that Slurm wouldn't start for a limit, and counts those that are about to
// start.
func (r *pass) withhold() {
	for _, ref := range slices.Sorted(maps.Keys(r.starting)) {
		r.budget.Send(ref)
	}
	over := r.budget.Over(len(r.State.Pending), func(i int) string {
		if j := &r.State.Pending[i]; !j.Foreign {
			return j.ID
		}
		return ""
	})
	if len(over) == 0 {
		return
	}
	texts := map[*limit.Limit]string{} // many jobs are over one limit
	queue := make([]rlcore.Job, 0, len(r.State.Pending))
	for i, by := range over {
		j := r.State.Pending[i]
		if by == nil {
			queue = append(queue, j)
			continue
		}
		if texts[by] == "" {
			texts[by] = by.Text(r.in.Snap.At)
		}
		r.plan.Limited[j.ID] = texts[by]
		r.withheld = append(r.withheld, j)
	}
	r.State.Pending = queue
}

// startable lists the GPUs on which a job might start now: idle ones, then those with the
// most free shares; of equals those first that needn't be woken.
func (r *pass) startable() []int {
	var out []int
	for g := range r.State.GPUs {
		card := &r.State.GPUs[g]
		if card.FreeShares() > 0 && (len(card.Running) == 0 || r.Join) && !r.closed[g] && !r.unsettled[card.Node] && !r.Decider.Guard.Claimed(g) {
			out = append(out, g)
		}
	}
	sort.SliceStable(out, func(a, b int) bool {
		free := func(i int) int { return r.State.GPUs[out[i]].FreeShares() }
		if free(a) != free(b) {
			return free(a) > free(b)
		}
		return !r.gpus[out[a]].node.Asleep && r.gpus[out[b]].node.Asleep
	})
	return out
}

// fillAll decides what starts now. Where the guard doesn't allow a group next to the jobs on
// other GPUs of its node, or no shares lead it to its GPU, other nodes have the next choice; then its node has another
// one, of the jobs that are left. Where that leads nowhere a job that has the GPU to itself starts
// there, as with plain Slurm.
func (r *pass) fillAll() {
	left := r.startable()
	for progress := true; progress; {
		left, progress = r.fillSome(left)
	}
	for _, g := range left {
		r.fill(g, true)
	}
}

// fillSome decides for each of the GPUs once. It returns those that would take something else. An idle GPU
// like one that its node was just refused for is among them: nothing else could come of it.
func (r *pass) fillSome(gpus []int) (again []int, progress bool) {
	type idle struct {
		node string
		spec rlcore.GPUSpec
	}
	stuck := map[idle]bool{}
	for _, g := range gpus {
		card := &r.State.GPUs[g]
		like := idle{card.Node, card.Spec}
		isIdle := len(card.Running) == 0
		if isIdle && stuck[like] {
			again = append(again, g)
			continue
		}
		switch why := r.fill(g, false); {
		case why == refused || why == later && r.mostLeft < 0:
			again = append(again, g)
			stuck[like] = stuck[like] || isIdle
		case why == placed:
			progress = true
		}
	}
	return again, progress && r.mostLeft >= 0
}

// fill decides what starts on GPU g now, and what else next to that, until the policy wants nothing more: one that
// builds a group job by job gets to its end. alone: where it can't be a group, one job may start.
func (r *pass) fill(g int, alone bool) verdict {
	kind := job.Join
	switch {
	case len(r.State.GPUs[g].Running) == 0:
		kind = job.StartNow
	case r.drafted(g) != nil:
		return later // a group of this plan starts there, since groups have exchanged the node's idle GPUs
	}
	var d *draft
	for {
		dec := r.choose(g, kind)
		if dec.Combo == 0 {
			break
		}
		more, why := r.make(g, kind, d, dec.Jobs(), dec.Score, false)
		if why != placed && d == nil {
			if kind == job.StartNow && alone && (why == refused || r.mostLeft < 0) {
				d, why = r.make(g, kind, nil, dec.Jobs()[:1], dec.Score, true)
			}
			r.seat(d)
			return why
		}
		if why != placed {
			break
		}
		r.Decider.Guard.Settle(&r.State, more.gpu)
		if d, g = more, more.gpu; !r.Join {
			break
		}
	}
	if d == nil {
		return later
	}
	r.seat(d)
	return placed
}

// drafted is the draft that starts on GPU g, nil = none does.
func (r *pass) drafted(g int) *draft {
	for _, d := range r.drafts {
		if d.gpu == g {
			return d
		}
	}
	return nil
}

// choose asks the policy for jobs of GPU g's window.
func (r *pass) choose(g int, kind job.GroupKind) rlcore.Decision {
	dec := r.Decider.Choose(rlcore.Window{State: &r.State, GPU: g, Jobs: r.windowOf(g, r.width(g, kind))})
	if dec.Broken {
		r.plan.Broken++
	}
	r.explain.explain(&dec)
	return dec
}

// windowOf lists the first m jobs of the queue that may start on GPU g.
func (r *pass) windowOf(g, m int) []int {
	out := r.window[:0]
	var list []int // the last job's GPUs; neighbours often share a list
	may, known := false, false
	for i := 0; i < len(r.State.Pending) && len(out) < m; i++ {
		j := &r.State.Pending[i]
		if j.Foreign {
			continue
		}
		if !known || len(list) != len(j.GPUs) || len(list) == 0 || &list[0] != &j.GPUs[0] {
			list, may, known = j.GPUs, j.MayUse(g), true
		}
		if may {
			out = append(out, i)
		}
	}
	r.window = out
	return out
}

// width is how many waiting jobs the decision for GPU g looks at. Where other GPUs of the node are
// idle as well it is as many as fill the GPU, and one to choose: which GPU a job gets follows from the order of
// the queue, and neighbours there can be led to one GPU, whatever else starts with them.
func (r *pass) width(g int, kind job.GroupKind) int {
	idle := 0
	for _, k := range r.nodes[r.gpus[g].node.Name] {
		if len(r.State.GPUs[k].Running) == 0 && !r.closed[k] {
			idle++
		}
	}
	m := min(r.Decider.Window(), rlcore.MaxWindow)
	if kind != job.StartNow || idle < 2 {
		return m
	}
	return min(m, r.Decider.Guard.Members(&r.State.GPUs[g].Spec)+1)
}

// make turns a choice into a draft, or adds it to one, takes its jobs out of the queue and puts them on the GPU, with one
// share each until seat. A group that can't be sure of its GPU, or whose members could meet jobs that they may not share
// with, is not made. whole: the one job is to have all shares.
func (r *pass) make(g int, kind job.GroupKind, to *draft, chosen []int, score float64, whole bool) (*draft, verdict) {
	d := r.draft(g, kind, to, chosen, score)
	free := r.freeFor(d)
	if free < len(d.jobs) {
		return nil, refused
	}
	if len(r.nodes[d.group.Node]) == 1 {
		for i, s := range r.split(d, free) {
			d.give(i, s)
		}
	} else {
		if !whole {
			d.spare = free - r.withRoom(d, free)
		}
		if why := r.place(d); why != placed {
			return nil, why
		}
	}
	if to == nil {
		r.drafts = append(r.drafts, d)
	} else {
		r.drafts[slices.Index(r.drafts, to)] = d
	}
	r.dequeue(chosen)
	node := r.nodes[d.group.Node]
	for _, x := range d.jobs[len(d.jobs)-len(chosen):] {
		r.budget.Send(x.ID)
		r.take(node, x.CPUs, x.HostMemMiB)
	}
	for _, k := range node {
		was := len(r.State.GPUs[k].Running)
		r.reseat(k, d)
		if len(node) > 1 && k != d.gpu && was != len(r.State.GPUs[k].Running) { // groups have exchanged their idle GPUs
			r.Decider.Guard.Settle(&r.State, k)
		}
	}
	return d, placed
}

// seat gives the members of a draft their shares in the State: nothing more is added to it.
func (r *pass) seat(d *draft) {
	if d == nil {
		return
	}
	for _, k := range r.nodes[d.group.Node] {
		r.reseat(k, nil)
		r.Decider.Guard.Settle(&r.State, k)
	}
}

// reseat puts the drafts' jobs on GPU g, in the State; those of open, which may get more members, with a share each.
func (r *pass) reseat(g int, open *draft) {
	card := &r.State.GPUs[g]
	card.Running = r.seated[g]
	for _, d := range r.drafts {
		if d.gpu != g {
			continue
		}
		jobs := slices.Clone(d.jobs)
		for i := range jobs {
			if d == open {
				jobs[i].Shares = 1
			}
		}
		card.Running = slices.Concat(card.Running, jobs)
	}
}

// freeFor is how many shares the draft's members get in all.
func (r *pass) freeFor(d *draft) int {
	card := rlcore.GPU{Running: r.seated[d.gpu]}
	free := card.FreeShares()
	for _, o := range r.drafts { // another one may join as well
		if o.gpu == d.gpu && o.id != d.id {
			for i := range o.jobs {
				free -= o.jobs[i].Shares
			}
		}
	}
	return free
}

// makeAll makes the drafts' changes.
func (r *pass) makeAll() {
	for _, d := range r.drafts {
		r.plan.Groups = append(r.plan.Groups, release.Make(&d.group, r.jobs, r.gpus[d.gpu].node.Sharing))
		for i := range d.group.Members {
			if e := r.plan.Explanations[d.group.Members[i].Ref]; e != nil {
				e.Status = startsNow(r.gpus[d.gpu])
			}
		}
	}
	// Slurm will consider the members that start now on nodes with several GPUs in this order.
	var refs []string
	for _, d := range r.drafts {
		if len(r.nodes[d.group.Node]) > 1 {
			refs = append(refs, d.group.Refs()...)
		}
	}
	slices.SortFunc(refs, func(a, b string) int { return byPriority(r.jobs[a], r.jobs[b]) })
	for i, ref := range refs {
		r.plan.Order[ref] = i
	}
}

// draft is the group of a choice, together with the members that it had in an earlier draft, but for its shares.
func (r *pass) draft(g int, kind job.GroupKind, to *draft, chosen []int, score float64) *draft {
	d := &draft{gpu: g, id: -1 - int64(len(r.drafts))}
	ref := r.gpus[g]
	d.group = job.Group{
		Kind: kind, State: job.Preparing, Node: ref.node.Name, GPU: ref.index, Decided: r.in.Snap.At, Score: score, Policy: r.Decider.Policy.Name(),
	}
	if to != nil {
		d.id, d.group.Score = to.id, to.group.Score
		d.group.Members, d.jobs = slices.Clone(to.group.Members), slices.Clone(to.jobs)
	}
	for _, at := range chosen {
		j := &r.State.Pending[at]
		m := job.Member{
			Ref: j.ID, User: j.User, App: r.in.Apps[j.ID].Key, State: job.MemberPrepared,
			WasGres: release.WholeGPU(ref.node.Sharing), WasNodes: r.jobs[j.ID].ReqNodes, PlainEnd: tracker.Time(j.PlainEndS),
		}
		if e := r.plan.Explanations[j.ID]; e != nil {
			m.ExpectedEnd = e.ExpectedEnd
		}
		d.group.Members, d.jobs = append(d.group.Members, m), append(d.jobs, rlcore.Running{Job: *j})
	}
	// A job that starts alone on an idle GPU could do so anywhere, but with other nodes
	// there it might take a GPU that another group was sent to.
	d.group.Pinned = len(d.jobs) > 1 || kind == job.Join || len(r.in.Snap.Nodes) > 1
	card := r.State.GPUs[g]
	card.Running = r.seated[g]
	members, profiles := make([]*rlcore.Profile, 0, len(card.Running)+len(d.jobs)), make([]*rlcore.Profile, len(d.jobs))
	for i := range card.Running {
		members = append(members, card.Running[i].Profile)
	}
	for i := range d.jobs {
		profiles[i] = d.jobs[i].Profile
	}
	predicted := predict(r.Decider.Guard.Predictor, &card.Spec, append(members, profiles...))
	for i, limit := range r.Decider.Guard.MemoryLimits(&card, profiles) {
		m := &d.group.Members[i]
		m.MemMiB, d.jobs[i].MemLimitMiB = int64(limit), limit
		if predicted != nil {
			m.Predicted = predicted[len(card.Running)+i].Slowdown
		}
	}
	return d
}

// turnSoonS is how soon a job's turn must come, s, for it to be in Slurm's own queue where a foreign job is behind it: a
// poll and the ends of some jobs lie in between.
const turnSoonS = 60

// keepTurns ungates the jobs whose turn comes next and that have a foreign job behind them: when a GPU becomes free
// Slurm starts the first job of its own queue at once, before the bridge can release any other.
func (r *pass) keepTurns() {
	if r.in.Shadow || r.view.foreign == 0 {
		return
	}
	last := map[int]int{} // by GPU: the last foreign job that may use it
	for i := range r.State.Pending {
		j := &r.State.Pending[i]
		if !j.Foreign {
			continue
		}
		for g := range r.State.GPUs {
			if j.MayUse(g) {
				last[g] = i
			}
		}
	}
	next := map[int]bool{} // GPUs on which the next job is known
	for i := range r.State.Pending {
		j := &r.State.Pending[i]
		first, overtaken := false, false
		for g := range r.State.GPUs {
			if !j.MayUse(g) {
				continue
			}
			overtaken = overtaken || last[g] > i
			first = first || !next[g]
			next[g] = true
		}
		if !j.Foreign && overtaken && j.StartS() > 0 && (first || j.StartS() <= turnSoonS) {
			r.letGo(r.jobs[j.ID], job.UnfitTurn, "")
		}
	}
}

// heedDeadlines ungates the jobs that Slurm might cancel behind the gate: it does once a job's
// limit doesn't fit before its deadline, and if the bridge died now, the gate would hold the
// job beyond that.
func (r *pass) heedDeadlines() {
	for _, queue := range [][]rlcore.Job{r.State.Pending, r.withheld} {
		for i := range queue {
			j := &queue[i]
			if !j.Foreign && j.DeadlineS > 0 && j.DeadlineS-j.LimitS-r.State.NowS < r.in.HoldS {
				r.letGo(r.jobs[j.ID], job.UnfitDeadline, "")
			}
		}
	}
}

// noteDelays finds the jobs that wait although they would have their turn on an idle GPU. Those that
// have waited so for too long are ungated.
func (r *pass) noteDelays() {
	for i := range r.State.Pending {
		j := &r.State.Pending[i]
		if j.Foreign || !r.idleFor(j) {
			continue // it isn't the bridge that keeps it waiting
		}
		r.plan.Idle[j.ID] = true
		if j.DelayedS >= r.Decider.Guard.DelayLimitS() && !r.in.Shadow {
			r.letGo(r.jobs[j.ID], job.UnfitDelay, "")
		}
	}
}

// idleFor reports whether a GPU that the job may use is idle, and no job in front of it has its turn there. A job that
// waits where a node is closed to it is limited.
func (r *pass) idleFor(j *rlcore.Job) bool {
	if j.StartS() > 0 {
		if closed := r.closedTo[j.ID]; closed != "" {
			r.plan.Limited[j.ID] = closed
		}
		return false
	}
	for g := range r.State.GPUs {
		if len(r.State.GPUs[g].Running) == 0 && j.MayUse(g) {
			return true
		}
	}
	return false
}

// noteStarts says when the jobs that wait for a GPU are expected to start: each with GPUs of its own, in order of
// priority. Together with others they may start sooner.
func (r *pass) noteStarts() {
	for i := range r.State.Pending {
		if j := &r.State.Pending[i]; j.StartS() < math.MaxFloat64 && r.plan.Limited[j.ID] == "" && !j.Foreign {
			r.plan.Starts[j.ID] = tracker.Time(r.State.NowS + j.StartS())
		}
	}
}
