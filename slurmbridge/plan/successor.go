package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/limit"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

// successors are the groups that wait for a busy GPU and stay as they are in this plan.
// Their members are out of the queue; they come back only when a GPU would otherwise
// stand idle, or when their group can't stay.
type successors struct {
	view   *view
	budget *limit.Budget
	join   bool
	kept   map[int64]bool
	byGPU  map[int]*job.Group
	aside  map[string]rlcore.Job // the members, by ref
	gone   []dissolved           // by dissolveAll
}

// dissolved is a successor that was taken back into the queue.
type dissolved struct {
	group   *job.Group
	gpu     int
	members []rlcore.Job
}

// on returns the successor on GPU g, nil = none.
func (s *successors) on(g int) *job.Group { return s.byGPU[g] }

func (s *successors) keep(group *job.Group, g int) { s.kept[group.ID], s.byGPU[g] = true, group }

// dissolveAll takes the members of all successors back into the queue.
func (s *successors) dissolveAll() {
	for g, group := range s.byGPU {
		s.gone = append(s.gone, dissolved{group, g, s.waiting(group)})
		s.view.next(g, 0, 0)
	}
	s.view.requeue(slices.Collect(maps.Values(s.aside))...)
	clear(s.aside)
	clear(s.kept)
	clear(s.byGPU)
}

// waiting are the members of a successor that are out of the queue.
func (s *successors) waiting(group *job.Group) []rlcore.Job {
	var out []rlcore.Job
	for i := range group.Members {
		if j, ok := s.aside[group.Members[i].Ref]; ok {
			out = append(out, j)
		}
	}
	return out
}

// takeBack undoes dissolveAll for the successors whose members are all still in the queue: what was decided since they
// were made counts on them. Where anybody starts on their node in this plan they aren't: he wasn't checked with them.
func (r *pass) takeBack() {
	starting := map[string]bool{} // nodes
	for _, d := range r.drafts {
		starting[d.group.Node] = true
	}
	queued := map[string]bool{}
	for i := range r.State.Pending {
		queued[r.State.Pending[i].ID] = true
	}
	for _, d := range r.next.gone {
		if !starting[d.group.Node] && r.next.on(d.gpu) == nil &&
			!slices.ContainsFunc(d.members, func(j rlcore.Job) bool { return !queued[j.ID] }) {
			r.next.retake(d.group, d.gpu, d.members)
			r.countNext(d.gpu)
		}
	}
	r.next.gone = nil
}

// setAside takes the members of the successors that stay out of the queue.
func setAside(v *view, budget *limit.Budget, join bool) *successors {
	s := &successors{view: v, budget: budget, join: join, kept: map[int64]bool{}, byGPU: map[int]*job.Group{}, aside: map[string]rlcore.Job{}}
	for _, id := range v.in.Tracker.GroupIDs() {
		group := v.in.Tracker.Groups[id]
		g, inService := v.index[group.Addr()]
		if !inService || !slices.ContainsFunc(group.Members, func(m job.Member) bool { return v.successor[m.Ref] == group }) || !s.stays(group, g) {
			continue
		}
		s.keep(group, g)
		for k := range group.Members {
			if ref := group.Members[k].Ref; v.successor[ref] == group && len(v.State.GPUs[g].Running) == 0 {
				budget.Send(ref)
			}
		}
	}
	v.State.Pending = slices.DeleteFunc(v.State.Pending, func(j rlcore.Job) bool {
		group := v.successor[j.ID]
		if group == nil || !s.kept[group.ID] {
			return false
		}
		s.aside[j.ID] = j
		return true
	})
	return s
}

// stays reports whether a successor is left as it is: the jobs on GPU g are those that it
// waits for, and nothing could join them.
func (s *successors) stays(group *job.Group, g int) bool {
	card := &s.view.State.GPUs[g]
	for _, ref := range group.After {
		if j := s.view.jobs[ref]; j != nil && j.State == job.Pending && !s.view.starting[ref] {
			return false // requeued: the group would wait for its next run
		}
	}
	if len(card.Running) == 0 {
		return true // it starts any moment now
	}
	if slices.ContainsFunc(card.Running, func(x rlcore.Running) bool { return !slices.Contains(group.After, x.ID) }) {
		return false
	}
	if group.MadeAtLimit && !slices.ContainsFunc(group.Refs(), s.budget.Limited) {
		return false
	}
	return !s.join || card.FreeShares() == 0 || len(card.Running) == len(group.After)
}

// dissolve takes a successor's members back into the queue, and returns them.
func (s *successors) dissolve(group *job.Group) []rlcore.Job {
	if group == nil {
		return nil
	}
	g := s.view.index[group.Addr()]
	delete(s.kept, group.ID)
	delete(s.byGPU, g)
	s.view.next(g, 0, 0)
	back := s.waiting(group)
	for i := range back {
		delete(s.aside, back[i].ID)
	}
	s.view.requeue(back...)
	return back
}

// retake undoes dissolve.
func (s *successors) retake(group *job.Group, g int, members []rlcore.Job) {
	s.keep(group, g)
	for i := range members {
		s.aside[members[i].ID] = members[i]
	}
	s.view.State.Pending = slices.DeleteFunc(s.view.State.Pending, func(j rlcore.Job) bool { _, ok := s.aside[j.ID]; return ok })
}

// rescue takes the successors of other GPUs back into the queue of which a member would miss
// its due there, and could start at once on GPU g, which is idle.
func (s *successors) rescue(guard *rlcore.Guard, g int) {
	for _, id := range s.view.in.Tracker.GroupIDs() {
		group := s.view.in.Tracker.Groups[id]
		if !s.kept[id] || s.byGPU[g] == group {
			continue
		}
		own := s.view.index[group.Addr()]
		for i := range group.Members {
			m := &group.Members[i]
			j, ok := s.aside[m.Ref]
			if ok && j.MayUse(g) && s.budget.MaySend(m.Ref, s.view.State.GPUs[g].Node) && !guard.InTime(&s.view.State, own, &j, m.Predicted) {
				s.dissolve(group)
				break
			}
		}
	}
}

// mayStart reports whether a member of a successor could start at once on GPU g, as far as
// its owner and limits go.
func (s *successors) mayStart(g int) bool {
	for ref, j := range s.aside {
		if j.MayUse(g) && s.budget.MaySend(ref, s.view.State.GPUs[g].Node) {
			return true
		}
	}
	return false
}

// couldExtend reports whether a job of the queue could start together with the successor
// on GPU g, which is taken to be empty.
func (r *pass) couldExtend(group *job.Group, g int, leaving []rlcore.Running) bool {
	alone := rlcore.State{NowS: r.State.NowS, GPUs: []rlcore.GPU{r.State.GPUs[g]}}
	for _, ref := range group.Refs() {
		j, ok := r.next.aside[ref]
		if !ok {
			return false
		}
		j.GPUs = nil
		alone.Pending = append(alone.Pending, j)
	}
	n := len(alone.Pending)
	if n >= r.Decider.Guard.Members(&r.State.GPUs[g].Spec) {
		return false
	}
	all := rlcore.Window{State: &alone}
	for i := range n + 1 {
		all.Jobs = append(all.Jobs, i)
	}
	defer r.show(r.hide(g, leaving))
	for _, at := range rlcore.NewWindow(nil, &r.State, g, r.Window()).Jobs {
		j := r.State.Pending[at]
		j.GPUs = nil
		alone.Pending = append(alone.Pending[:n], j)
		if r.Decider.Guard.Check(&all, 1<<(n+1)-1) == rlcore.Allowed {
			return true
		}
	}
	return false
}

// unchanged returns the released successor that a newly decided one equals, nil = none.
func (s *successors) unchanged(group *job.Group) *job.Group {
	old := s.view.successor[group.Members[0].Ref]
	if group.Kind != job.Next || old == nil || old.State != job.Released || old.Addr() != group.Addr() || old.Pinned != group.Pinned {
		return nil
	}
	stillThere := func(ref string) bool { return s.view.jobs[ref] != nil } // one was requeued, say
	for _, ref := range old.After {
		if stillThere(ref) && !slices.Contains(group.After, ref) {
			return nil
		}
	}
	for _, ref := range group.After {
		if !slices.Contains(old.After, ref) {
			return nil
		}
	}
	if len(old.Refs()) != len(group.Members) {
		return nil
	}
	for i := range group.Members {
		m := &group.Members[i]
		if s.view.successor[m.Ref] != old || s.view.seats[m.Ref].Member.Shares != m.Shares {
			return nil
		}
	}
	return old
}

// finish pushes the successors whose GPU is free, and puts the members of those
// that were given up behind the gate again.
func (s *successors) finish(p *job.Plan) {
	v := s.view
	left := map[string]bool{}
	for i := range v.State.Pending {
		left[v.State.Pending[i].ID] = true
	}
	for _, id := range v.in.Tracker.GroupIDs() {
		group := v.in.Tracker.Groups[id]
		if s.kept[id] {
			s.push(p, group)
			continue
		}
		for i := range group.Members {
			m := &group.Members[i]
			if v.successor[m.Ref] != group || !left[m.Ref] {
				continue // not waiting, or in a group of this plan
			}
			p.Replanned[m.Ref] = true
			why := job.Cause{Kind: job.CauseReplanned}.String()
			p.Repairs = append(p.Repairs, release.Restore(group, m, v.jobs[m.Ref], v.in.Gate, why))
		}
	}
}

// pushAfter is how long Slurm has to start a successor by itself. It takes a tenth of a
// second where the end of a job makes Slurm look at its queue; where it doesn't (a full
// cycle just then, defer), up to its next interval, a minute.
const pushAfter = 500 * time.Millisecond

// push makes Slurm look at a successor whose GPU is free.
func (s *successors) push(p *job.Plan, group *job.Group) {
	g, inService := s.view.index[group.Addr()]
	if group.Pushed || group.Free.IsZero() || s.view.in.Snap.At.Sub(group.Free) < pushAfter || !inService || len(s.view.State.GPUs[g].Running) > 0 {
		return
	}
	var members []*job.Job
	for k := range group.Members {
		if ref := group.Members[k].Ref; s.view.successor[ref] == group {
			members = append(members, s.view.jobs[ref])
		}
	}
	if c, ok := release.Push(group, members); ok {
		p.Pushed[group.ID] = true
		p.Repairs = append(p.Repairs, c)
	}
}
