package plan

import (
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

// successors are the groups that wait for a busy GPU and stay as they are in this plan.
// Their members are out of the queue; they come back only when a GPU would otherwise
// stand idle, or when their group can't stay.
type successors struct {
	kept  map[int64]bool
	byGPU map[int]*job.Group
	aside map[string]rlcore.Job // the members, by ref
}

// on returns the successor on GPU g, nil = none.
func (s *successors) on(g int) *job.Group { return s.byGPU[g] }

func (s *successors) keep(group *job.Group, g int) { s.kept[group.ID], s.byGPU[g] = true, group }

// dissolveAll gives up all successors and returns their members.
func (s *successors) dissolveAll() []rlcore.Job {
	var out []rlcore.Job
	for _, j := range s.aside {
		out = append(out, j)
	}
	clear(s.aside)
	clear(s.kept)
	clear(s.byGPU)
	return out
}

// setSuccessorsAside takes the members of the successors that stay out of the queue.
func (r *pass) setSuccessorsAside() {
	r.next = successors{kept: map[int64]bool{}, byGPU: map[int]*job.Group{}, aside: map[string]rlcore.Job{}}
	for _, id := range r.in.Tracker.GroupIDs() {
		group := r.in.Tracker.Groups[id]
		g, inService := r.index[group.Addr()]
		if !inService || !slices.ContainsFunc(group.Members, func(m job.Member) bool { return r.successor[m.Ref] == group }) || !r.stays(group, g) {
			continue
		}
		r.next.keep(group, g)
		for k := range group.Members {
			if ref := group.Members[k].Ref; r.successor[ref] == group && len(r.State.GPUs[g].Running) == 0 {
				r.budget.Send(ref)
			}
		}
	}
	r.State.Pending = slices.DeleteFunc(r.State.Pending, func(j rlcore.Job) bool {
		group := r.successor[j.ID]
		if group == nil || !r.next.kept[group.ID] {
			return false
		}
		r.next.aside[j.ID] = j
		return true
	})
}

// stays reports whether a successor is left as it is: the jobs on GPU g are those that it
// waits for, and nothing could join them.
func (r *pass) stays(group *job.Group, g int) bool {
	card := &r.State.GPUs[g]
	for _, ref := range group.After {
		if j := r.jobs[ref]; j != nil && j.State == job.Pending && !r.starting[ref] {
			return false // requeued: the group would wait for its next run
		}
	}
	if len(card.Running) == 0 {
		return true // it starts any moment now
	}
	if slices.ContainsFunc(card.Running, func(x rlcore.Running) bool { return !slices.Contains(group.After, x.ID) }) {
		return false
	}
	if group.MadeAtLimit && !slices.ContainsFunc(group.Refs(), r.budget.Limited) {
		return false
	}
	return !r.Join || card.FreeShares() == 0 || len(card.Running) == len(group.After)
}

// dissolve takes a successor's members back into the queue.
func (r *pass) dissolve(group *job.Group) {
	if group == nil {
		return
	}
	delete(r.next.kept, group.ID)
	delete(r.next.byGPU, r.index[group.Addr()])
	var back []rlcore.Job
	for i := range group.Members {
		if j, ok := r.next.aside[group.Members[i].Ref]; ok {
			back = append(back, j)
			delete(r.next.aside, j.ID)
		}
	}
	r.requeue(back...)
}

// successorMayStart reports whether a member of a successor could start at once on GPU g,
// as far as its owner and limits go.
func (r *pass) successorMayStart(g int) bool {
	for ref, j := range r.next.aside {
		if j.MayUse(g) && r.budget.MaySend(ref, r.State.GPUs[g].Node) {
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
func (r *pass) unchanged(group *job.Group) *job.Group {
	old := r.successor[group.Members[0].Ref]
	if group.Kind != job.Next || old == nil || old.State != job.Released || old.Addr() != group.Addr() || old.Pinned != group.Pinned {
		return nil
	}
	stillThere := func(ref string) bool { return r.jobs[ref] != nil } // one was requeued, say
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
		if r.successor[m.Ref] != old || r.seats[m.Ref].Member.Shares != m.Shares {
			return nil
		}
	}
	return old
}

// finishSuccessors pushes the successors whose GPU is free, and puts the members of those
// that were given up behind the gate again.
func (r *pass) finishSuccessors() {
	left := map[string]bool{}
	for i := range r.State.Pending {
		left[r.State.Pending[i].ID] = true
	}
	for _, id := range r.in.Tracker.GroupIDs() {
		group := r.in.Tracker.Groups[id]
		if r.next.kept[id] {
			r.push(group)
			continue
		}
		for i := range group.Members {
			m := &group.Members[i]
			if r.successor[m.Ref] != group || !left[m.Ref] {
				continue // not waiting, or in a group of this plan
			}
			r.plan.Replanned[m.Ref] = true
			why := job.Cause{Kind: job.CauseReplanned}.String()
			r.plan.Repairs = append(r.plan.Repairs, release.Restore(group, m, r.jobs[m.Ref], r.in.Gate, why))
		}
	}
}

// pushAfter is how long Slurm has to start a successor by itself. It takes a tenth of a
// second where the end of a job makes Slurm look at its queue; where it doesn't (a full
// cycle just then, defer), up to its next interval, a minute.
const pushAfter = 500 * time.Millisecond

// push makes Slurm look at a successor whose GPU is free.
func (r *pass) push(group *job.Group) {
	g, inService := r.index[group.Addr()]
	if group.Pushed || group.Free.IsZero() || r.in.Snap.At.Sub(group.Free) < pushAfter || !inService || len(r.State.GPUs[g].Running) > 0 {
		return
	}
	var members []*job.Job
	for k := range group.Members {
		if ref := group.Members[k].Ref; r.successor[ref] == group {
			members = append(members, r.jobs[ref])
		}
	}
	if c, ok := release.Push(group, members); ok {
		r.plan.Pushed[group.ID] = true
		r.plan.Repairs = append(r.plan.Repairs, c)
	}
}
