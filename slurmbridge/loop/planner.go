package loop

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Planner turns facts into a plan. It does no I/O, and the same facts make the
// same plan. It is not safe for concurrent use: the decider keeps scratch.
type Planner struct {
	Decider    *rlcore.Decider
	Partitions PartitionFilter
	// Join lets pending jobs join a GPU whose jobs left shares free.
	Join bool
	// Room leaves a share of the GPU free for a job that comes later, where one may
	// join.
	Room bool
	// Wanted is the configured policy; the decider's own is another after a fall back.
	Wanted string
	// Ahead prepares the next group of a busy GPU, so that no look lies between
	// two groups.
	Ahead bool
}

// Plan decides for every GPU of the look. Without a gate nobody could be put aside
// while groups are made, so none are.
//
// Idle GPUs come first, then those with free shares, then busy ones get the
// group that follows. On a node with several GPUs a group is only released where
// every member can land on one GPU alone: Slurm gives a share request the first
// GPU that has as much, and the bridge can't name one.
func (p *Planner) Plan(f *PlanInput) *job.Plan {
	b := build(f, &p.Partitions)
	plan := &job.Plan{
		At: f.Snap.At, Passed: map[string]int{}, Explanations: map[string]*job.Explanation{},
		State: cloneRunning(&b.State), Idle: map[string]bool{},
		Undone: map[string]bool{}, Pushed: map[int64]bool{}, Limited: map[string]string{},
	}
	r := &planPass{p: p, f: f, b: b, plan: plan, softJobs: map[string]rlcore.Job{}}
	r.findCapped()
	for ref := range b.due {
		r.send(ref)
	}
	r.shelve()
	if f.Gate != "" || f.Ungated {
		for _, g := range r.order() {
			r.fill(g)
		}
		if p.Ahead {
			for g := range b.State.GPUs {
				r.ahead(g)
			}
		}
	}
	r.finish()
	plan.Repairs = append(plan.Repairs, b.gating...)
	plan.Repairs = append(plan.Repairs, b.letGo...)
	return plan
}

// round is one Plan call.
type planPass struct {
	p    *Planner
	f    *PlanInput
	b    *clusterView
	plan *job.Plan
	// softJobs are the members of groups that wait for a GPU to become free and
	// may stay as they are; they are only touched when a GPU would stand idle
	// otherwise.
	softJobs map[string]rlcore.Job
	kept     map[int64]bool     // soft groups that stay as they are
	next     map[int]*job.Group // the same by GPU
	// capped holds the budgets of the classes at a limit that a pending job is in, by
	// ref; hidden is storage.
	capped  map[string][]*budget
	budgets []*budget
	hidden  []hidden
	shut    map[string]bool // nodes that are closed to somebody
}

// shelve takes the members of sticky groups out of the queue: groups that wait
// for exactly the jobs that run on their GPU now.
func (r *planPass) shelve() {
	r.kept, r.next = map[int64]bool{}, map[int]*job.Group{}
	for _, id := range r.f.Tracker.groupIDs() {
		g := r.f.Tracker.Groups[id]
		if g.Kind != job.Next || g.State == job.Done || !slices.ContainsFunc(g.Members, func(m job.Member) bool { return r.b.soft[m.Ref] == g }) {
			continue
		}
		if i := r.gpu(g); i >= 0 && r.sticky(g, i) {
			r.kept[id], r.next[i] = true, g
			for k := range g.Members {
				if ref := g.Members[k].Ref; r.b.soft[ref] == g && len(r.b.State.GPUs[i].Running) == 0 {
					r.send(ref)
				}
			}
		}
	}
	st := &r.b.State
	keep := st.Pending[:0]
	for _, j := range st.Pending {
		if g := r.b.soft[j.ID]; g != nil && r.kept[g.ID] {
			r.softJobs[j.ID] = j
			continue
		}
		keep = append(keep, j)
	}
	st.Pending = keep
}

// gpu is the index of a group's GPU, -1 = it isn't in service.
func (r *planPass) gpu(g *job.Group) int {
	if i, ok := r.b.at[job.GPUAddr{Node: g.Node, GPU: g.GPU}]; ok {
		return i
	}
	return -1
}

// sticky: the GPU's jobs are those the group waits for, and nothing could join
// them.
func (r *planPass) sticky(g *job.Group, i int) bool {
	card := &r.b.State.GPUs[i]
	for _, ref := range g.After {
		if j := r.b.jobs[ref]; j != nil && j.State == job.Pending && !r.b.due[ref] {
			return false // requeued: the group would wait for its next run
		}
	}
	if len(card.Running) == 0 {
		return true // it starts any moment now
	}
	running := 0
	for k := range card.Running {
		if !slices.Contains(g.After, card.Running[k].ID) {
			return false
		}
		running++
	}
	if g.Capped && !slices.ContainsFunc(g.Refs(), r.limited) {
		return false
	}
	return !r.p.Join || card.FreeShares() == 0 || running == len(g.After)
}

// order lists the GPUs on which something might start now: idle ones, then those
// with the most free shares, of equals those that nobody has to wake first.
func (r *planPass) order() []int {
	var out []int
	for g := range r.b.State.GPUs {
		card := &r.b.State.GPUs[g]
		free := card.FreeShares()
		if free == 0 || len(card.Running) > 0 && !r.p.Join {
			continue
		}
		if r.b.unsure[card.Node] && r.b.gpus[g].node.GPUs > 1 || r.b.undoing[g] {
			continue
		}
		out = append(out, g)
	}
	sort.SliceStable(out, func(a, b int) bool {
		ga, gb := &r.b.State.GPUs[out[a]], &r.b.State.GPUs[out[b]]
		if fa, fb := ga.FreeShares(), gb.FreeShares(); fa != fb {
			return fa > fb
		}
		return !r.b.gpus[out[a]].node.Asleep && r.b.gpus[out[b]].node.Asleep
	})
	return out
}

// fill decides what starts on GPU g now.
func (r *planPass) fill(g int) {
	card := &r.b.State.GPUs[g]
	if r.b.gpus[g].node.GPUs > 1 && r.b.unsure[card.Node] {
		return // another group was sent to this node in this very round
	}
	// A group that waits for this GPU alone is about to start on it.
	if len(card.Running) == 0 && r.successor(g) != nil {
		return
	}
	kind := job.StartNow
	if len(card.Running) > 0 {
		kind = job.Join
	}
	if r.softMayStart(g) && r.nobody(g) {
		r.unshelve()
	}
	if chosen, score := r.decide(g, kind, nil); len(chosen) > 0 {
		r.make(kind, g, chosen, score, nil)
	}
}

// nobody reports whether the queue has no job that might start on GPU g now.
func (r *planPass) nobody(g int) bool {
	hidden := r.hide(g, nil)
	defer r.show(hidden)
	return len(rlcore.NewWindow(nil, &r.b.State, g, 1).Jobs) == 0
}

// decide asks the policy what to put on GPU g, and what beside that, until it wants
// nothing more: one that builds a group job by job gets to the end of it. It returns
// the jobs' indexes in the queue, ascending, and the value of the first choice.
// leaving are the jobs that will have ended when these start.
func (r *planPass) decide(g int, kind job.GroupKind, leaving []rlcore.Running) (chosen []int, score float64) {
	st := &r.b.State
	card := &st.GPUs[g]
	before := *card
	out := r.hide(g, leaving)
	for {
		dec := r.p.Decider.Decide(st, g)
		r.count(&dec)
		r.note(&dec, kind)
		if dec.Combo == 0 {
			break
		}
		if len(chosen) == 0 {
			score = dec.Score
		}
		r.passed(&dec)
		card.Running = slices.Clone(card.Running)
		for _, at := range dec.Jobs() {
			j := &st.Pending[at]
			chosen = append(chosen, at)
			card.Running = append(card.Running, rlcore.Running{Job: *j, Shares: 1})
			card.FreeCPUs -= j.CPUs
			card.FreeHostMemMiB -= j.HostMemMiB
			out = append(out, hidden{at, j.GPUs})
			j.GPUs = nowhere[:] // not in the next window
		}
		if !r.p.Join {
			break
		}
	}
	*card = before
	r.show(out)
	slices.Sort(chosen)
	return chosen, score
}

// successor returns the kept group that waits for GPU g.
func (r *planPass) successor(g int) *job.Group { return r.next[g] }

// unshelve puts the sticky groups' members back into the queue: a GPU has free
// shares and nobody else is there to use them.
func (r *planPass) unshelve() {
	st := &r.b.State
	for _, j := range r.softJobs {
		st.Pending = append(st.Pending, j)
	}
	clear(r.softJobs)
	clear(r.kept)
	clear(r.next)
	r.b.sort(st.Pending)
}

// ahead decides what follows on a busy GPU.
func (r *planPass) ahead(g int) {
	card := &r.b.State.GPUs[g]
	ref := r.b.gpus[g]
	old := r.successor(g)
	if len(card.Running) == 0 || ref.node.GPUs > 1 || r.b.undoing[g] {
		return
	}
	var after []string
	running := card.Running
	for i := range running {
		after = append(after, running[i].ID)
		card.FreeCPUs += running[i].CPUs
		card.FreeHostMemMiB += running[i].HostMemMiB
	}
	card.Running = nil
	// What follows is no part of what runs.
	if old == nil || r.extends(old, g, running) {
		r.unkeep(old) // if it comes out as it was, it stays
		if chosen, score := r.decide(g, job.Next, running); len(chosen) > 0 {
			r.make(job.Next, g, chosen, score, after)
		}
	}
	card.Running = running
	for i := range running {
		card.FreeCPUs -= running[i].CPUs
		card.FreeHostMemMiB -= running[i].HostMemMiB
	}
}

// extends reports whether one of the queue could start together with a group that
// waits for GPU g, which is taken to be empty.
func (r *planPass) extends(old *job.Group, g int, leaving []rlcore.Running) bool {
	st := &r.b.State
	alone := rlcore.State{NowS: st.NowS, GPUs: []rlcore.GPU{st.GPUs[g]}}
	for _, ref := range old.Refs() {
		j, ok := r.softJobs[ref]
		if !ok {
			return false
		}
		j.GPUs = nil
		alone.Pending = append(alone.Pending, j)
	}
	n := len(alone.Pending)
	if n >= r.p.Decider.Guard.Members(&st.GPUs[g].Spec) {
		return false
	}
	hidden := r.hide(g, leaving)
	defer r.show(hidden)
	all := rlcore.Window{State: &alone}
	for i := range n + 1 {
		all.Jobs = append(all.Jobs, i)
	}
	for _, at := range rlcore.NewWindow(nil, st, g, r.p.window()).Jobs {
		j := st.Pending[at]
		j.GPUs = nil
		alone.Pending = append(alone.Pending[:n], j)
		if r.p.Decider.Guard.Check(&all, 1<<(n+1)-1) == rlcore.Allowed {
			return true
		}
	}
	return false
}

// window is how many waiting jobs a decision looks at.
func (p *Planner) window() int {
	if p.Decider.M == 0 {
		return 5
	}
	return p.Decider.M
}

func (r *planPass) count(dec *rlcore.Decision) {
	if dec.Broken {
		r.plan.Broken++
	}
}

// passed counts the jobs that a decision went past.
func (r *planPass) passed(dec *rlcore.Decision) {
	for _, i := range r.p.Decider.Guard.Passed(nil, &dec.Window, dec.Combo) {
		r.plan.Passed[dec.Window.Job(i).ID]++
	}
}

// make turns a decision into a group with its changes, and takes its jobs out of
// the queue. A group that can't be sure of its GPU is not made.
func (r *planPass) make(kind job.GroupKind, g int, chosen []int, score float64, after []string) {
	st := &r.b.State
	card := &st.GPUs[g]
	ref := r.b.gpus[g]
	n := len(chosen)
	free := card.FreeShares()
	shares, ok := r.shares(g, free, chosen, kind)
	if !ok {
		return
	}
	grp := job.Group{
		Kind: kind, State: job.Preparing, Node: ref.node.Name, GPU: ref.index,
		After: after, Decided: r.f.Snap.At, Score: score, Policy: r.p.Decider.Policy.Name(),
		// A job that starts alone on a GPU that is free could do so anywhere; with
		// other nodes about it might take a GPU that another group was sent to. One
		// that waits is not bound: its node may go out of service before it starts.
		Pinned: n > 1 || kind == job.Join || kind == job.StartNow && len(r.f.Snap.Nodes) > 1,
	}
	pred := r.predict(card, chosen)
	var joined []rlcore.Running
	for i, at := range chosen {
		j := &st.Pending[at]
		m := job.Member{
			Ref: j.ID, User: j.User, App: r.f.Apps[j.ID].Key, Shares: shares[i],
			WasGres: fmt.Sprintf("%s:%d", ref.node.Sharing, job.Units), WasNodes: r.b.jobs[j.ID].ReqNodes,
		}
		if old := r.b.soft[j.ID]; old != nil {
			om := r.b.seats[j.ID].member
			m.WasGres, m.WasNodes = om.WasGres, om.WasNodes
		}
		if pred != nil {
			m.Predicted = pred[len(card.Running)+i].Slowdown
		}
		grp.Members = append(grp.Members, m)
		joined = append(joined, rlcore.Running{Job: *j, Shares: shares[i]})
		grp.Capped = grp.Capped || kind == job.Next && r.limited(j.ID)
	}
	if old := r.waits(&grp); old != nil {
		// Planned anew, and nothing has come of it: it stays as it is.
		r.kept[old.ID], r.next[g] = true, old
		st.Pending = without(st.Pending, chosen)
		return
	}
	pg := job.PlannedGroup{Group: grp, Changes: r.changes(&grp)}
	for i := range grp.Members {
		if old := r.b.soft[grp.Members[i].Ref]; old != nil {
			if p := (job.GPUAddr{Node: old.Node, GPU: old.GPU}); !slices.Contains(pg.Leaves, p) {
				pg.Leaves = append(pg.Leaves, p)
			}
		}
	}
	r.plan.Groups = append(r.plan.Groups, pg)
	if kind != job.Next {
		for i := range joined {
			r.send(joined[i].ID)
			card.FreeCPUs -= joined[i].CPUs
			card.FreeHostMemMiB -= joined[i].HostMemMiB
		}
		card.Running = append(slices.Clone(card.Running), joined...)
		if ref.node.GPUs > 1 {
			r.b.unsure[card.Node] = true
		}
	}
	st.Pending = without(st.Pending, chosen)
	if kind != job.Next {
		r.unkeep(r.successor(g))
	}
}

// waits returns the group that waits already as this one is to, nil = none.
func (r *planPass) waits(g *job.Group) *job.Group {
	old := r.b.soft[g.Members[0].Ref]
	if g.Kind != job.Next || old == nil || old.State != job.Released || old.Node != g.Node || old.GPU != g.GPU || old.Pinned != g.Pinned ||
		len(old.Refs()) != len(g.Members) || slices.ContainsFunc(g.After, func(ref string) bool { return !slices.Contains(old.After, ref) }) {
		return nil
	}
	if slices.ContainsFunc(old.After, func(ref string) bool { return r.b.jobs[ref] != nil && !slices.Contains(g.After, ref) }) {
		return nil // one was requeued, say
	}
	for i := range g.Members {
		m := &g.Members[i]
		if r.b.soft[m.Ref] != old || r.b.seats[m.Ref].member.Shares != m.Shares {
			return nil
		}
	}
	return old
}

// without removes the jobs at the given ascending indexes from the queue, in its
// own storage. They are near its front, so that is where the rest moves.
func without(queue []rlcore.Job, at []int) []rlcore.Job {
	to := at[len(at)-1]
	for from, k := to, len(at)-1; from >= 0; from-- {
		if k >= 0 && from == at[k] {
			k--
			continue
		}
		queue[to] = queue[from]
		to--
	}
	return queue[to+1:]
}

// unkeep takes a group that waits for a GPU back into the queue: somebody has
// joined whom it doesn't wait for.
func (r *planPass) unkeep(g *job.Group) {
	if g == nil {
		return
	}
	delete(r.kept, g.ID)
	delete(r.next, r.gpu(g))
	st := &r.b.State
	for i := range g.Members {
		if j, ok := r.softJobs[g.Members[i].Ref]; ok {
			st.Pending = append(st.Pending, j)
			delete(r.softJobs, j.ID)
		}
	}
	r.b.sort(st.Pending)
}

// predict asks the guard's predictor about everybody on the card once the chosen
// have joined; nil where somebody is unknown.
func (r *planPass) predict(card *rlcore.GPU, chosen []int) []rlcore.Prediction {
	var members []*rlcore.Profile
	for i := range card.Running {
		members = append(members, card.Running[i].Profile)
	}
	for _, at := range chosen {
		members = append(members, r.b.State.Pending[at].Profile)
	}
	pr := r.p.Decider.Guard.Predictor
	if pr == nil || slices.Contains(members, nil) {
		return nil
	}
	out := make([]rlcore.Prediction, len(members))
	if len(members) == 1 {
		out[0].Slowdown = 1
		return out
	}
	pr.Predict(out, &card.Spec, members)
	return out
}

// changes are the updates that make a group of what its members are now:
// prepare where something differs, then one release for all.
func (r *planPass) changes(g *job.Group) []job.Change {
	deps := make([]string, len(g.After))
	for i, ref := range g.After {
		deps[i] = "afterany:" + ref
	}
	dep, gate := strings.Join(deps, ","), "after:"+r.f.Gate
	var out []job.Change
	names := make([]string, len(g.Members))
	for i := range g.Members {
		names[i] = g.Members[i].Ref
	}
	for i := range g.Members {
		m := &g.Members[i]
		j := r.b.jobs[m.Ref]
		gres := fmt.Sprintf("%s:%d", r.sharing(g.Node), m.Shares)
		nodes := m.WasNodes
		if g.Pinned {
			nodes = g.Node
		}
		u := job.Update{Jobs: []string{m.Ref}}
		if !sameGres(gres, j.Request) {
			u.Gres = &gres
		}
		if nodes != j.ReqNodes {
			u.ReqNodes = &nodes
		}
		if r.b.soft[m.Ref] != nil && r.f.Gate != "" {
			// It waits for other jobs, which may end before it is released: then it would
			// start beside whoever leaves room for its new shares, or is sent to its old GPU.
			u.Dependency = &gate
		}
		if u.Gres == nil && u.ReqNodes == nil && u.Dependency == nil {
			continue
		}
		was := describe(j)
		// One update for all members that get the same.
		if k := slices.IndexFunc(out, func(c job.Change) bool {
			return equal(c.Update.Gres, u.Gres) && equal(c.Update.ReqNodes, u.ReqNodes) && equal(c.Update.Dependency, u.Dependency)
		}); k >= 0 {
			out[k].Update.Jobs = append(out[k].Update.Jobs, m.Ref)
			out[k].Was[m.Ref] = was
			continue
		}
		out = append(out, job.Change{Step: "prepare", Update: u, Was: map[string]string{m.Ref: was}})
	}
	was := map[string]string{}
	for _, ref := range names {
		was[ref] = describe(r.b.jobs[ref])
	}
	why := fmt.Sprintf("alone on %s gpu %d", g.Node, g.GPU)
	switch {
	case g.Kind == job.Join:
		why = fmt.Sprintf("join %s gpu %d", g.Node, g.GPU)
	case len(g.Members) > 1:
		why = fmt.Sprintf("together on %s gpu %d", g.Node, g.GPU)
	}
	if g.Kind == job.Next {
		why += ", after " + strings.Join(g.After, ",")
	}
	return append(out, job.Change{
		Step: "release", Why: why, Was: was,
		Update: job.Update{Jobs: names, Dependency: &dep, StartNow: g.Kind != job.Next},
	})
}

func (r *planPass) sharing(node string) job.Sharing {
	for i := range r.f.Snap.Nodes {
		if r.f.Snap.Nodes[i].Name == node {
			return r.f.Snap.Nodes[i].Sharing
		}
	}
	return job.MPS
}

func equal(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

// replanned is why a member of a waiting group goes back behind the gate.
const replanned = "its group was planned anew"

// pushAfter is how long Slurm has to start a waiting group by itself. It takes a
// tenth of a second where the end of a job makes it look at its queue; where it
// doesn't (a full cycle just then, defer), up to its next interval, a minute.
const pushAfter = 500 * time.Millisecond

// push has Slurm look at a kept group whose GPU is free.
func (r *planPass) push(g *job.Group) {
	i := r.gpu(g)
	if g.Free.IsZero() || r.f.Snap.At.Sub(g.Free) < pushAfter || g.Pushed || i < 0 || len(r.b.State.GPUs[i].Running) > 0 {
		return
	}
	dep := ""
	c := job.Change{
		Step: "release", Why: fmt.Sprintf("%s gpu %d is free", g.Node, g.GPU), Was: map[string]string{},
		Update: job.Update{Dependency: &dep, StartNow: true},
	}
	for k := range g.Members {
		if ref := g.Members[k].Ref; r.b.soft[ref] == g && startable(r.b.jobs[ref]) {
			c.Update.Jobs = append(c.Update.Jobs, ref)
			c.Was[ref] = describe(r.b.jobs[ref])
		}
	}
	if len(c.Update.Jobs) > 0 {
		r.plan.Pushed[g.ID] = true
		r.plan.Repairs = append(r.plan.Repairs, c)
	}
}

// finish settles what the round leaves over: soft members that lost their group
// go back behind the gate, and jobs kept waiting beside an idle GPU are counted
// or, past their time, let go.
func (r *planPass) finish() {
	st := &r.b.State
	left := map[string]bool{}
	for i := range st.Pending {
		left[st.Pending[i].ID] = true
	}
	for _, id := range r.f.Tracker.groupIDs() {
		g := r.f.Tracker.Groups[id]
		if r.kept[id] {
			r.push(g)
		}
		if g.Kind != job.Next || r.kept[id] {
			continue
		}
		for i := range g.Members {
			m := &g.Members[i]
			if r.b.soft[m.Ref] != g || !left[m.Ref] {
				continue // not waiting, or in a group of this plan
			}
			r.plan.Undone[m.Ref] = true
			r.plan.Repairs = append(r.plan.Repairs, restore(g, m, r.b.jobs[m.Ref], r.f.Gate, replanned))
		}
	}
	texts := map[*limit]string{} // many jobs are beyond one limit
	text := func(l *limit) string {
		if texts[l] == "" {
			texts[l] = l.text(r.f.Snap.At)
		}
		return texts[l]
	}
	r.beyond(nil, "", func(at int, l *limit) bool {
		if l != nil {
			r.plan.Limited[st.Pending[at].ID] = text(l)
		}
		return true
	})
	limit := r.p.Decider.Guard.DelayLimitS()
	for i := range st.Pending {
		j := &st.Pending[i]
		if r.plan.Limited[j.ID] != "" {
			continue // not the bridge keeps it waiting
		}
		for g := range st.GPUs {
			card := &st.GPUs[g]
			if len(card.Running) > 0 || !j.MayUse(g) || r.successor(g) != nil {
				continue
			}
			if l := r.closedTo(j.ID, card.Node); l != nil {
				r.plan.Limited[j.ID] = text(l)
				continue
			}
			delete(r.plan.Limited, j.ID)
			r.plan.Idle[j.ID] = true
			if j.DelayedS >= limit && !r.f.Ungated && r.b.soft[j.ID] == nil {
				r.b.release(r.f, r.b.jobs[j.ID], "the bridge has kept it waiting long enough")
			}
			break
		}
	}
}

// note keeps, for `why`, what a decision considered.
func (r *planPass) note(dec *rlcore.Decision, kind job.GroupKind) {
	w := &dec.Window
	ref := r.b.gpus[w.GPU]
	limit := r.p.Decider.Guard.DelayLimitS()
	for i := range w.Jobs {
		j := w.Job(i)
		n := r.plan.Explanations[j.ID]
		if n == nil {
			n = &job.Explanation{
				At: r.f.Snap.At, Ref: j.ID, App: r.f.Apps[j.ID].Key, Known: j.Profile != nil,
				LatestDelayS: max(0, limit-j.DelayedS), PassedOver: j.PassedOver, FreeInS: -1,
				Ignored: r.f.Terms[j.ID].Ignored,
			}
			r.plan.Explanations[j.ID] = n
		}
		if t := r.plan.State.GPUs[w.GPU].EmptyInS(); n.FreeInS < 0 && t < math.MaxFloat64 || t < n.FreeInS {
			n.FreeInS = t
		}
		best := make([]int, 0, len(dec.Combos))
		for k, c := range dec.Combos {
			if c.Has(i) {
				best = append(best, k)
			}
		}
		sort.SliceStable(best, func(a, b int) bool { return dec.Scores[best[a]] > dec.Scores[best[b]] })
		for _, k := range best[:min(3, len(best))] {
			c := job.Considered{Node: ref.node.Name, GPU: ref.index, Value: dec.Scores[k], Taken: dec.Combos[k] == dec.Combo}
			var chosen []int
			for x := range w.Jobs {
				if dec.Combos[k].Has(x) {
					c.Jobs = append(c.Jobs, w.Job(x).ID)
					chosen = append(chosen, w.Jobs[x])
				}
			}
			card := w.Card()
			if pred := r.predict(card, chosen); pred != nil {
				for x := range chosen {
					c.Slowdown = append(c.Slowdown, pred[len(card.Running)+x].Slowdown)
				}
			}
			if len(n.Considered) < 9 {
				n.Considered = append(n.Considered, c)
			}
		}
		if why := r.p.Decider.Guard.Check(w, 1<<i); why != rlcore.Allowed && len(n.Refused) < 9 {
			n.Refused = append(n.Refused, job.Refusal{Node: ref.node.Name, GPU: ref.index, Reason: why})
		}
		for x := range w.Jobs {
			if x == i {
				continue
			}
			if why := r.p.Decider.Guard.Check(w, 1<<i|1<<x); why != rlcore.Allowed && len(n.Refused) < 9 {
				n.Refused = append(n.Refused, job.Refusal{With: []string{w.Job(x).ID}, Node: ref.node.Name, GPU: ref.index, Reason: why})
			}
		}
		switch {
		case dec.Combo.Has(i) && kind == job.Next:
			n.Status = fmt.Sprintf("starts on %s gpu %d when the jobs there have ended", ref.node.Name, ref.index)
		case dec.Combo.Has(i):
			n.Status = fmt.Sprintf("starts now on %s gpu %d", ref.node.Name, ref.index)
		case n.Status == "":
			n.Status = "waits for a GPU: others come first on " + ref.node.Name
		}
	}
}

func cloneRunning(s *rlcore.State) *rlcore.State {
	c := &rlcore.State{NowS: s.NowS, GPUs: slices.Clone(s.GPUs)}
	return c
}
