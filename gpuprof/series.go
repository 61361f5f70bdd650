package gpuprof

import "slices"

// Point is one stretch of a figure's series. When there are more than MaxPoints, neighbours are
// joined two by two, and the length of a point doubles; the largest reading is kept in addition to
// the mean, so that no peak is averaged away in a long job.
type Point struct {
	Sum  float64 // integral over the time with a reading
	Top  float64 // the largest reading
	Time float64 // s with a reading
}

// series is one figure's readings in points of equal length.
type series []Point

// add adds a value that holds between two moments, in seconds since the job's start.
// Without one it makes the series as long and leaves a gap.
func (s *series) add(from, to, period, v float64, known bool) {
	for from < to {
		i := int(from / period)
		end := min(to, float64(i+1)*period)
		if end <= from { // rounding at a point's edge
			i++
			end = min(to, float64(i+1)*period)
		}
		i = min(i, MaxPoints-1)
		for len(*s) <= i {
			*s = append(*s, Point{})
		}
		if p := &(*s)[i]; known {
			p.Sum += v * (end - from)
			p.Time += end - from
			p.Top = max(p.Top, v)
		}
		from = end
	}
}

func (s *series) halve() {
	out := (*s)[:0]
	for i := 0; i < len(*s); i += 2 {
		p := (*s)[i]
		if i+1 < len(*s) {
			q := (*s)[i+1]
			p.Sum += q.Sum
			p.Time += q.Time
			p.Top = max(p.Top, q.Top)
		}
		out = append(out, p)
	}
	*s = out
}

func (p *Point) mean() float64 { return p.Sum / p.Time }
func (p *Point) top() float64  { return p.Top }

// column returns a value of each point. A point without a reading repeats the one
// before it; at the start, the first there is.
func (s series) column(of func(*Point) float64) []float64 {
	out, last := make([]float64, len(s)), 0.0
	if first := slices.IndexFunc(s, func(p Point) bool { return p.Time > 0 }); first >= 0 {
		last = of(&s[first])
	}
	for i := range s {
		if s[i].Time > 0 {
			last = of(&s[i])
		}
		out[i] = last
	}
	return out
}
