package interference

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// traits are what the members' solo profiles, and the law, say of one member's slowdown: the
// figures x of the regression (see learn.go), each times the prior standard deviation of its
// weight, so that all weights have a prior variance of 1.
//
// With z of the law, n members, and of each member how busy it keeps the GPU (u) and its memory
// (m), and the logarithm of an iteration's time (t), all in units of how much they usually differ:
//
//	level, slope   the site's corrections of the law: card_c (see learn.go), and z − z_usual
//	more           ln(n/2)
//	linear         u, m of the member and of a co-runner, t of the co-runner less the member's
//	waves          cos and sin of 10 random directions in those five (random Fourier features,
//	               Rahimi and Recht, 2007): products, thresholds and other smooth functions
//
// linear and waves are means over the co-runners. What isn't known is taken for usual, and t counts
// where it is known of all: only differences matter, so there is no unit of time.
type traits [2 + linear + 2*waves]float64

const (
	linear = 5
	waves  = 10
	slope  = 0 // index in traits
	more   = 1
)

// The prior standard deviations. The weights' mean is 0: without observations the model is the law. They were chosen
// together with the constants of learn.go; LEARNING.md says how well each set of measurements is predicted.
const (
	slopeSD  = 0.3
	moreSD   = 0.6
	linearSD = 0.15
	wavesSD  = 0.25
	// reach is the distance, in units of the five, over which slowdowns vary.
	reach = 1.3
	// farthest bounds a difference of t.
	farthest = 4.0
	// mostSteep bounds what slope adds at an instant of a run.
	mostSteep = 1.0
)

// usualZ is the law's z at which slope changes nothing.
var usualZ = excess(1.3)

// direction is one of the waves'.
type direction struct{ u, m, t [2]float64 } // of the member, of a co-runner

// directions are normal, by a Halton sequence: evenly spread, and the same everywhere.
var directions = func() (out [waves]direction) {
	of := func(k, base int) float64 {
		at, f := 0.0, 1.0
		for k++; k > 0; k /= base {
			f /= float64(base)
			at += f * float64(k%base)
		}
		return math.Sqrt2 * math.Erfinv(2*at-1) / reach
	}
	for k := range out {
		t := of(k, 11)
		out[k] = direction{u: [2]float64{of(k, 2), of(k, 3)}, m: [2]float64{of(k, 5), of(k, 7)}, t: [2]float64{-t, t}}
	}
	return out
}()

// sketch is what traits take of one profile.
type sketch struct {
	u, m, t float64
	timed   bool // t is known
	// The waves' angles, by whether t counts: as the member, as a co-runner.
	plain, full [2]angles
}

type angles struct{ cos, sin [waves]float64 }

// newSketch takes an application's mean use of the GPU and of its memory, 0..1, and the time
// of an iteration, s; 0 = not known of the latter two.
func newSketch(gpu, mem, stepS float64) *sketch {
	const spread = 0.25 // of both uses among training jobs
	s := &sketch{u: (gpu - 0.6) / spread}
	if mem > 0 {
		s.m = (mem - 0.3) / spread
	}
	if stepS > 0 && !math.IsInf(stepS, 1) {
		s.t, s.timed = math.Log(stepS)/1.4, true
	}
	for k := range directions {
		d := &directions[k]
		for as := range s.plain {
			a := d.u[as]*s.u + d.m[as]*s.m
			s.plain[as].sin[k], s.plain[as].cos[k] = math.Sincos(a)
			s.full[as].sin[k], s.full[as].cos[k] = math.Sincos(a + d.t[as]*s.t)
		}
	}
	return s
}

// angles returns those as the member (0) or as a co-runner (1).
func (s *sketch) angles(as int, timed bool) *angles {
	if timed {
		return &s.full[as]
	}
	return &s.plain[as]
}

// maxSketches bounds how many profiles' sketches are kept. Profiles are immutable.
const maxSketches = 1 << 12

// sketch returns the members' sketches, in the model's scratch.
func (m *Model) sketch(members []*rlcore.Profile) []*sketch {
	m.drawn = m.drawn[:0]
	for _, p := range members {
		s := m.sketches[p]
		if s == nil {
			var u rlcore.Use
			if len(p.Series) > 0 {
				u = p.Mean()
			}
			s = newSketch(u.GPU, u.MemBusy, p.StepS)
			if m.sketches == nil || len(m.sketches) >= maxSketches {
				m.sketches = make(map[*rlcore.Profile]*sketch)
			}
			m.sketches[p] = s
		}
		m.drawn = append(m.drawn, s)
	}
	return m.drawn
}

// excess returns z of a slowdown.
func excess(slowdown float64) float64 { return math.Log(max(slowdown, 1) - 1 + Floor) }

// traitsOf returns the traits of member i, for which the law says z on average.
func traitsOf(members []*sketch, i int, z float64) (x traits) {
	x.set(members, i, z)
	return x
}

func (x *traits) set(members []*sketch, i int, z float64) {
	me := members[i]
	*x = traits{}
	x[slope] = slopeSD * (clamp(z, surpriseN) - usualZ)
	x[more] = moreSD * math.Log(float64(len(members))/2)
	timed := true
	for _, o := range members {
		timed = timed && o.timed
	}
	lin, wav := x[2:2+linear], x[2+linear:]
	for j, o := range members {
		if j == i {
			continue
		}
		lin[1] += o.u
		lin[3] += o.m
		if timed {
			lin[4] += clamp(o.t-me.t, farthest)
		}
		a := o.angles(1, timed)
		for k := range waves {
			wav[2*k] += a.cos[k]
			wav[2*k+1] += a.sin[k]
		}
	}
	others := 1 / float64(len(members)-1)
	lin[0], lin[2] = linearSD*me.u, linearSD*me.m
	for _, k := range []int{1, 3, 4} {
		lin[k] *= linearSD * others
	}
	w, a := others*wavesSD/math.Sqrt(waves), me.angles(0, timed)
	for k := range waves {
		c, s := wav[2*k], wav[2*k+1]
		wav[2*k] = w * (a.cos[k]*c - a.sin[k]*s) // cos of the sum
		wav[2*k+1] = w * (a.sin[k]*c + a.cos[k]*s)
	}
}
