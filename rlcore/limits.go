package rlcore

import "math"

// granularityS is how much of a time limit stays unused where there is room, s: a job's
// start-up counts toward its limit, and Slurm counts in minutes and looks every 30 s.
const granularityS = 30

// keepsLimits reports whether every member is expected to end before its time limit and
// its deadline, on the safe side: its run is as long as its application's runs were at
// most, it has come less far than predicted, and everybody is as slow as the guard allows
// for. It uses what admit and keepsContracts left in the scratch.
//
// A job that its limit may end even alone shares only under a contract of its own. Where the time that sharing costs is
// given back (ExtendLimit) a limit ends no job for having shared, and doesn't count.
func (g *Guard) keepsLimits(w *Window, c Combo) bool {
	sc := &g.scratch
	sc.limits = sc.limits[:0]
	card := w.Card()
	for i := range card.Running {
		r := &card.Running[i]
		sc.limits = append(sc.limits, g.timeFor(&r.Job, r.ElapsedS, w.State.NowS))
	}
	for i := range w.Jobs {
		if c.Has(i) {
			sc.limits = append(sc.limits, g.timeFor(w.Job(i), 0, w.State.NowS))
		}
	}
	trust := g.trust()
	sc.work = sc.work[:0]
	tight := false
	for i := range sc.tracks {
		tr := &sc.tracks[i]
		work := tr.p.DurationS + trust*tr.p.DurationSD - max(0, tr.lo)
		sc.work = append(sc.work, work)
		if math.IsNaN(sc.limits[i]) {
			return false
		}
		tight = tight || work*tr.slowest > sc.limits[i]
	}
	if !tight {
		return true // even if nobody ended before
	}
	sc.ends = g.ends(sc.ends, &card.Spec, sc.members, sc.work, trust)
	for i, end := range sc.ends {
		if end > sc.limits[i] {
			return false
		}
	}
	return true
}

// timeFor returns in how many seconds after nowS a job of known profile must have ended at
// the latest; +Inf = it has no limit that counts, NaN = it must not share for its limit.
func (g *Guard) timeFor(j *Job, elapsedS, nowS float64) float64 {
	in := math.Inf(1)
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
