package release

import (
	"fmt"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Sight is what a poll shows of a member.
type Sight string

// The sights. All but Absent and Running are of a pending job.
const (
	Absent     Sight = "absent"
	Running    Sight = "running" // or completing
	Requeued   Sight = "requeued"
	Unreleased Sight = "unreleased" // prepared by a bridge that ended before the release
	Postponed  Sight = "postponed"  // it has a begin time of its own
	Held       Sight = "held"
	Edited     Sight = "edited" // its owner changed what the bridge had set
	AsReleased Sight = "as released"
	Back       Sight = "back"     // it is what it was before it was grouped
	NotBack    Sight = "not back" // it should be, and isn't
)

// startsWithin is how far ahead a begin time may be for the job to start "now".
const startsWithin = 5 * time.Second

// Recognise returns what a poll at the given time shows of a member; j is its job, nil = it is gone.
func Recognise(g *job.Group, m *job.Member, j *job.Job, gate string, at time.Time) Sight {
	switch {
	case j == nil:
		return Absent
	case j.State != job.Pending:
		return Running
	case m.State == job.MemberRestoring && m.Tries > 0 && IsBack(m, j):
		return Back
	case m.State == job.MemberRestoring:
		return NotBack
	case m.State == job.MemberRunning:
		return Requeued // its next run is another one
	case m.State == job.MemberPrepared && gate != "" && j.Dependency.Only(after, gate) && IsBack(m, j):
		return Back // nothing of its preparation was made
	case m.State == job.MemberPrepared:
		return Unreleased
	case j.Eligible.After(at.Add(startsWithin)):
		return Postponed // requeued before a poll saw it run, or put off by its owner
	case gate != "" && j.Dependency.Only(after, gate) && IsBack(m, j):
		return Back // restored by a bridge that ended before it wrote that down
	case !asReleased(g, m, j):
		return Edited
	case j.Priority == 0:
		return Held
	}
	return AsReleased
}

// IsBack reports whether the job is what it was before it was grouped. A gate that has
// opened since leaves it without a dependency.
func IsBack(m *job.Member, j *job.Job) bool {
	return sameGres(m.WasGres, j.Request) && j.ReqNodes == m.WasNodes && m.WasHost.Missing(j, m.Host) == job.Defaults{}
}

// asReleased reports whether a released member that is pending looks as the bridge left
// it. Dependencies that were met in the meantime have left its list.
func asReleased(g *job.Group, m *job.Member, j *job.Job) bool {
	return holds(m, j) && j.ReqNodes == nodesOf(g, m) && len(j.Dependency.List) == 0
}

// transitions are the states that may follow each state of a member.
var transitions = map[job.MemberState][]job.MemberState{
	job.MemberPrepared: {
		job.MemberWaiting, job.MemberRunning, job.MemberRestoring, job.MemberRestored, job.MemberCancelled, job.MemberMoved,
	},
	job.MemberWaiting: {
		job.MemberRunning, job.MemberRestoring, job.MemberHandingBack, job.MemberRestored, job.MemberEdited,
		job.MemberCancelled, job.MemberMoved,
	},
	job.MemberHandingBack: {
		job.MemberWaiting, job.MemberRunning, job.MemberRestoring, job.MemberRestored, job.MemberEdited, job.MemberCancelled,
		job.MemberMoved,
	},
	job.MemberRunning: {
		job.MemberRestoring, job.MemberEnded, job.MemberMoved,
	},
	job.MemberRestoring: {
		job.MemberRunning, job.MemberRestored, job.MemberEnded, job.MemberCancelled, job.MemberMoved,
	},
}

// Allowed reports whether a member may go from one state to another. Staying is allowed.
func Allowed(from, to job.MemberState) bool {
	return from == to || slices.Contains(transitions[from], to)
}

// Move brings a member of the group into another state and the group's own state up to
// date. It panics on a transition that isn't in the table: no poll can show it.
func Move(g *job.Group, m *job.Member, to job.MemberState) {
	if !Allowed(m.State, to) {
		panic(fmt.Sprintf("release: member %s of group %d can't go from %s to %s", m.Ref, g.ID, m.State, to))
	}
	m.State = to
	Derive(g)
}

// Released marks a prepared group as released.
func Released(g *job.Group) {
	for i := range g.Members {
		if g.Members[i].State == job.MemberPrepared {
			g.Members[i].State = job.MemberWaiting
		}
	}
	Derive(g)
}

// StartRestoring notes the first attempt to restore a member.
func StartRestoring(g *job.Group, m *job.Member, cause job.Cause) {
	Move(g, m, job.MemberRestoring)
	m.Cause, m.Tries = cause, 1
}

// Derive derives the group's state from its members'.
func Derive(g *job.Group) {
	g.State = job.Done
	for i := range g.Members {
		m := &g.Members[i]
		switch {
		case m.Ran() && !allFinal(g):
			g.State = job.Started
			return
		case m.State == job.MemberPrepared:
			g.State = job.Preparing
		case !m.State.Final() && g.State == job.Done:
			g.State = job.Released
		}
	}
}

func allFinal(g *job.Group) bool {
	return !slices.ContainsFunc(g.Members, func(m job.Member) bool { return !m.State.Final() })
}
