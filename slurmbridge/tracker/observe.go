package tracker

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurmlimit"
)

const (
	// startGrace is how long a released group may take to start; after that its members are restored.
	startGrace = 45 * time.Second
	// passedGrace is how long it may take if Slurm keeps the node for jobs of higher priority.
	passedGrace = 15 * time.Second
	// mostStrikes is how often a job may be released without starting.
	mostStrikes = 2
)

// badConstraints is the Reason of a job that Slurm holds because no node that the job may use suits it. A change of the
// job ends this hold (job_mgr.c, 22.05 to 26.05).
const badConstraints = "BadConstraints"

// EventKind is something that a poll showed of a member. The values are labels of a metric.
type EventKind string

// The kinds of event.
const (
	EventStarted    EventKind = "started"
	EventEnded      EventKind = "ended"
	EventRequeued   EventKind = "requeued"
	EventEdited     EventKind = "owner"
	EventStuck      EventKind = "stuck"       // restored: it did not start
	EventPartial    EventKind = "partial"     // restored: it did not start, and other members of its group run
	EventMisplaced  EventKind = "misplaced"   // it runs on another GPU than planned
	EventLimit      EventKind = "limit"       // restored: it is beyond a limit of accounting
	EventPassedOver EventKind = "passed-over" // restored: Slurm says why it keeps the job pending
	EventLeft       EventKind = "left"        // left to Slurm: it was released twice and did not start
)

// Event is something that a poll showed of a member.
type Event struct {
	Kind  EventKind
	Group *job.Group
	Ref   string
	// GPU is the one that the member runs on, of an EventMisplaced.
	GPU int
}

// Why says to an operator why something went otherwise than planned, "" = nothing did.
func (e *Event) Why() string {
	switch e.Kind {
	case EventMisplaced:
		return fmt.Sprintf("Slurm put it on gpu %d: a job on another GPU of the node ended or started meanwhile", e.GPU)
	case EventStuck, EventPartial, EventPassedOver, EventLeft:
		i := slices.IndexFunc(e.Group.Members, func(m job.Member) bool { return m.Ref == e.Ref })
		if i >= 0 {
			return e.Group.Members[i].Cause.String()
		}
	}
	return ""
}

// Observe updates the tracker with a poll. It returns the changes that repair what went differently than planned, and
// events for metrics and the log. gate is the gate that waiting jobs depend on; without a gate ("") jobs are ungated
// where they would be gated again.
func (t *Tracker) Observe(s *job.Snapshot, gate string) ([]job.Change, []Event) {
	o := &observer{t: t, s: s, gate: gate, jobs: make(map[string]*job.Job, len(s.Jobs)), lacks: map[string]bool{}}
	for i := range s.Jobs {
		o.jobs[s.Jobs[i].Ref] = &s.Jobs[i]
	}
	t.Plain.DoneS = t.doneS
	t.leaveInLatest()
	memberships := t.Memberships()
	if gate != "" {
		o.regroup(memberships)
	}
	t.Limits.Observe(s, func(ref string) (string, bool) {
		seat, ok := memberships[ref]
		if !ok || seat.Group.Kind == job.Turn || seat.Member.State != job.MemberWaiting &&
			seat.Member.State != job.MemberHandingBack {
			return "", false
		}
		return seat.Group.Node, true
	})
	noteAwaited(s, memberships)
	o.notDone()
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if seat := memberships[j.Ref]; seat.Group == nil && j.Request.Kind == job.Shares && j.Request.Count < job.Units {
			t.Handwritten = s.At
		}
	}
	for _, id := range t.GroupIDs() {
		o.group(t.Groups[id])
	}
	for _, k := range o.closings { // after all groups: groups that were released later aren't restored for this reason
		t.Limits.Close(k.job, k.node, k.reason, s.At)
	}
	t.progress(s, o.jobs, memberships)
	o.loans()
	t.forget(s, o.jobs)
	return o.repairs, o.events
}

// leaveInLatest leaves each job in its latest group only: a bridge that ended while it moved a job from one group to
// another left the job in both.
func (t *Tracker) leaveInLatest() {
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

// regroup makes groups of the running jobs that another bridge has grouped: its journal isn't this one's, or was lost.
func (o *observer) regroup(memberships map[string]Membership) {
	for i := range o.s.Jobs {
		j := &o.s.Jobs[i]
		if j.State != job.Running || memberships[j.Ref].Group != nil {
			continue
		}
		g, ok := release.Regroup(j)
		if !ok {
			continue
		}
		g.ID = o.t.NewID()
		o.t.Add(g, memberships)
		delete(o.t.Done, j.Ref) // it went on without a company
		if own := g.Members[0].OwnLimit; own > 0 && own < j.TimeLimit {
			o.t.Loans[j.Ref] = &Loan{Start: j.Start, Own: own, Set: j.TimeLimit, Was: j.TimeLimit, Shown: true}
		}
	}
}

// forget drops the entries of jobs that have left the queue and of GPUs that no job uses.
func (t *Tracker) forget(s *job.Snapshot, jobs map[string]*job.Job) {
	maps.DeleteFunc(t.Faulted, func(a job.GPUAddr, _ bool) bool {
		return !slices.ContainsFunc(s.Jobs, func(j job.Job) bool { return j.MayBeOn(a) })
	})
	maps.DeleteFunc(t.Waits, func(ref string, _ *Wait) bool { return jobs[ref] == nil || jobs[ref].State != job.Pending })
	maps.DeleteFunc(t.Unmanaged, func(ref string, _ string) bool { return jobs[ref] == nil })
}

// observer is one call of Observe.
type observer struct {
	t        *Tracker
	s        *job.Snapshot
	gate     string
	jobs     map[string]*job.Job
	repairs  []job.Change
	events   []Event
	closings []closing
	lacks    map[string]bool // jobs without a change that Slurm took in the last tick
}

// closing is a released job that Slurm keeps from a node.
type closing struct {
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

// member acts on what the poll shows of one member.
func (o *observer) member(g *job.Group, m *job.Member) {
	j := o.jobs[m.Ref]
	switch release.Recognise(g, m, j, o.gate, o.s.At) {
	case release.Absent:
		o.ended(g, m)
	case release.Running:
		o.running(g, m, j)
	case release.Back:
		if w := o.t.Waits[m.Ref]; w != nil {
			w.Unrestored = 0 // an earlier refusal counts no more
		}
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
		// Its owner or an operator holds it: the other members don't wait for it.
		o.restore(g, m, job.Cause{Kind: job.CauseHeld})
	case release.AsReleased:
		release.Move(g, m, job.MemberWaiting)
		o.surplus(g, m, j)
	}
}

func (o *observer) ended(g *job.Group, m *job.Member) {
	to := job.MemberCancelled
	if m.Ran() {
		to = job.MemberEnded
	}
	release.Move(g, m, to)
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
	// A member with all shares may be on any GPU that is free.
	if !m.Misplaced && len(j.GPUs) == 1 && m.Shares < job.Units && j.GPUs[0] != g.GPU && j.Nodes == g.Node {
		m.Misplaced = true
		o.events = append(o.events, Event{Kind: EventMisplaced, Group: g, Ref: m.Ref, GPU: j.GPUs[0]})
	}
}

// restore begins to restore a member, behind the gate if there is a gate.
func (o *observer) restore(g *job.Group, m *job.Member, cause job.Cause) {
	o.restoreTo(g, m, cause, o.gateOf(m))
}

// gateOf is the gate behind which a member is restored. It is "" for a member that is to run alone, and for a job that
// Slurm is about to run again before all other jobs.
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
	if o.t.unrestorable(m.Ref) { // it stays as it is
		release.Move(g, m, job.MemberRestored)
		return
	}
	m.Tries++
	o.repairs = append(o.repairs, release.Restore(m, j, o.gateOf(m), m.Cause.String(), o.s.At))
}

// edited leaves a member to its owner, and undoes what the bridge had set and the owner did not edit.
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

// surplus restores a member that a limit keeps from starting. If the limit is below what the member requests, the
// member is left to Slurm.
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

// overdue restores the waiting members of a group that could have started and didn't.
func (o *observer) overdue(g *job.Group) {
	waiting := func(m job.Member) bool { return m.State == job.MemberWaiting }
	if g.Kind == job.Turn || !slices.ContainsFunc(g.Members, waiting) {
		return
	}
	if g.Free.IsZero() {
		g.Free = o.s.At
	}
	cause, ok := o.hindrance(g)
	kind := EventStuck
	if slices.ContainsFunc(g.Members, func(m job.Member) bool { return m.State == job.MemberRunning }) {
		kind = EventPartial
	}
	for i := range g.Members {
		switch m := &g.Members[i]; {
		case !waiting(*m):
		case o.t.MaxDelayS > 0 && o.t.Wait(m.Ref).DelayedS >= o.t.MaxDelayS:
			o.event(o.leave(g, m, job.Cause{Kind: job.CauseLate}, job.UngatedDelay), g, m)
		case ok:
			o.event(o.takeBack(g, m, cause, kind), g, m)
		}
	}
}

// hindrance is why a group that could start hasn't started. ok: the bridge no longer waits for the start.
func (o *observer) hindrance(g *job.Group) (cause job.Cause, ok bool) {
	switch {
	case o.gpuTaken(g):
		return job.Cause{Kind: job.CauseGPUTaken}, true
	case o.s.At.Sub(g.Free) > passedGrace && o.passedOver(g):
		return job.Cause{Kind: job.CausePassedOver}, true
	case o.s.At.Sub(g.Free) > startGrace:
		return job.Cause{Kind: job.CauseLate}, true
	}
	node := o.s.Node(g.Node)
	return job.Cause{Kind: job.CauseNodeDown}, node == nil || !node.Up
}

// passedOver reports whether Slurm keeps the node from a group for jobs of higher priority.
func (o *observer) passedOver(g *job.Group) bool {
	return slices.ContainsFunc(g.Members, func(m job.Member) bool {
		j := o.jobs[m.Ref]
		return m.State == job.MemberWaiting && j != nil && (slurmlimit.PassedOver(j.Reason) || o.t.PassedOver[m.Ref])
	})
}

// gpuTaken reports whether a job that has started since the group was decided leaves the group's waiting members too
// few shares of the GPU. Slurm gave the GPU to that job by its priority, so the members get no strike.
func (o *observer) gpuTaken(g *job.Group) bool {
	taken, shares := false, 0
	for i := range o.s.Jobs {
		j := &o.s.Jobs[i]
		has, _ := j.GPUsOn(g.Node)
		if j.State != job.Running || j.Request.Kind == job.NoGPU || !slices.Contains(has, g.GPU) {
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

// takeBack restores a member that did not start. If Slurm says why, jobs of the member's class aren't sent to the node
// for a while. A member that was released twice and did not start, without a reason of Slurm's, is left to Slurm. The
// member's event is kind, EventPassedOver or EventLeft.
func (o *observer) takeBack(g *job.Group, m *job.Member, cause job.Cause, kind EventKind) EventKind {
	if cause.Kind == job.CauseLate {
		if reason := o.pendingReason(g.Node, o.jobs[m.Ref]); reason != "" {
			o.closings = append(o.closings, closing{o.jobs[m.Ref], g.Node, reason})
			o.restore(g, m, job.Cause{Kind: job.CausePassedOver})
			return EventPassedOver
		}
	}
	w := o.t.Wait(m.Ref)
	// There is no strike for a node that is down or for another job's priority.
	if cause.Kind == job.CauseLate || cause.Kind == job.CauseImpossible {
		w.Strikes++
	}
	if w.Strikes < mostStrikes {
		o.restore(g, m, cause)
		return kind
	}
	return o.leave(g, m, cause, job.UngatedNotStarted)
}

// leave restores a member that did not start, without a gate, and leaves it to Slurm.
func (o *observer) leave(g *job.Group, m *job.Member, cause job.Cause, why job.Ungated) EventKind {
	o.t.Unmanaged[m.Ref] = why.String()
	release.StartRestoring(g, m, cause)
	o.repairs = append(o.repairs, release.Restore(m, o.jobs[m.Ref], "", cause.String()+" again: left to Slurm", o.s.At))
	return EventLeft
}

// pendingReason is Slurm's reason to keep a released job from its node, "" = Slurm gives none.
func (o *observer) pendingReason(node string, j *job.Job) string {
	n := o.s.Node(node)
	switch {
	case j == nil:
		return ""
	case slurmlimit.StaysPending(j.Reason):
		return j.Reason
	case n != nil && n.Planned:
		return "PLANNED"
	}
	return ""
}
