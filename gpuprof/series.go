package gpuprof

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Series gathers readings into points of equal length, at most MaxPoints of them.
// When they are full, neighbours are joined two by two and the period doubles.
//
// A point keeps the mean of what flows and the largest of the memory: a group must
// fit at the peak. The largest of each flow within a point is kept beside it
// (Peaks), so that no peak is averaged away, however long the job.
type Series struct {
	PeriodS float64 // of a point, s; set before the first Add

	Pts []Point // exported for the agent's state file; see Points
}

// Point is one stretch of a Series.
type Point struct {
	Sum  [flows]float64 // integral over the time with a reading
	Top  [flows]float64 // the largest reading
	Time [flows]float64 // s with a reading, each figure's own
}

// Add adds a reading that holds between two moments, in seconds since the job's
// start. It may begin before the end of the one before only by mistake, and may
// leave a gap.
func (s *Series) Add(from, to float64, r Reading) {
	if !(to > from) || from < 0 || math.IsInf(to, 0) || !(s.PeriodS > 0) {
		return
	}
	for to > s.PeriodS*MaxPoints {
		s.halve()
	}
	v := Values(r.Use)
	for from < to {
		i := int(from / s.PeriodS)
		end := min(to, float64(i+1)*s.PeriodS)
		if end <= from { // rounding at a point's edge
			i++
			end = min(to, float64(i+1)*s.PeriodS)
		}
		i = min(i, MaxPoints-1)
		for len(s.Pts) <= i {
			s.Pts = append(s.Pts, Point{})
		}
		p := &s.Pts[i]
		for k := range v {
			if r.Has&(1<<k) != 0 {
				p.Sum[k] += v[k] * (end - from)
				p.Time[k] += end - from
				p.Top[k] = max(p.Top[k], v[k])
			}
		}
		from = end
	}
}

func (s *Series) halve() {
	out := s.Pts[:0]
	for i := 0; i < len(s.Pts); i += 2 {
		p := s.Pts[i]
		if i+1 < len(s.Pts) {
			q := s.Pts[i+1]
			for k := range p.Sum {
				p.Sum[k] += q.Sum[k]
				p.Time[k] += q.Time[k]
				p.Top[k] = max(p.Top[k], q.Top[k])
			}
		}
		out = append(out, p)
	}
	s.Pts = out
	s.PeriodS *= 2
}

// Points returns the series. Where a figure has no reading, the point repeats the
// one before it; at the start, the first there is.
func (s *Series) Points() []rlcore.Use {
	return s.each(func(p *Point, k int) float64 {
		if k == 2 { // memory
			return p.Top[k]
		}
		return p.Sum[k] / p.Time[k]
	})
}

// Peaks returns the largest reading of each figure in each point.
func (s *Series) Peaks() []rlcore.Use {
	return s.each(func(p *Point, k int) float64 { return p.Top[k] })
}

func (s *Series) each(of func(p *Point, k int) float64) []rlcore.Use {
	out := make([][flows]float64, len(s.Pts))
	for k := range flows {
		last, seen := 0.0, false
		for i := range s.Pts {
			if p := &s.Pts[i]; p.Time[k] > 0 {
				last = of(p, k)
				if k < 2 { // a fraction; sums round
					last = min(1, last)
				}
				if !seen {
					for j := range i {
						out[j][k] = last
					}
					seen = true
				}
			}
			out[i][k] = last
		}
	}
	uses := make([]rlcore.Use, len(out))
	for i, v := range out {
		uses[i] = useOf(v)
	}
	return uses
}
