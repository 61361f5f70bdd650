package rlcore

import (
	"cmp"
	"math"
)

const (
	// paceError is the relative error allowed for in a running job's progress: about
	// twice the contention law's own (see contention.MPS).
	paceError = 0.1
	// maxMoments bounds the moments at which fits sums memory.
	maxMoments = 4096
)

// Believed returns a running job's progress, s of solo work, where its predicted
// speeds add up to done and its solo run takes duration. A job that should have
// ended was slower than predicted; the later it is, the less of done is believed.
func Believed(done, duration float64) float64 {
	if done <= duration {
		return done
	}
	return duration * duration / done
}

// track bounds one member's position in its run over the coming time, in seconds of solo work.
type track struct {
	p       *Profile
	lo, hi  float64 // position at least, at most
	slowest float64 // largest slowdown that the guard allows for
	spare   float64 // memory that it may take beyond its need, MiB
}

// newTrack starts a track, nil = of a job that is not known. The progress so far is predicted, not measured, but a
// member was never faster than alone.
func (g *Guard) newTrack(p *Profile, done, elapsed float64) track {
	slack := cmp.Or(g.SlackS, defaultSlackS)
	return track{p: p, slowest: 1, lo: done*(1-paceError) - slack, hi: min(done*(1+paceError), max(elapsed, done)) + slack}
}

// most returns the most memory that the member may hold during the next step
// seconds, MiB.
func (tr *track) most(step float64) float64 {
	if tr.lo >= tr.p.LongestS() {
		return 0 // ended even at its slowest
	}
	m := 0.0
	for i, last := tr.p.Index(tr.lo), tr.p.Index(tr.hi+step); i <= last; i++ {
		m = max(m, tr.p.Series[i].MemMiB)
	}
	return m + tr.spare
}

// leastMargin is for what no setting may take away: a limit too low fails a job that did
// nothing wrong. It is also more than 2^20/10^6, whichever a driver takes M for.
const leastMargin = 0.05

// NeedMiB is the device memory that a job of the application is expected to get along
// with, MiB: the highest of its profile and a margin, which is a fraction of that. 0 = the
// profile doesn't tell.
func (p *Profile) NeedMiB(margin float64) float64 {
	// A series keeps its peaks and a profile the larger memory of its runs, so this is
	// the highest quantile of all that was seen.
	v := math.Ceil(p.peakMemMiB() * (1 + max(margin, leastMargin)))
	if !(v >= 1 && v < 1<<40) { // not NaN either; the exact whole numbers end far beyond
		return 0
	}
	return v
}

// MemoryLimits returns the device memory, MiB, that each of the jobs may be held to that
// start on a card beside those that run there; 0 = it is not to be held. A job whose next
// run takes more than its last ones then fails before its neighbours do. So that it seldom
// comes to that, what is left over of the card is divided among them, one part being kept
// for a job that may join. The guard counts what jobs were given; see Running.MemLimitMiB.
func (g *Guard) MemoryLimits(card *GPU, starting []*Profile) []float64 {
	limits := make([]float64, len(starting))
	if !card.Spec.MemLimits {
		return limits
	}
	margin := g.margin()
	free := card.Spec.MemMiB
	for i := range card.Running {
		r := &card.Running[i]
		if r.Profile == nil {
			return limits
		}
		free -= max(r.MemLimitMiB, r.Profile.NeedMiB(margin))
	}
	for _, p := range starting {
		if p == nil {
			return limits
		}
		free -= p.NeedMiB(margin)
	}
	part := max(0, free) / float64(len(starting)+1)
	for i, p := range starting {
		if need := p.NeedMiB(margin); need > 0 {
			limits[i] = math.Floor(need + part)
		}
	}
	return limits
}

// fits reports whether the members' memory stays within the guard's limit at every
// moment from now on: each member's largest memory counts between the positions that it reaches at its slowest and alone.
// A job that MPS holds to a limit beyond its need may take all of it. A long future gets coarser steps, and each moment
// then stands for the whole step.
func (g *Guard) fits(spec *GPUSpec) bool {
	limit := g.memory(spec)
	if g.peaks() <= limit {
		return true
	}
	tracks := g.scratch.tracks
	step, end := math.Inf(1), 0.0
	for i := range tracks {
		tr := &tracks[i]
		step, end = min(step, tr.p.PeriodS), max(end, (tr.p.LongestS()-tr.lo)*tr.slowest)
	}
	step = max(step, end/maxMoments)
	for left := true; left; {
		sum := 0.0
		left = false
		for i := range tracks {
			tr := &tracks[i]
			sum += tr.most(step)
			left = left || tr.lo < tr.p.LongestS()
			tr.lo, tr.hi = tr.lo+step/tr.slowest, tr.hi+step
		}
		if sum > limit {
			return false
		}
	}
	return true
}

// peaks is the most memory that the members may ever hold at the same time, MiB.
func (g *Guard) peaks() float64 {
	sum := 0.0
	for i := range g.scratch.tracks {
		tr := &g.scratch.tracks[i]
		sum += tr.p.peakMemMiB() + tr.spare
	}
	return sum
}
