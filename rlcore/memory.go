package rlcore

import (
	"cmp"
	"math"
)

// Pacer is a Predictor that also predicts slowdowns at given positions of the
// members' runs, hence when each of them will hold how much memory.
type Pacer interface {
	// Pace writes each member's slowdown at an instant into dst; at[i] is the solo
	// work that member i has done, s. len(dst) == len(members) == len(at).
	Pace(dst []Prediction, spec *GPUSpec, members []*Profile, at []float64)
}

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

// track follows one member's position in its run over the coming time, in seconds
// of solo work, with bounds on the position and on the speed (solo work a second).
type track struct {
	p *Profile
	// Position: predicted, at least, at most.
	mid, lo, hi float64
	// Speed: predicted, at least, at most.
	speed, slow, fast float64
	slowest           float64 // largest slowdown that the guard allows for
	until             float64 // position at which the demand changes next
	spare             float64 // memory that it may take beyond its need, MiB
}

// newTrack starts a track. The progress so far is predicted, not measured, but a
// member was never faster than alone.
func newTrack(p *Profile, done, elapsed, slack float64) track {
	return track{
		p: p, mid: done, slowest: 1,
		lo: done*(1-paceError) - slack, hi: min(done*(1+paceError), max(elapsed, done)) + slack,
	}
}

// advance moves the track by step seconds.
func (tr *track) advance(step float64) {
	tr.mid, tr.lo, tr.hi = tr.mid+step*tr.speed, tr.lo+step*tr.slow, tr.hi+step*tr.fast
}

// most returns the most memory that the member may hold during the next step
// seconds, MiB.
func (tr *track) most(step float64) float64 {
	if tr.lo >= tr.p.LongestS() {
		return 0 // ended even at its slowest
	}
	m := 0.0
	for i, last := tr.p.Index(tr.lo), tr.p.Index(tr.hi+step*tr.fast); i <= last; i++ {
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
	margin := cmp.Or(g.MemMargin, defaultMemMargin)
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
// moment from now on. A job that MPS holds to a limit beyond its need may take all of it.
//
// Where the predictor is a Pacer, all members' runs are followed together: a member
// that is slowed reaches its memory peak later, and its co-runners then hold theirs
// for longer. Each is followed at its predicted speed and at the fastest and slowest
// that the prediction's error allows, and its largest memory in between counts.
// With any other predictor a member's speed may be anything between running alone
// and its slowest.
func (g *Guard) fits(spec *GPUSpec) bool {
	limit := spec.MemMiB * (1 - cmp.Or(g.MemMargin, defaultMemMargin))
	tracks := g.scratch.tracks
	if g.peaks() <= limit {
		return true
	}
	pacer, _ := g.Predictor.(Pacer)
	step := startTracks(tracks, pacer != nil)
	for {
		if pacer != nil {
			g.pace(pacer, spec)
		}
		sum, left := 0.0, false
		for i := range tracks {
			tr := &tracks[i]
			sum += tr.most(step)
			left = left || tr.lo < tr.p.LongestS()
		}
		if sum > limit {
			return false
		}
		if !left {
			return true
		}
		for i := range tracks {
			tracks[i].advance(step)
		}
	}
}

// startTracks sets the tracks' speeds and returns the time step, s. A long future
// gets a coarser one, and each moment then stands for the whole step.
func startTracks(tracks []track, paced bool) float64 {
	step, end := math.Inf(1), 0.0
	for i := range tracks {
		tr := &tracks[i]
		step = min(step, tr.p.PeriodS)
		end = max(end, (tr.p.LongestS()-tr.lo)*tr.slowest)
		tr.speed, tr.fast, tr.slow, tr.until = 1/tr.slowest, 1, 1/tr.slowest, math.Inf(1)
		if paced {
			tr.until = -1
		}
	}
	return max(step, end/maxMoments)
}

// pace predicts the members' speeds again where a demand has changed or a member
// is predicted to have ended.
func (g *Guard) pace(p Pacer, spec *GPUSpec) {
	sc := &g.scratch
	changed := false
	for i := range sc.tracks {
		changed = changed || sc.tracks[i].mid >= sc.tracks[i].until
	}
	if !changed {
		return
	}
	sc.members, sc.at = sc.members[:0], sc.at[:0]
	for i := range sc.tracks {
		tr := &sc.tracks[i]
		if tr.mid < tr.p.DurationS {
			sc.members, sc.at = append(sc.members, tr.p), append(sc.at, tr.mid)
		}
	}
	if cap(sc.pace) < len(sc.tracks) {
		sc.pace = make([]Prediction, len(sc.tracks))
	}
	sc.pace = sc.pace[:len(sc.members)]
	if len(sc.members) > 0 {
		p.Pace(sc.pace, spec, sc.members, sc.at)
	}
	trust := g.trust()
	k := 0
	for i := range sc.tracks {
		tr := &sc.tracks[i]
		if tr.mid >= tr.p.DurationS {
			// It is predicted to have ended. What may be left goes on at its slowest.
			tr.speed, tr.fast, tr.slow, tr.until = 1, 1, 1/tr.slowest, math.Inf(1)
			continue
		}
		tr.setSpeed(sc.pace[k], trust)
		if len(sc.tracks) > 2 {
			tr.fast = 1 // if one of several ends early, the others run faster than predicted
		}
		k++
	}
}

// setSpeed takes over a predicted slowdown, within its error.
func (tr *track) setSpeed(p Prediction, trust float64) {
	s, sd := p.Slowdown, p.SD
	if math.IsNaN(s) || math.IsNaN(sd) || s < 1 {
		s, sd = tr.slowest, 0
	}
	err := trust*sd + paceError*(s-1)
	tr.speed, tr.slow = 1/s, 1/(s+err)
	tr.fast = 1 / max(1, s-err)
	tr.until = tr.p.nextChange(tr.mid)
}

// nextChange returns the solo work, s, after which the demand differs from the one
// after t seconds, memory aside; the end of the run counts as a change.
func (p *Profile) nextChange(t float64) float64 {
	i := p.Index(t)
	u := p.Series[i]
	for i++; i < len(p.Series); i++ {
		v := &p.Series[i]
		if v.GPU != u.GPU || v.Core != u.Core || v.PCIeMBps != u.PCIeMBps {
			return min(float64(i)*p.PeriodS, p.DurationS)
		}
	}
	return p.DurationS
}
