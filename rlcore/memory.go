package rlcore

import "math"

const (
	// paceError is the relative error allowed for in a running job's progress: about twice the contention law's own (see
	// contention.MPS).
	paceError = 0.1
	// slackS is the error allowed for in a member's position in its run, s: Slurm reports starts in whole seconds, and a
	// released job takes a moment to start.
	slackS = 3.0
	// maxMoments bounds the moments at which fits sums memory.
	maxMoments = 4096
)

// Believed returns a running job's progress, s of solo work, given its predicted progress and its solo duration. A job
// that should have ended was slower than predicted; the later it is, the less of done is believed.
func Believed(done, duration float64) float64 {
	if done <= duration {
		return done
	}
	return duration * duration / done
}

// most returns the most memory that the member may hold during the next step seconds, MiB. Its window of the series
// moves only forward, so what the last call looked at is looked at again only if its maximum has left the window.
func (x *member) most(step float64) float64 {
	if x.lo >= x.Profile.LongestS() {
		return 0 // ended even at its slowest
	}
	series := x.Profile.Series
	if first := x.Profile.Index(x.lo); x.top < first {
		x.top, x.seen = first, first
	}
	for last := x.Profile.Index(x.hi + step); x.seen < last; {
		x.seen++
		if series[x.seen].MemMiB >= series[x.top].MemMiB {
			x.top = x.seen
		}
	}
	return series[x.top].MemMiB + x.spare
}

// leastMargin is the smallest margin, regardless of the setting: a limit that is too low fails an innocent job. It is
// also more than 2^20/10^6, in case a driver takes M for a million.
const leastMargin = 0.05

// NeedMiB is the device memory that a job of the application is expected to need, MiB: the highest of its profile plus
// a margin, a fraction of that. 0 = the profile is silent.
func (p *Profile) NeedMiB(margin float64) float64 {
	// A series keeps its peaks, and a profile the largest memory of its runs.
	v := math.Ceil(p.Peak().MemMiB * (1 + max(margin, leastMargin)))
	if !(v >= 1 && v < 1<<40) { // not NaN either; the exact whole numbers end far beyond
		return 0
	}
	return v
}

// MemoryLimits returns the device memory, MiB, that each job starting on a card may be held to; 0 = no limit. A job
// that takes more than its earlier runs then fails before its neighbours do. To make that rare, the card's remaining
// memory is divided among the jobs, with one part left for a later join. The guard counts these limits; see
// Running.MemLimitMiB.
func (r *Rules) MemoryLimits(card *GPU, starting []*Profile) []float64 {
	limits := make([]float64, len(starting))
	if !card.Spec.MemLimits {
		return limits
	}
	margin := r.margin()
	free := card.Spec.MemMiB
	for i := range card.Running {
		x := &card.Running[i]
		if x.Profile == nil {
			return limits
		}
		free -= max(x.MemLimitMiB, x.Profile.NeedMiB(margin))
	}
	for _, p := range starting {
		if p == nil {
			return limits
		}
		free -= p.NeedMiB(margin)
	}
	part := max(0, free) / float64(len(starting)+1)
	for i, p := range starting {
		switch need := p.NeedMiB(margin); {
		case p.Asked: // it has what its owner says
			limits[i] = p.HeldMiB
		case need > 0 && p.Busy != nil: // a session has what was agreed
			limits[i] = need
		case need > 0:
			limits[i] = math.Floor(need + part)
		}
	}
	return limits
}

// fits reports whether the members' memory stays within a limit from now on, MiB: each member's largest memory counts
// between its slowest and its fastest position. A job that MPS holds to a limit beyond its need may take all of it. A
// long future gets coarser steps, and each moment stands for its whole step.
func (m *company) fits(limit float64) bool {
	if m.peaks() <= limit {
		return true
	}
	step := math.Inf(1)
	end := 0.0
	for i := range m.members {
		x := &m.members[i]
		step = min(step, x.Profile.PeriodS)
		end = max(end, (x.Profile.LongestS()-x.lo)*x.slowest)
	}
	step = max(step, end/maxMoments)
	for left := true; left; {
		sum := 0.0
		left = false
		for i := range m.members {
			x := &m.members[i]
			sum += x.most(step)
			left = left || x.lo < x.Profile.LongestS()
			x.lo += step / x.slowest
			x.hi += step
		}
		if sum > limit {
			return false
		}
	}
	return true
}

// peaks is the sum of the most memory that each member may hold, MiB.
func (m *company) peaks() float64 {
	sum := 0.0
	for i := range m.members {
		sum += m.members[i].Profile.peakMiB() + m.members[i].spare
	}
	return sum
}

// peakMiB is the most device memory of the run, MiB.
func (p *Profile) peakMiB() float64 {
	peak := 0.0
	for i := range p.Series {
		peak = max(peak, p.Series[i].MemMiB)
	}
	return peak
}
