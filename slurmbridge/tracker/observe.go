package tracker

import (
	"maps"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/limit"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

const (
	// startGrace is how long a released group may take to start before it goes back behind the gate.
	startGrace = 45 * time.Second
	// passedGrace is the same where Slurm keeps the node for jobs of higher priority.
	passedGrace = 15 * time.Second
	// mostStrikes is how often a job may be released without starting.
	mostStrikes = 2
)

// badConstraints is the Reason of a job that Slurm holds since none of the nodes that it may have suits it. It lets go
// of the job when the job is changed (job_mgr.c, 22.05 to 26.05).
const badConstraints = "BadConstraints"

// EventKind is something that a poll showed of a member. The values are labels of a metric.
type EventKind string

// The kinds of event.
const (
	EventStarted   EventKind = "started"
	EventEnded     EventKind = "ended"
	EventRequeued  EventKind = "requeued"
	EventEdited    EventKind = "owner"
	EventStuck     EventKind = "stuck"     // taken back: it did not start
	EventPartial   EventKind = "partial"   // the same, while others of its group run
	EventMisplaced EventKind = "misplaced" // it runs on another GPU than planned
	EventLimit     EventKind = "limit"
	EventKept      EventKind = "kept" // taken back: Slurm says why it keeps it pending
	EventLeft      EventKind = "left" // left to Slurm: it did not start twice
)

// Event is something that a poll showed of a member.
type Event struct {
	Kind  EventKind
	Group *job.Group
	Ref   string
}

// Observe brings the tracker up to date with a poll. It returns the changes that repair what went differently than
// planned, and what metrics and log want to know. gate is the gate that waiting jobs depend on; without one ("") jobs
// are ungated where they would be gated again.
func (t *Tracker) Observe(s *job.Snapshot, gate string) ([]job.Change, []Event) {
	o := &observer{t: t, s: s, gate: gate, jobs: make(map[string]*job.Job, len(s.Jobs)), lacks: map[string]bool{}}
	for i := range s.Jobs {
		o.jobs[s.Jobs[i].Ref] = &s.Jobs[i]
	}
	t.Plain.DoneS = t.doneS
	t.keepLatest()
	seats := t.Seats()
	t.Limits.Observe(s, func(ref string) (string, bool) {
		seat, ok := seats[ref]
		if !ok || seat.Group.Kind == job.Turn || seat.Member.State != job.MemberWaiting &&
			seat.Member.State != job.MemberHandingBack {
			return "", false
		}
		return seat.Group.Node, true
	})
	noteAwaited(s, seats)
	o.notDone()
	if t.Handwritten.IsZero() {
		t.Handwritten = s.At
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if seat := seats[j.Ref]; seat.Group == nil && j.Request.Kind == job.Shares && j.Request.Count < job.Units {
			t.Handwritten, t.HandwrittenSeen = s.At, true
		}
	}
	for _, id := range t.GroupIDs() {
		o.group(t.Groups[id])
	}
	for _, k := range o.kept { // only now: it must not count against groups that were released later
		t.Limits.Close(k.job, k.node, k.reason, s.At)
	}
	t.progress(s, o.jobs)
	o.loans()
	t.forget(s, o.jobs)
	return o.repairs, o.events
}

// keepLatest leaves each job in one group, the latest: a bridge that ended while it moved
// a job from one group to another left it in both.
func (t *Tracker) keepLatest() {
	later := map[string]bool{}
	for _, id := range slices.Backward(t.GroupIDs()) {
		g := t.Groups[id]
		for i := range g.Members {
			m := &g.Members[i]
			if m.State.Final() {
				continue
			}
			if later[m.Ref] {
				release.Move(g, m, job.MemberMoved)
			}
			later[m.Ref] = true
		}
	}
}

// forget drops what is remembered of jobs and GPUs that no longer need it.
func (t *Tracker) forget(s *job.Snapshot, jobs map[string]*job.Job) {
	maps.DeleteFunc(t.Faulted, func(a job.GPUAddr, _ bool) bool {
		return !slices.ContainsFunc(s.Jobs, func(j job.Job) bool { return j.MayBeOn(a) })
	})
	maps.DeleteFunc(t.Waits, func(ref string, _ *Wait) bool { return jobs[ref] == nil || jobs[ref].State != job.Pending })
	maps.DeleteFunc(t.Unmanaged, func(ref string, _ string) bool { return jobs[ref] == nil })
}

// observer is one call of Observe.
type observer struct {
	t       *Tracker
	s       *job.Snapshot
	gate    string
	jobs    map[string]*job.Job
	repairs []job.Change
	events  []Event
	kept    []kept
	lacks   map[string]bool // what the last tick was to change of these jobs
}

// kept is a released job that Slurm keeps from a node.
type kept struct {
	job          *job.Job
	node, reason string
}

func (o *observer) event(kind EventKind, g *job.Group, m *job.Member) {
	o.events = append(o.events, Event{Kind: kind, Group: g, Ref: m.Ref})
}

func (o *observer) group(g *job.Group) {
	for i := range g.Members {
		if m := &g.Members[i]; !m.State.Final() {
			o.member(g, m)
		}
	}
	release.Derive(g)
	o.overdue(g)
}

// member observes one member and does what its sight requires.
func (o *observer) member(g *job.Group, m *job.Member) {
	j := o.jobs[m.Ref]
	switch release.Recognise(g, m, j, o.gate, o.s.At) {
	case release.Absent:
		o.ended(g, m)
	case release.Running:
		o.running(g, m, j)
	case release.Back:
		release.Move(g, m, job.MemberRestored)
	case release.NotBack:
		o.restoreAgain(g, m, j)
	case release.Requeued:
		o.restore(g, m, job.Cause{Kind: job.CauseRequeued})
		o.event(EventRequeued, g, m)
	case release.Unreleased:
		o.restore(g, m, job.Cause{Kind: job.CauseUnreleased})
	case release.Postponed:
		o.restore(g, m, job.Cause{Kind: job.CausePostponed})
		o.event(EventRequeued, g, m)
	case release.Edited:
		o.edited(g, m, j)
	case release.Held:
		if j.Reason == badConstraints {
			o.event(o.takeBack(g, m, job.Cause{Kind: job.CauseImpossible}, EventStuck), g, m)
			return
		}
		// By its owner or an operator: no other job is to wait for it.
		o.restore(g, m, job.Cause{Kind: job.CauseHeld})
	case release.AsReleased:
		release.Move(g, m, job.MemberWaiting)
		o.surplus(g, m, j)
	}
}

func (o *observer) ended(g *job.Group, m *job.Member) {
	was := *m
	e := o.t.Ending(m.Ref, o.s.At)
	e.Member, e.Node, e.GPU = &was, g.Node, g.GPU
	to := job.MemberCancelled
	if m.Ran() {
		to = job.MemberEnded
	}
	release.Move(g, m, to)
	was.State = m.State
	o.event(EventEnded, g, m)
}

func (o *observer) running(g *job.Group, m *job.Member, j *job.Job) {
	if !m.Ran() {
		m.Start = j.Start
		if m.Start.IsZero() {
			m.Start = o.s.At
		}
		o.event(EventStarted, g, m)
	}
	release.Move(g, m, job.MemberRunning)
	if g.Kind == job.Turn {
		if len(j.GPUs) == 1 {
			g.Node, g.GPU = j.Nodes, j.GPUs[0]
		}
		return
	}
	// One that has all shares may have any GPU that is free.
	if !m.Misplaced && len(j.GPUs) == 1 && m.Shares < job.Units && j.GPUs[0] != g.GPU && j.Nodes == g.Node {
		m.Misplaced = true
		o.event(EventMisplaced, g, m)
	}
}

// restore begins to restore a member, behind the gate where there is one.
func (o *observer) restore(g *job.Group, m *job.Member, cause job.Cause) {
	o.restoreTo(g, m, cause, o.gateOf(m))
}

// gateOf is the gate that a member is restored behind. A member that is to run alone, or that Slurm
// starts again before all other jobs, gets none.
func (o *observer) gateOf(m *job.Member) string {
	if j := o.jobs[m.Ref]; m.Alone || j != nil && j.Expedited {
		return ""
	}
	return o.gate
}

func (o *observer) restoreTo(g *job.Group, m *job.Member, cause job.Cause, gate string) {
	if j := o.jobs[m.Ref]; j != nil && j.Expedited {
		o.t.Unmanaged[m.Ref] = job.CauseExpedited.String()
	}
	release.StartRestoring(g, m, cause)
	o.repairs = append(o.repairs, release.Restore(m, o.jobs[m.Ref], gate, cause.String(), o.s.At))
}

func (o *observer) restoreAgain(g *job.Group, m *job.Member, j *job.Job) {
	if o.t.unrestorable(m.Ref) { // it is let go as it is
		release.Move(g, m, job.MemberRestored)
		return
	}
	m.Tries++
	o.repairs = append(o.repairs, release.Restore(m, j, o.gateOf(m), m.Cause.String(), o.s.At))
}

// edited leaves a member to its owner, less what the bridge had set and the owner did not edit.
func (o *observer) edited(g *job.Group, m *job.Member, j *job.Job) {
	if o.t.Unmanaged[m.Ref] == "" {
		o.t.Unmanaged[m.Ref] = job.CauseEdited.String()
		if o.lacks[m.Ref] {
			o.t.Unmanaged[m.Ref] = job.NotDone
		}
		o.event(EventEdited, g, m)
	}
	c, left := release.HandBack(g, m, j)
	if !left || o.t.unrestorable(m.Ref) {
		release.Move(g, m, job.MemberEdited)
		return
	}
	release.Move(g, m, job.MemberHandingBack)
	m.Tries++
	o.repairs = append(o.repairs, c)
}

// surplus takes a member back that a limit keeps from starting; for good where no end of other jobs would help.
func (o *observer) surplus(g *job.Group, m *job.Member, j *job.Job) {
	if g.Kind == job.Turn {
		return // it waits like any other job
	}
	reason, forever := o.t.Limits.Surplus(j, g.Node, o.s.At)
	if reason == "" {
		return
	}
	cause, gate := job.Cause{Kind: job.CauseLimit, Detail: reason}, o.gate
	if forever {
		gate = ""
		o.t.Unmanaged[m.Ref] = "it is beyond " + cause.String()
	}
	o.restoreTo(g, m, cause, gate)
	o.event(EventLimit, g, m)
}

// overdue takes the waiting members of a group back that could have started and didn't.
func (o *observer) overdue(g *job.Group) {
	waiting := func(m job.Member) bool { return m.State == job.MemberWaiting }
	if g.Kind == job.Turn || !slices.ContainsFunc(g.Members, waiting) {
		return
	}
	if g.Free.IsZero() {
		g.Free = o.s.At
	}
	cause, ok := o.hindrance(g)
	if !ok {
		return
	}
	kind := EventStuck
	if slices.ContainsFunc(g.Members, func(m job.Member) bool { return m.State == job.MemberRunning }) {
		kind = EventPartial
	}
	for i := range g.Members {
		if m := &g.Members[i]; waiting(*m) {
			o.event(o.takeBack(g, m, cause, kind), g, m)
		}
	}
}

// hindrance is why a group that could start hasn't. ok: it isn't going to.
func (o *observer) hindrance(g *job.Group) (cause job.Cause, ok bool) {
	switch {
	case o.gpuTaken(g):
		return job.Cause{Kind: job.CauseGPUTaken}, true
	case o.s.At.Sub(g.Free) > passedGrace && o.passedOver(g):
		return job.Cause{Kind: job.CausePassedOver}, true
	case o.s.At.Sub(g.Free) > startGrace:
		return job.Cause{Kind: job.CauseLate}, true
	}
	return job.Cause{Kind: job.CauseNodeDown}, !o.s.NodeUp(g.Node)
}

// passedOver reports whether Slurm keeps the node from a group for jobs of higher priority.
func (o *observer) passedOver(g *job.Group) bool {
	return slices.ContainsFunc(g.Members, func(m job.Member) bool {
		j := o.jobs[m.Ref]
		return m.State == job.MemberWaiting && j != nil && limit.PassedOver(j.Reason)
	})
}

// gpuTaken reports whether a job that has started since the group was decided leaves its waiting members too few shares
// of the GPU. It has the GPU by its priority: that is Slurm's right and no sign that the group can't start.
func (o *observer) gpuTaken(g *job.Group) bool {
	taken, shares := false, 0
	for i := range o.s.Jobs {
		j := &o.s.Jobs[i]
		if j.State != job.Running || j.Nodes != g.Node || j.Request.Kind == job.NoGPU || !slices.Contains(j.GPUs, g.GPU) {
			continue
		}
		// Slurm reports a start in whole seconds.
		taken = taken || !j.Start.Before(g.Decided.Truncate(time.Second)) && !slices.Contains(g.Refs(), j.Ref)
		if shares += job.Units; j.Request.Kind == job.Shares {
			shares += j.Request.Count - job.Units
		}
	}
	for i := range g.Members {
		if g.Members[i].State == job.MemberWaiting {
			shares += g.Members[i].Shares
		}
	}
	return taken && shares > job.Units
}

// takeBack restores a member that did not start. Where Slurm explains why, its class isn't sent
// to the node for a while. A member that does not start twice without an explanation is left to
// Slurm. It returns what happened to the member; kind is what happens to one that gets a strike.
func (o *observer) takeBack(g *job.Group, m *job.Member, cause job.Cause, kind EventKind) EventKind {
	if cause.Kind == job.CauseLate {
		if reason := o.keeps(g.Node, o.jobs[m.Ref]); reason != "" {
			o.kept = append(o.kept, kept{o.jobs[m.Ref], g.Node, reason})
			o.restore(g, m, job.Cause{Kind: job.CausePassedOver})
			return EventKept
		}
	}
	w := o.t.Wait(m.Ref)
	// a node's trouble, or another job's priority, is no mark against the job
	if cause.Kind == job.CauseLate || cause.Kind == job.CauseImpossible {
		w.Strikes++
	}
	if w.Strikes < mostStrikes {
		o.restore(g, m, cause)
		return kind
	}
	o.t.Unmanaged[m.Ref] = job.UngatedNotStarted.String()
	release.StartRestoring(g, m, cause)
	o.repairs = append(o.repairs, release.Restore(m, o.jobs[m.Ref], "", cause.String()+" again: left to Slurm", o.s.At))
	return EventLeft
}

// keeps is why Slurm keeps a released job from its node, "" = it doesn't say.
func (o *observer) keeps(node string, j *job.Job) string {
	planned := func(n job.Node) bool { return n.Name == node && n.Planned }
	switch {
	case j == nil:
		return ""
	case limit.Kept(j.Reason):
		return j.Reason
	case slices.ContainsFunc(o.s.Nodes, planned):
		return "PLANNED"
	}
	return ""
}
