package rlcore

import "math"

// granularityS is how much of a time limit stays unused where there is room, s: a job's start-up counts toward its
// limit, and Slurm counts in minutes and looks every 30 s.
const granularityS = 30

// keepsLimits reports whether every member in the scratch is expected to end before its time limit and its deadline, on
// the safe side: long runs, less progress than predicted, slowdowns with their errors.
//
// A job that may reach its limit even alone shares only under a contract of its own. With ExtendLimit the time that
// sharing costs is given back, and limits don't count.
func (g *Guard) keepsLimits(spec *GPUSpec, nowS float64) bool {
	sc := &g.scratch
	sc.limits, sc.work = sc.limits[:0], sc.work[:0]
	tight := false
	for k, j := range sc.jobs {
		limit, tr := g.timeFor(j, sc.elapsed[k], nowS), &sc.tracks[k]
		if math.IsNaN(limit) {
			return false
		}
		work := tr.p.DurationS + g.trust()*tr.p.DurationSD - max(0, tr.lo)
		sc.limits, sc.work = append(sc.limits, limit), append(sc.work, work)
		tight = tight || work*tr.slowest > limit
	}
	if !tight {
		return true // even if no member ended before
	}
	sc.ends = g.ends(sc.ends, spec, sc.members, sc.work)
	for k, end := range sc.ends {
		if end > sc.limits[k] {
			return false
		}
	}
	return true
}

// timeFor returns how many seconds after nowS a job of known profile must have ended; +Inf = no limit counts, NaN = it
// must not share because of its limit.
func (g *Guard) timeFor(j *Job, elapsedS, nowS float64) float64 {
	in := math.Inf(1)
	if j.Profile.Busy != nil { // a session lasts for a time, not for an amount of work
		return in
	}
	if j.LimitS > 0 && (!g.ExtendLimit || j.LimitFixed) {
		spare := j.LimitS - j.Profile.DurationS - g.trust()*j.Profile.DurationSD
		switch {
		case spare > 0:
			in = j.LimitS - elapsedS - min(granularityS, spare/2)
		case j.MaxSlowdown == 0:
			return math.NaN()
		}
	}
	if j.DeadlineS > 0 {
		in = min(in, j.DeadlineS-nowS-granularityS)
	}
	return in
}
