package rlcore

import (
	"math"
	"slices"
)

// company are the running jobs of one GPU and the jobs that are to join. Its storage is reused.
type company struct {
	members []member // the running jobs first

	profiles []*Profile // of a group: all members, or the ones that haven't ended
	pred     []Prediction
	there    []*member // of ends: the members that haven't ended
}

// member is a job on a GPU, and what is expected of it there. Times are in s, times to come are from now.
type member struct {
	*Job
	joins    bool
	elapsedS float64
	doneS    float64 // solo work
	leftS    float64 // solo work; of an unknown job, run time
	aloneS   float64 // when it would end as things go on plainly, on a GPU of its own
	asIsS    float64 // when it ends if no job joins; 0 = it is one that joins
	endS     float64 // when it ends
	roomS    float64 // by how much co-runners may delay it

	slowest float64 // largest slowdown that the guard allows for
	lo, hi  float64 // solo work done, at least and at most; fits moves both on
	spare   float64 // memory that it may take beyond its need, MiB
	top     int     // index in its series of the most memory between lo and hi
	seen    int     // last index that was looked at
	toDoS   float64 // of ends: solo work that is left at the moment
}

// newMember returns a job that is on a GPU or joins. Its progress is predicted, not measured, but no job is ever faster
// than alone. Beyond LongestS it counts as slower than predicted, so that its memory counts.
func newMember(j *Job, doneS, elapsedS float64) member {
	x := member{Job: j, elapsedS: elapsedS, doneS: doneS, slowest: 1}
	if j.Profile != nil {
		doneS = Believed(doneS, j.Profile.LongestS())
	}
	x.lo = doneS*(1-paceError) - slackS
	x.hi = min(doneS*(1+paceError), max(elapsedS, doneS)) + slackS
	return x
}

// gather sets the company to running jobs.
func (m *company) gather(r *Rules, running []Running) {
	m.members = m.members[:0]
	for i := range running {
		x := &running[i]
		one := newMember(&x.Job, x.DoneS, x.ElapsedS)
		if x.Profile != nil && x.MemLimitMiB > 0 {
			one.spare = max(0, x.MemLimitMiB-x.Profile.NeedMiB(r.margin()))
		}
		m.members = append(m.members, one)
	}
}

// mayMeet checks the members' owners and arrays, and that each is known.
func (m *company) mayMeet(spec *GPUSpec) Veto {
	first := m.members[0].Job
	arrayOnly := false // a member shares with its own array only
	mixed := false     // the members aren't of one array
	shared := len(m.members) > 1
	for i := range m.members {
		j := m.members[i].Job
		arrayOnly = arrayOnly || j.ArrayOnly
		mixed = mixed || j.Array == "" || j.Array != first.Array
		switch {
		case shared && j.FirstRun:
			return VetoFirstRun
		case shared && j.NoShare:
			return VetoNoShare
		case shared && j.Profile == nil:
			return VetoUnknown
		case shared && (j.Profile.Busy != nil || j.Profile.HeldMiB > 0) && !spec.MemLimits:
			return VetoUnheld
		case shared && arrayOnly && mixed:
			return VetoArray
		case spec.SameUser && j.User != first.User:
			return VetoUser
		case shared && j.Rank != first.Rank:
			return VetoRank
		}
	}
	return Allowed
}

// predict predicts the slowdowns of all members, which are known, into pred.
func (m *company) predict(r *Rules, spec *GPUSpec) {
	m.profiles = m.profiles[:0]
	for i := range m.members {
		m.profiles = append(m.profiles, m.members[i].Profile)
	}
	m.pred = resize(m.pred, len(m.profiles))
	r.predict(m.pred, spec, m.profiles)
}

// mayShare checks the predictions for several members of known profile: they may meet, and keep contracts and limits.
func (m *company) mayShare(r *Rules, spec *GPUSpec, nowS float64) Veto {
	clients := 0
	for i := range m.members {
		clients += m.members[i].Profile.Clients()
	}
	if spec.MaxClients > 0 && clients > spec.MaxClients {
		return VetoClients
	}
	m.predict(r, spec)
	if f, ok := r.Predictor.(Forbidder); ok && f.Forbidden(spec, m.profiles) {
		return VetoForbidden
	}
	for i := range m.members {
		x := &m.members[i]
		x.slowest = r.worst(&m.pred[i])
		if r.breaks(x.Job, x.slowest) {
			return VetoContract
		}
	}
	if !m.keepsSessions(r, spec) {
		return VetoContract
	}
	if !r.Bare && !m.keepsLimits(r, spec, nowS) {
		return VetoLimit
	}
	return Allowed
}

// keepsSessions reports whether each interactive session keeps its contract while it computes: for most of the time it
// doesn't, and slows no member.
func (m *company) keepsSessions(r *Rules, spec *GPUSpec) bool {
	for i, usual := range m.profiles {
		if usual.Busy == nil {
			continue
		}
		m.profiles[i] = usual.Busy
		r.predict(m.pred, spec, m.profiles)
		m.profiles[i] = usual
		if r.breaks(m.members[i].Job, r.worst(&m.pred[i])) {
			return false
		}
	}
	return true
}

// keepsLimits reports whether every member is expected to end before its time limit and its deadline, on the safe side:
// long runs, less progress than predicted, slowdowns with their errors.
func (m *company) keepsLimits(r *Rules, spec *GPUSpec, nowS float64) bool {
	tight := false
	for i := range m.members {
		x := &m.members[i]
		limit := r.mustEndS(x.Job, x.elapsedS, nowS)
		if math.IsNaN(limit) {
			return false
		}
		x.leftS = x.Profile.DurationS + r.trust()*x.Profile.DurationSD - max(0, x.lo)
		tight = tight || x.leftS*x.slowest > limit
	}
	if !tight {
		return true // even if no member ended before
	}
	m.ends(r, spec)
	for i := range m.members {
		if x := &m.members[i]; x.endS > r.mustEndS(x.Job, x.elapsedS, nowS) {
			return false
		}
	}
	return true
}

// ends sets when each member will have ended if no job joins, by what it has left, and returns the end of the last one.
// The members slow each other by the most that is allowed for of the remaining ones. An unknown job runs alone.
func (m *company) ends(r *Rules, spec *GPUSpec) (freeS float64) {
	m.there = m.there[:0]
	m.profiles = m.profiles[:0]
	for i := range m.members {
		x := &m.members[i]
		if x.Profile == nil {
			x.endS = x.leftS
			freeS = max(freeS, x.endS)
			continue
		}
		x.toDoS = x.leftS
		m.there = append(m.there, x)
		m.profiles = append(m.profiles, x.Profile)
	}
	for t := 0.0; len(m.there) > 0; {
		m.pred = slices.Grow(m.pred[:0], len(m.there))[:len(m.there)]
		r.predict(m.pred, spec, m.profiles)
		step := math.Inf(1)
		first := 0
		for k := range m.pred {
			slow := r.slowest(&m.pred[k], len(m.there))
			m.pred[k].Slowdown = slow
			if endS := max(0, m.there[k].toDoS) * slow; endS < step {
				step = endS
				first = k
			}
		}
		t += step
		for k, x := range m.there {
			x.toDoS = max(0, x.toDoS-step/m.pred[k].Slowdown)
		}
		m.there[first].endS = t
		freeS = max(freeS, t)
		m.there = slices.Delete(m.there, first, first+1)
		m.profiles = slices.Delete(m.profiles, first, first+1)
	}
	return freeS
}

// keepDues reports whether the members, whose ends are set, end by their dues, and notes how much room each has. A
// member that misses its due anyway must not end later than without the newcomer.
func (m *company) keepDues(r *Rules, nowS float64) bool {
	for i := range m.members {
		x := &m.members[i]
		if x.Profile == nil {
			continue
		}
		by := r.endsBy(x.Job, x.aloneS, nowS)
		x.roomS = max(0, by-x.leftS)
		if x.endS > max(x.asIsS, by)+rounding {
			return false
		}
	}
	return true
}

// mostRisk is the largest allowed probability that a job ends late because a co-runner takes longer than expected. A
// long run meets many co-runners one after the other, so it must be small (LEARNING.md).
const mostRisk = 0.02

// unlikely reports whether it is unlikely, by mostRisk, that a member becomes late because of a co-runner that takes
// longer than expected, where run times differ. keepDues has noted the members' room. A member that is slowed by the
// factor s becomes late if it and the co-runner are still there after room/(1 − 1/s). Company that running jobs have
// already isn't counted against a newcomer.
func (m *company) unlikely(r *Rules, spec *GPUSpec) bool {
	varies := false
	for i := range m.members {
		p := m.members[i].Profile
		if p == nil {
			return true // it runs alone: Check says so
		}
		varies = varies || p.DurationSD > 0
	}
	if len(m.members) < 2 || r.Bare || !varies {
		return true
	}
	m.predict(r, spec)
	for i := range m.members {
		x := &m.members[i]
		slow := m.pred[i].Slowdown
		if slow <= 1 {
			continue
		}
		inS := x.roomS / (1 - 1/slow)
		alone := 1.0
		for k := range m.members {
			if other := &m.members[k]; k != i && (x.joins || other.joins) {
				alone *= 1 - other.goesOn(inS/max(1, m.pred[k].Slowdown))
			}
		}
		if x.goesOn(inS/slow)*(1-alone) > mostRisk {
			return false
		}
	}
	return true
}

// goesOn is the probability that the member has more than so much solo work left, 0..1.
func (x *member) goesOn(workS float64) float64 { return x.Profile.longer(x.doneS+workS, x.doneS) }

// slowest is the slowdown of one of several members that ends allow for. At a first meeting, which is an experiment, it
// is no more than that of members that take turns, which is what a card does at worst for all of them together;
// otherwise nothing would be tried where little is known.
func (r *Rules) slowest(p *Prediction, members int) float64 {
	if p.First {
		return max(1, p.Slowdown, min(r.worst(p), float64(members)))
	}
	return r.worst(p)
}

// predict predicts the slowdowns of a group; a job alone has none. Without a predictor, or where it fails, each is the
// number of members, the worst that a fair device can do.
func (r *Rules) predict(dst []Prediction, spec *GPUSpec, group []*Profile) {
	worst := Prediction{Slowdown: float64(len(group))}
	if len(group) > 1 && r.Predictor != nil {
		r.Predictor.Predict(dst, spec, group)
	} else {
		for i := range dst {
			dst[i] = worst
		}
	}
	for i, p := range dst {
		if math.IsNaN(p.Slowdown) || math.IsNaN(p.SD) {
			dst[i] = worst // a failing predictor must not admit anything
		}
	}
}

// resize returns n zeros in s's storage.
func resize[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}
