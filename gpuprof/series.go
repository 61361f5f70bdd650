package gpuprof

import "github.com/slurmbridge/slurmbridge/rlcore"

// Series gathers samples into points of equal length, at most MaxPoints of them.
// When they are full, neighbours are joined two by two and the period doubles.
// A point keeps the mean of what flows and the largest of the memory: a group
// must fit at the peak.
type Series struct {
	PeriodS float64 // of a point, s; set before the first Add

	points []point
	peak   rlcore.Use
	total  rlcore.Use // integrals over time
	time   float64    // s with a sample
}

type point struct {
	sum  rlcore.Use // time-weighted; MemMiB is the largest
	time float64
}

// Add adds what was used between two moments, in seconds since the job's start.
func (s *Series) Add(from, to float64, u rlcore.Use) {
	if !(to > from) || from < 0 {
		return
	}
	s.peak.GPU, s.peak.Core = max(s.peak.GPU, u.GPU), max(s.peak.Core, u.Core)
	s.peak.MemMiB, s.peak.PCIeMBps = max(s.peak.MemMiB, u.MemMiB), max(s.peak.PCIeMBps, u.PCIeMBps)
	addUse(&s.total, u, to-from)
	s.total.MemMiB += u.MemMiB * (to - from)
	s.time += to - from
	for to > s.PeriodS*MaxPoints {
		s.halve()
	}
	for from < to {
		i := int(from / s.PeriodS)
		end := min(to, float64(i+1)*s.PeriodS)
		if end <= from { // rounding at a point's edge
			i++
			end = min(to, float64(i+1)*s.PeriodS)
		}
		i = min(i, MaxPoints-1)
		for len(s.points) <= i {
			s.points = append(s.points, point{})
		}
		p := &s.points[i]
		addUse(&p.sum, u, end-from)
		p.sum.MemMiB = max(p.sum.MemMiB, u.MemMiB)
		p.time += end - from
		from = end
	}
}

// addUse adds u for dt seconds to an integral, its memory left out.
func addUse(sum *rlcore.Use, u rlcore.Use, dt float64) {
	sum.GPU += u.GPU * dt
	sum.Core += u.Core * dt
	sum.PCIeMBps += u.PCIeMBps * dt
}

func (s *Series) halve() {
	out := s.points[:0]
	for i := 0; i < len(s.points); i += 2 {
		p := s.points[i]
		if i+1 < len(s.points) {
			q := s.points[i+1]
			addUse(&p.sum, q.sum, 1)
			p.sum.MemMiB = max(p.sum.MemMiB, q.sum.MemMiB)
			p.time += q.time
		}
		out = append(out, p)
	}
	s.points = out
	s.PeriodS *= 2
}

// Points returns the series; a point without a sample repeats the one before it.
func (s *Series) Points() []rlcore.Use {
	out := make([]rlcore.Use, len(s.points))
	for i := range s.points {
		p := &s.points[i]
		if p.time == 0 {
			if i > 0 {
				out[i] = out[i-1]
			}
			continue
		}
		out[i] = rlcore.Use{
			GPU: min(1, p.sum.GPU/p.time), Core: min(1, p.sum.Core/p.time),
			PCIeMBps: p.sum.PCIeMBps / p.time, MemMiB: p.sum.MemMiB,
		}
	}
	return out
}

// Peak is the largest of each figure, Mean the average over the time sampled.
func (s *Series) Peak() rlcore.Use { return s.peak }

// Mean is the average of each figure over the time sampled.
func (s *Series) Mean() rlcore.Use {
	if s.time == 0 {
		return rlcore.Use{}
	}
	return rlcore.Use{
		GPU: min(1, s.total.GPU/s.time), Core: min(1, s.total.Core/s.time),
		PCIeMBps: s.total.PCIeMBps / s.time, MemMiB: s.total.MemMiB / s.time,
	}
}
