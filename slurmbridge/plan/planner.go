package plan

import (
	"cmp"
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
	// AheadS is how soon a busy GPU must be expected to be free for its next group to be prepared, s, so that
	// no poll lies between the two; 0 = none is.
	AheadS float64
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

// Plan decides for every GPU of a poll. Idle GPUs come first, then those with free shares;
// then busy ones get the group that follows. Without a gate nothing could be put aside
// while groups are made, so none are.
func (p *Planner) Plan(in *Input) *job.Plan {
	v := newView(in, &p.Partitions)
	guard := p.Decider.Guard
	r := &pass{
		Planner: p, in: in, view: v, mostLeft: mostMeetings, budget: in.Tracker.Limits.Budget(in.Snap, v.jobs),
		allot: allotter{view: v, guard: guard, room: func() bool { return p.leavesRoom(in) }, bulk: in.handwritten()},
		plan: &job.Plan{
			At: in.Snap.At, Passed: map[string]int{}, Explanations: map[string]*job.Explanation{},
			Running: &rlcore.State{NowS: v.State.NowS, GPUs: slices.Clone(v.State.GPUs)},
			Idle:    map[string]bool{}, Replanned: map[string]bool{}, Pushed: map[int64]bool{}, Limited: map[string]string{}, Starts: map[string]time.Time{},
			Unfit: v.unfit, InCompany: map[string]bool{}, Order: map[string]int{},
		},
	}
	r.plainly()
	for ref := range v.starting {
		r.budget.Send(ref)
	}
	r.next = setAside(v, r.budget, p.Join)
	for g := range r.next.byGPU {
		r.countNext(g)
	}
	r.explain = explainer{view: v, guard: guard, plan: r.plan}
	if in.Gate != "" && !in.Unproved || in.Shadow {
		r.makeWay()
		r.fillAll()
		r.takeBack()
		if p.AheadS > 0 {
			r.planAllAhead()
		}
	}
	r.makeAll()
	r.heedDeadlines()
	r.next.finish(r.plan)
	r.noteLimits()
	r.noteDelays()
	r.expect()
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
	next    *successors
	allot   allotter
	explain explainer
	storage []hiddenJob
	drafts  []*draft
	// mostLeft is how many more sets of jobs the guard may be asked about; see meets.
	mostLeft int
}

// startable lists the GPUs on which a job might start now: idle ones, then those with the
// most free shares; of equals those first that needn't be woken.
func (r *pass) startable() []int {
	var out []int
	for g := range r.State.GPUs {
		card := &r.State.GPUs[g]
		switch {
		case card.FreeShares() == 0, len(card.Running) > 0 && !r.Join, r.closed[g], r.settling(g):
		default:
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

// settling reports whether nothing may be released on a GPU for now: it isn't known yet on which of
// its node's GPUs a job runs.
func (r *pass) settling(g int) bool { return r.unsettled[r.gpus[g].node.Name] }

// fillAll decides what starts now. Where the guard doesn't allow a group on a GPU for those who are on
// other GPUs of its node, or no shares lead it there, other nodes have the next choice; then its node is asked
// again, of the jobs that are left. Where that leads nowhere a job that has the GPU to itself starts
// there, as with plain Slurm.
func (r *pass) fillAll() {
	left := r.startable()
	for placed := true; placed; {
		left, placed = r.fillSome(left)
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
		if len(card.Running) == 0 && stuck[like] {
			again = append(again, g)
			continue
		}
		isIdle := len(card.Running) == 0
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

// fill decides what starts on GPU g now. alone: where it can't be a group, one job may.
func (r *pass) fill(g int, alone bool) verdict {
	idle := len(r.State.GPUs[g].Running) == 0
	if r.settling(g) || idle && r.next.on(g) != nil { // a group is about to start there
		return later
	}
	if idle {
		r.next.rescue(r.Decider.Guard, g)
	}
	if r.next.mayStart(g) && !r.anyFor(g) {
		r.next.dissolveAll()
	}
	kind := job.Join
	if idle {
		kind = job.StartNow
	}
	c := r.choose(g, kind, nil)
	if len(c.jobs) == 0 {
		return later
	}
	why := r.make(g, kind, c, nil)
	if (why == refused || why == later && r.mostLeft < 0) && idle && alone {
		c.jobs, c.whole = c.jobs[:1], true
		c.passed = slices.DeleteFunc(c.passed, func(at int) bool { return at > c.jobs[0] })
		why = r.make(g, kind, c, nil)
	}
	return why
}

// anyFor reports whether a job of the queue might start on GPU g now.
func (r *pass) anyFor(g int) bool {
	defer r.show(r.hide(g, nil))
	return len(rlcore.NewWindow(nil, &r.State, g, 1).Jobs) > 0
}

// choice is what a policy chose for a GPU.
type choice struct {
	jobs   []int   // indexes in the queue, ascending
	score  float64 // of the first decision
	passed []int   // by it, if it is made: indexes in the queue, ascending
	whole  bool    // one job, which is to have all shares
}

// choose asks the policy what to put on GPU g, and what else next to that, until it wants
// nothing more: a policy that builds a group job by job gets to its end. leaving are the
// jobs that will have ended when these start.
func (r *pass) choose(g int, kind job.GroupKind, leaving []rlcore.Running) (c choice) {
	card := &r.State.GPUs[g]
	before := *card
	wide := r.Decider.M
	r.Decider.M = r.width(g, kind)
	defer func() { r.Decider.M = wide }()
	out := r.hide(g, leaving)
	for {
		dec := r.Decider.Decide(&r.State, g)
		if dec.Broken {
			r.plan.Broken++
		}
		r.explain.explain(&dec, kind)
		if dec.Combo == 0 {
			break
		}
		if len(c.jobs) == 0 {
			c.score = dec.Score
		}
		for _, i := range r.Decider.Guard.Passed(nil, &dec.Window, dec.Combo) {
			c.passed = append(c.passed, dec.Window.Jobs[i])
		}
		card.Running = slices.Clone(card.Running)
		for _, at := range dec.Jobs() {
			j := &r.State.Pending[at]
			c.jobs = append(c.jobs, at)
			enter(card, rlcore.Running{Job: *j, Shares: 1})
			r.State.Changed(g)
			out = append(out, hiddenJob{at, j.GPUs})
			j.GPUs = noGPU[:] // not in the next window
		}
		if !r.Join {
			break
		}
	}
	*card = before
	r.State.Changed(g)
	r.show(out)
	slices.Sort(c.jobs)
	slices.Sort(c.passed)
	// A later decision may have taken one along.
	c.passed = slices.DeleteFunc(slices.Compact(c.passed), func(at int) bool { return slices.Contains(c.jobs, at) })
	return c
}

// width is how many waiting jobs the decision for GPU g looks at. Where other GPUs of the node are
// idle as well it is as many as fill the GPU, and one to choose: which GPU a job gets follows from the order of
// the queue, and neighbours there can be led to one GPU, whoever else starts with them.
func (r *pass) width(g int, kind job.GroupKind) int {
	idle := 0
	for _, k := range r.nodes[r.gpus[g].node.Name] {
		if len(r.State.GPUs[k].Running) == 0 && !r.closed[k] {
			idle++
		}
	}
	if kind != job.StartNow || idle < 2 {
		return r.Decider.M
	}
	return min(r.Window(), r.Decider.Guard.Members(&r.State.GPUs[g].Spec)+1)
}

// mostAhead is how many groups that follow are made in one plan. Each is several updates of Slurm, and
// whoever could start on a GPU that becomes idle waits for them; the others are made in the next plans.
const mostAhead = 100

// DefaultAheadS is the default of Planner.AheadS. Jobs also end before they are expected to, and then the group that
// was prepared starts, whoever goes before it by then: the sooner it is prepared, the longer others may have to wait
// for another GPU. Where none is prepared a GPU waits for one look.
const DefaultAheadS = 600

// planAllAhead decides what follows on the busy GPUs, of which those come first that are free first: so
// that the first in the queue start first.
func (r *pass) planAllAhead() {
	var busy []int
	free := make([]float64, len(r.State.GPUs))
	for g := range r.State.GPUs {
		if len(r.State.GPUs[g].Running) > 0 && !r.closed[g] && !r.settling(g) {
			busy, free[g] = append(busy, g), r.Decider.Guard.FreeInS(&r.State, g)
		}
	}
	slices.SortStableFunc(busy, func(a, b int) int { return cmp.Compare(free[a], free[b]) })
	left := mostAhead
	starting, stuck := map[string]bool{}, map[string]bool{} // nodes
	for _, d := range r.drafts {
		starting[d.group.Node] = len(r.nodes[d.group.Node]) > 1
	}
	for _, g := range busy {
		node := r.gpus[g].node.Name
		if old := r.next.on(g); (left <= 0 || stuck[node] || free[g] > r.AheadS) && (old == nil || r.staysApart(old, g)) {
			r.reserve(g)
			continue
		}
		before := len(r.drafts)
		why := r.planAhead(g, free[g])
		left -= len(r.drafts) - before
		// Those that start there in this plan may still meet many, until it is known on which GPUs they are.
		stuck[node] = stuck[node] || why != placed && starting[node]
	}
}

// planAhead decides what follows on a busy GPU, which is emptied for the decision and free in so many
// seconds. placed: what was wanted is there.
func (r *pass) planAhead(g int, free float64) (why verdict) {
	card := &r.State.GPUs[g]
	running, before := card.Running, *card
	var after []string
	for i := range running {
		after = append(after, running[i].ID)
		leave(card, running[i].CPUs, running[i].HostMemMiB)
	}
	card.Running, card.AfterS, card.NextS = nil, free, 0
	r.State.Changed(g)
	if old := r.next.on(g); old == nil || r.couldExtend(old, g, running) || !r.staysApart(old, g) {
		taken := r.next.dissolve(old) // if it is chosen again, it stays as it is
		if c := r.choose(g, job.Next, running); len(c.jobs) > 0 {
			why = r.make(g, job.Next, c, after)
		}
		if why != placed && old != nil && r.staysSafe(old) {
			r.next.retake(old, g, taken)
		}
	}
	*card = before
	r.countNext(g)
	r.reserve(g)
	return why
}

// following are the jobs that follow on GPU g, as members of their group.
func (r *pass) following(g int) (group *job.Group, jobs []rlcore.Running) {
	if group = r.next.on(g); group != nil {
		for _, j := range r.next.waiting(group) {
			jobs = append(jobs, rlcore.Running{Job: j})
		}
		return group, jobs
	}
	for _, d := range r.drafts {
		if d.gpu == g && !d.now() {
			return &d.group, d.jobs
		}
	}
	return nil, nil
}

// countNext brings up to date when those that follow on GPU g must start, and will have ended.
func (r *pass) countNext(g int) {
	group, jobs := r.following(g)
	if group == nil {
		r.view.next(g, 0, 0)
		return
	}
	guard := r.Decider.Guard
	// Those before them may take longer than was expected.
	end := guard.FreeInS(&r.State, g) + (&rlcore.GPU{Running: jobs}).EmptyInS()
	for i := range group.Members {
		end = max(end, tracker.Seconds(group.Members[i].ExpectedEnd)-r.State.NowS)
	}
	by := math.Inf(1)
	for _, s := range guard.LatestStarts(nil, &r.State, &r.State.GPUs[g].Spec, jobs) {
		by = min(by, s)
	}
	r.view.next(g, end, by)
}

// reserve keeps cores and memory of a node with several GPUs for the group that follows on GPU g,
// beyond what those before it leave.
func (r *pass) reserve(g int) {
	gpus := r.nodes[r.gpus[g].node.Name]
	if len(gpus) == 1 {
		return
	}
	cpus, mem := 0, 0.0
	_, next := r.following(g)
	for i := range next {
		cpus, mem = cpus+next[i].CPUs, mem+next[i].HostMemMiB
	}
	for i := range r.State.GPUs[g].Running {
		x := &r.State.GPUs[g].Running[i]
		cpus, mem = cpus-x.CPUs, mem-x.HostMemMiB
	}
	r.take(gpus, max(0, cpus), max(0, mem))
}

// make turns a choice into a draft and takes its jobs out of the queue. A group that can't be sure of
// its GPU, or whose members could meet jobs that they may not share with, is not made.
func (r *pass) make(g int, kind job.GroupKind, c choice, after []string) verdict {
	passed := make([]string, len(c.passed)) // the queue is another one afterwards
	for i, at := range c.passed {
		passed[i] = r.State.Pending[at].ID
	}
	why := r.makeDraft(g, kind, c, after)
	if why != placed {
		return why
	}
	for _, ref := range passed {
		r.plan.Passed[ref]++
	}
	return placed
}

func (r *pass) makeDraft(g int, kind job.GroupKind, c choice, after []string) verdict {
	free := r.State.GPUs[g].FreeShares()
	if len(c.jobs) == 0 || free < len(c.jobs) {
		return refused
	}
	d := r.draft(g, kind, c, after)
	if len(r.nodes[d.group.Node]) == 1 {
		for i, s := range r.allot.alone(g, kind, c.jobs) {
			d.give(i, s)
		}
	} else {
		if !c.whole {
			d.spare = free - r.allot.withRoom(g, free, kind, c.jobs)
		}
		if why := r.place(d); why != placed {
			return why
		}
	}
	if old := r.next.unchanged(&d.group); old != nil {
		r.next.keep(old, g)
		r.dequeue(c.jobs)
		return placed
	}
	r.drafts = append(r.drafts, d)
	r.dequeue(c.jobs)
	if kind == job.Next {
		return placed
	}
	for i := range d.jobs {
		r.budget.Send(d.jobs[i].ID)
		r.enter(d.gpu, d.jobs[i])
	}
	if len(r.nodes[d.group.Node]) > 1 {
		r.reseat(d.group.Node)
	}
	r.next.dissolve(r.next.on(g))
	return placed
}

// reseat brings the State's GPUs of a node up to date with the drafts, whose shares and GPUs may have
// changed.
func (r *pass) reseat(node string) {
	for _, g := range r.nodes[node] {
		r.State.GPUs[g].Running = r.seated[g]
		r.State.Changed(g)
	}
	for _, d := range r.drafts {
		if d.group.Node == node && d.now() {
			card := &r.State.GPUs[d.gpu]
			card.Running = slices.Concat(card.Running, d.jobs)
		}
	}
}

// makeAll makes the drafts' changes.
func (r *pass) makeAll() {
	for _, d := range r.drafts {
		group := &d.group
		pg := release.Make(group, release.Making{
			Jobs: r.jobs, Sharing: r.gpus[d.gpu].node.Sharing, Gate: r.in.Gate,
			Waits: func(ref string) (*job.Group, *job.Member) { return r.successor[ref], r.seats[ref].Member },
		})
		for i := range group.Members {
			ref := group.Members[i].Ref
			if old := r.successor[ref]; old != nil && !slices.Contains(pg.Leaves, old.Addr()) {
				pg.Leaves = append(pg.Leaves, old.Addr())
			}
			if e := r.plan.Explanations[ref]; e != nil && d.now() {
				e.Status = startsNow(r.gpus[d.gpu])
			}
		}
		r.plan.Groups = append(r.plan.Groups, pg)
	}
	r.order()
}

// order notes in which order Slurm will consider the members that start now on nodes with several GPUs.
func (r *pass) order() {
	var refs []string
	for _, d := range r.drafts {
		if d.now() && len(r.nodes[d.group.Node]) > 1 {
			refs = append(refs, d.group.Refs()...)
		}
	}
	slices.SortFunc(refs, func(a, b string) int { return byPriority(r.jobs[a], r.jobs[b]) })
	for i, ref := range refs {
		r.plan.Order[ref] = i
	}
}

// draft is the group of a choice, but for its shares.
func (r *pass) draft(g int, kind job.GroupKind, c choice, after []string) *draft {
	card, ref, n := &r.State.GPUs[g], r.gpus[g], len(c.jobs)
	d := &draft{gpu: g, id: -1 - int64(len(r.drafts)), group: job.Group{
		Kind: kind, State: job.Preparing, Node: ref.node.Name, GPU: ref.index,
		After: after, Decided: r.in.Snap.At, Score: c.score, Policy: r.Decider.Policy.Name(),
		// A job that starts alone on an idle GPU could do so anywhere, but with other nodes
		// there it might take a GPU that another group was sent to. One that waits alone is
		// not bound: its node may go out of service before it starts.
		Pinned: n > 1 || kind == job.Join || kind == job.StartNow && len(r.in.Snap.Nodes) > 1,
	}}
	predicted := r.predict(r.Decider.Guard.Predictor, card, c.jobs)
	profiles := make([]*rlcore.Profile, n)
	for i, at := range c.jobs {
		profiles[i] = r.State.Pending[at].Profile
	}
	limits := r.Decider.Guard.MemoryLimits(card, profiles)
	for i, at := range c.jobs {
		j := &r.State.Pending[at]
		m := job.Member{
			Ref: j.ID, User: j.User, App: r.in.Apps[j.ID].Key, MemMiB: int64(limits[i]), State: job.MemberPrepared,
			WasGres: release.WholeGPU(ref.node.Sharing), WasNodes: r.jobs[j.ID].ReqNodes,
		}
		if r.successor[j.ID] != nil {
			was := r.seats[j.ID].Member
			m.WasGres, m.WasNodes = was.WasGres, was.WasNodes
		}
		m.PlainEnd = tracker.Time(j.PlainEndS)
		if e := r.plan.Explanations[j.ID]; e != nil {
			m.ExpectedEnd = e.ExpectedEnd
		}
		if predicted != nil {
			m.Predicted = predicted[len(card.Running)+i].Slowdown
		}
		d.group.Members = append(d.group.Members, m)
		d.jobs = append(d.jobs, rlcore.Running{Job: *j, MemLimitMiB: limits[i]})
		d.group.MadeAtLimit = d.group.MadeAtLimit || kind == job.Next && r.budget.Limited(j.ID)
	}
	return d
}

// hiddenJob is a job of the queue that is kept out of decisions, and the GPUs that it may
// use.
type hiddenJob struct {
	at   int
	gpus []int
}

// noGPU are the GPUs of a hidden job: none, where nil would be all.
var noGPU [0]int

// hide keeps the jobs that are over a limit out of the decisions on GPU g, as far as those
// look into the queue, until show. leaving are jobs that will have ended by then.
func (r *pass) hide(g int, leaving []rlcore.Running) []hiddenJob {
	out := r.storage[:0]
	r.storage = nil
	seen := 0
	r.walkLimits(leaving, r.State.GPUs[g].Node, func(at int, by *limit.Limit) bool {
		j := &r.State.Pending[at]
		switch {
		case by != nil:
			out = append(out, hiddenJob{at, j.GPUs})
			j.GPUs = noGPU[:]
		case j.MayUse(g):
			seen++
		}
		return seen < r.Window()+rlcore.MaxWindow
	})
	return out
}

// show ends hide.
func (r *pass) show(all []hiddenJob) {
	for _, h := range all {
		r.State.Pending[h.at].GPUs = h.gpus
	}
	r.storage = all
}

// walkLimits calls f with each job of the queue and the limit that it is over.
func (r *pass) walkLimits(leaving []rlcore.Running, node string, f func(at int, by *limit.Limit) bool) {
	if !r.budget.Binds(node) {
		return
	}
	gone := make([]string, len(leaving))
	for i := range leaving {
		gone[i] = leaving[i].ID
	}
	r.budget.Walk(len(r.State.Pending), func(i int) string { return r.State.Pending[i].ID }, gone, node, f)
}

// noteLimits says which limit keeps jobs of the queue from being tried.
func (r *pass) noteLimits() {
	texts := map[*limit.Limit]string{} // many jobs are over one limit
	r.walkLimits(nil, "", func(at int, by *limit.Limit) bool {
		if by != nil {
			if texts[by] == "" {
				texts[by] = by.Text(r.in.Snap.At)
			}
			r.plan.Limited[r.State.Pending[at].ID] = texts[by]
		}
		return true
	})
}

// heedDeadlines ungates the jobs that Slurm might cancel behind the gate: it does once a job's
// limit doesn't fit before its deadline, and if the bridge died now, the gate would hold the
// job beyond that.
func (r *pass) heedDeadlines() {
	for i := range r.State.Pending {
		j := &r.State.Pending[i]
		if j.DeadlineS > 0 && r.successor[j.ID] == nil && j.DeadlineS-j.LimitS-r.State.NowS < r.in.HoldS {
			r.letGo(r.jobs[j.ID], job.UnfitDeadline, "")
		}
	}
}

// noteDelays finds the jobs that wait although a GPU which they may use is idle. Those that
// have waited so for too long are ungated.
func (r *pass) noteDelays() {
	for i := range r.State.Pending {
		j := &r.State.Pending[i]
		if r.plan.Limited[j.ID] != "" || !r.idleFor(j) {
			continue // it isn't the bridge that keeps it waiting
		}
		r.plan.Idle[j.ID] = true
		if j.DelayedS >= r.Decider.Guard.DelayLimitS() && !r.in.Shadow && r.successor[j.ID] == nil {
			r.letGo(r.jobs[j.ID], job.UnfitDelay, "")
		}
	}
}

// idleFor reports whether a GPU that the job may use is idle. Where all idle ones are
// closed to it, it is limited.
func (r *pass) idleFor(j *rlcore.Job) bool {
	closed := ""
	for g := range r.State.GPUs {
		card := &r.State.GPUs[g]
		if len(card.Running) > 0 || !j.MayUse(g) || r.next.on(g) != nil {
			continue
		}
		by := r.budget.ClosedTo(j.ID, card.Node)
		if by == nil {
			return true
		}
		closed = by.Text(r.in.Snap.At)
	}
	if closed != "" {
		r.plan.Limited[j.ID] = closed
	}
	return false
}
