package rlcore

import "math"

// Pacer is a Predictor that also knows how fast members go at given places of
// their runs, and so when each will hold which memory.
type Pacer interface {
	// Pace writes each member's slowdown at an instant into dst; at[i] is how much
	// solo work member i has done, s. len(dst) == len(members) == len(at).
	Pace(dst []Prediction, spec *GPUSpec, members []*Profile, at []float64)
}

// paceError is the error allowed for in how far a running job has come, as a
// fraction: twice the contention law's own (see contention.MPS).
const paceError = 0.1

// Believed is how far a job that is still running has come in its run of the given
// length, s, when done is what its predicted speeds add up to. One that should
// have ended was slower than predicted: the later it is, the less is believed.
func Believed(done, duration float64) float64 {
	if done <= duration {
		return done
	}
	return duration * duration / done
}

// track is one member's place in its run over the coming time, as far as it is
// known: solo work done, s.
type track struct {
	p           *Profile
	mid         float64 // as predicted
	lo, hi      float64 // at least, at most
	slowest     float64 // its slowdown at worst
	until       float64 // where its demand changes next
	fast, speed float64 // work per second: at most, as predicted
	slow        float64 // at least
}

// newTrack starts a track. How fast a running job went so far is foreseen, not
// measured; it never went faster than alone.
func newTrack(p *Profile, done, elapsed, slack float64) track {
	return track{
		p: p, mid: done, slowest: 1,
		lo: done*(1-paceError) - slack, hi: min(done*(1+paceError), max(elapsed, done)) + slack,
	}
}

// fits reports whether the members' memory stays within what the guard grants at
// every moment from now on.
//
// Where the predictor is a Pacer, the members' runs are followed together: who is
// slowed later reaches his memory later, and at the same time his company holds
// theirs for longer. Each track is followed at its predicted speed and at the
// fastest and slowest that the prediction's error allows; the largest memory in
// between counts. Elsewhere a member may be anywhere between running alone and
// its slowest.
func (g *Guard) fits(spec *GPUSpec) bool {
	limit := spec.MemMiB * (1 - orDefault(g.MemMargin, 0.05))
	sc := &g.scratch
	peaks := 0.0
	for i := range sc.tracks {
		peaks += sc.tracks[i].p.Peak().MemMiB
	}
	if peaks <= limit {
		return true
	}
	pacer, _ := g.Predictor.(Pacer)
	step, end := math.Inf(1), 0.0
	for i := range sc.tracks {
		tr := &sc.tracks[i]
		step = min(step, tr.p.PeriodS)
		end = max(end, (tr.p.DurationS-tr.lo)*tr.slowest)
		tr.speed, tr.fast, tr.slow, tr.until = 1/tr.slowest, 1, 1/tr.slowest, math.Inf(1)
		if pacer != nil {
			tr.until = -1
		}
	}
	// At most 4096 moments are looked at; a longer future gets a coarser step, and
	// each moment then stands for the whole step.
	step = max(step, end/4096)
	for {
		if pacer != nil {
			g.pace(pacer, spec)
		}
		sum, left := 0.0, false
		for i := range sc.tracks {
			tr := &sc.tracks[i]
			sum += tr.most(step)
			left = left || tr.lo < tr.p.DurationS
		}
		if sum > limit {
			return false
		}
		if !left {
			return true
		}
		for i := range sc.tracks {
			tr := &sc.tracks[i]
			tr.mid, tr.lo, tr.hi = tr.mid+step*tr.speed, tr.lo+step*tr.slow, tr.hi+step*tr.fast
		}
	}
}

// most is the most memory the member may hold from now until step seconds later.
func (tr *track) most(step float64) float64 {
	if tr.lo >= tr.p.DurationS {
		return 0 // ended even at its slowest
	}
	m := 0.0
	for i, last := tr.p.Index(tr.lo), tr.p.Index(tr.hi+step*tr.fast); i <= last; i++ {
		m = max(m, tr.p.Series[i].MemMiB)
	}
	return m
}

// pace sets the members' speeds anew where a demand has changed or a member has
// ended, as far as is foreseen.
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
	trust := orDefault(g.Trust, 1)
	k := 0
	for i := range sc.tracks {
		tr := &sc.tracks[i]
		if tr.mid >= tr.p.DurationS {
			// It has ended as foreseen. What may be left of it goes on at its slowest.
			tr.speed, tr.fast, tr.slow, tr.until = 1, 1, 1/tr.slowest, math.Inf(1)
			continue
		}
		s, sd := sc.pace[k].Slowdown, sc.pace[k].SD
		k++
		if math.IsNaN(s) || math.IsNaN(sd) || s < 1 {
			s, sd = tr.slowest, 0
		}
		err := trust*sd + paceError*(s-1)
		tr.speed, tr.slow = 1/s, 1/(s+err)
		tr.fast = 1 / max(1, s-err)
		if len(sc.tracks) > 2 {
			// If one of several leaves early, the others go faster than foreseen.
			tr.fast = 1
		}
		tr.until = tr.p.changes(tr.mid)
	}
}

// changes returns after how much solo work the demand is another than it is after
// t seconds, memory aside; the end of the run counts as a change.
func (p *Profile) changes(t float64) float64 {
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
