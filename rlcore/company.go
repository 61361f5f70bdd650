package rlcore

import (
	"math"
	"slices"
)

// company are the jobs that are to share one GPU, and what is forecast of them: slowdowns, ends and memory. Its slices
// hold an entry a member, the running jobs first, and are reused.
type company struct {
	jobs     []*Job
	elapsedS []float64
	profiles []*Profile
	tracks   []track
	pred     []Prediction
	limitsS  []float64 // when each must have ended, s from now
	workS    []float64
	endsS    []float64
	forecast forecast
}

// gather sets the company to running jobs.
func (m *company) gather(r *Rules, running []Running) {
	m.jobs, m.elapsedS, m.profiles, m.tracks = m.jobs[:0], m.elapsedS[:0], m.profiles[:0], m.tracks[:0]
	for i := range running {
		x := &running[i]
		tr := newTrack(x.Profile, x.DoneS, x.ElapsedS)
		if x.Profile != nil && x.MemLimitMiB > 0 {
			tr.spare = max(0, x.MemLimitMiB-x.Profile.NeedMiB(r.margin()))
		}
		m.add(&x.Job, x.ElapsedS, tr)
	}
}

func (m *company) add(j *Job, elapsedS float64, tr track) {
	m.jobs, m.elapsedS = append(m.jobs, j), append(m.elapsedS, elapsedS)
	m.profiles, m.tracks = append(m.profiles, j.Profile), append(m.tracks, tr)
}

// mayMeet checks the members' owners and arrays, and that each is known.
func (m *company) mayMeet(spec *GPUSpec) Refusal {
	first, arrayOnly, mixed := m.jobs[0], false, false
	for _, j := range m.jobs {
		arrayOnly, mixed = arrayOnly || j.ArrayOnly, mixed || j.Array == "" || j.Array != first.Array
		switch shared := len(m.jobs) > 1; {
		case shared && j.FirstRun:
			return RefusedFirstRun
		case shared && j.NoShare:
			return RefusedNoShare
		case shared && j.Profile == nil:
			return RefusedUnknown
		case shared && (j.Profile.Busy != nil || j.Profile.HeldMiB > 0) && !spec.MemLimits:
			return RefusedUnheld
		case shared && arrayOnly && mixed:
			return RefusedArray
		case spec.SameUser && j.User != first.User:
			return RefusedUser
		case shared && j.Rank != first.Rank:
			return RefusedRank
		}
	}
	return Allowed
}

// mayShare checks the predictions for several members of known profile: they may meet, and keep contracts and limits.
func (m *company) mayShare(r *Rules, spec *GPUSpec, nowS float64) Refusal {
	clients := 0
	for _, p := range m.profiles {
		clients += p.Clients()
	}
	if spec.MaxClients > 0 && clients > spec.MaxClients {
		return RefusedClients
	}
	if f, ok := r.Predictor.(Forbidder); ok && f.Forbidden(spec, m.profiles) {
		return RefusedForbidden
	}
	m.pred = resize(m.pred, len(m.profiles))
	r.predict(m.pred, spec, m.profiles)
	for k, j := range m.jobs {
		worst := r.worst(&m.pred[k])
		m.tracks[k].slowest = worst
		if r.breaks(j, worst) {
			return RefusedContract
		}
	}
	if !m.keepsSessions(r, spec) {
		return RefusedContract
	}
	if !r.Bare && !m.keepsLimits(r, spec, nowS) {
		return RefusedLimit
	}
	return Allowed
}

// keepsSessions reports whether each interactive session keeps its contract while it computes: for most of the time it
// doesn't, and slows no member.
func (m *company) keepsSessions(r *Rules, spec *GPUSpec) bool {
	for k, j := range m.jobs {
		usual := m.profiles[k]
		if usual.Busy == nil {
			continue
		}
		m.profiles[k] = usual.Busy
		r.predict(m.pred, spec, m.profiles)
		m.profiles[k] = usual
		if r.breaks(j, r.worst(&m.pred[k])) {
			return false
		}
	}
	return true
}

// keepsLimits reports whether every member is expected to end before its time limit and its deadline, on the safe side:
// long runs, less progress than predicted, slowdowns with their errors.
func (m *company) keepsLimits(r *Rules, spec *GPUSpec, nowS float64) bool {
	m.limitsS, m.workS = m.limitsS[:0], m.workS[:0]
	tight := false
	for k, j := range m.jobs {
		limit, tr := r.mustEndS(j, m.elapsedS[k], nowS), &m.tracks[k]
		if math.IsNaN(limit) {
			return false
		}
		work := tr.p.DurationS + r.trust()*tr.p.DurationSD - max(0, tr.lo)
		m.limitsS, m.workS = append(m.limitsS, limit), append(m.workS, work)
		tight = tight || work*tr.slowest > limit
	}
	if !tight {
		return true // even if no member ended before
	}
	m.endsS = m.forecast.ends(r, m.endsS, spec, m.profiles, m.workS)
	for k, end := range m.endsS {
		if end > m.limitsS[k] {
			return false
		}
	}
	return true
}

// forecast predicts ends. Its slices are reused.
type forecast struct {
	left  []float64 // solo work, s
	group []*Profile
	at    []int // of a member of group: its index among all members
	pred  []Prediction
}

// ends writes into dst, reusing its storage, when each member of a GPU will have ended, s from now, if no job joins.
// workS[i] s of solo work are left to member i. The members slow each other by the most that is allowed for of the
// remaining ones.
func (f *forecast) ends(r *Rules, dst []float64, spec *GPUSpec, members []*Profile, workS []float64) []float64 {
	dst = slices.Grow(dst[:0], len(members))[:len(members)]
	f.left, f.group, f.at = append(f.left[:0], workS...), append(f.group[:0], members...), f.at[:0]
	for i := range members {
		f.at = append(f.at, i)
	}
	for t := 0.0; len(f.group) > 0; {
		f.pred = slices.Grow(f.pred[:0], len(f.group))[:len(f.group)]
		r.predict(f.pred, spec, f.group)
		step, first := math.Inf(1), 0
		for i := range f.pred {
			s := f.slowest(r, &f.pred[i])
			f.pred[i].Slowdown = s
			if x := max(0, f.left[i]) * s; x < step {
				step, first = x, i
			}
		}
		t += step
		for i := range f.pred {
			f.left[i] = max(0, f.left[i]-step/f.pred[i].Slowdown)
		}
		dst[f.at[first]] = t
		f.left = slices.Delete(f.left, first, first+1)
		f.group = slices.Delete(f.group, first, first+1)
		f.at = slices.Delete(f.at, first, first+1)
	}
	return dst
}

// slowest is the slowdown of a member of group that ends allow for. At a first meeting, which is an experiment, it is
// no more than that of members that take turns, which is what a card does at worst for all of them together; otherwise
// nothing would be tried where little is known.
func (f *forecast) slowest(r *Rules, p *Prediction) float64 {
	worst := r.worst(p)
	if p.First {
		worst = max(1, p.Slowdown, min(worst, float64(len(f.group))))
	}
	return worst
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
