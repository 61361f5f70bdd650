package gpuprof

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Tally gathers all readings of one run. Its size doesn't grow with the run's
// length. Its fields are exported for the agent's state file only.
type Tally struct {
	PeriodS float64           // of a point of the series, s
	By      map[string]series // by the figure's name: the state outlives a longer table
	Any     float64           // s with a reading of anything
	Last    float64           // up to when, s since the job's start
}

// NewTally returns an empty tally. periodS is the length of the series's first points, s.
func NewTally(periodS float64) *Tally { return &Tally{PeriodS: periodS, By: map[string]series{}} }

// of returns the readings of a figure.
func (t *Tally) of(f Fig) series { return t.By[Recorded[f].Name] }

// Sane reports whether a tally that was read from a file can be true.
func (t *Tally) Sane() bool {
	if !(t.PeriodS > 0) || !finite(t.PeriodS, t.Any, t.Last) || t.By == nil {
		return false
	}
	for _, s := range t.By {
		if all := s.total(); len(s) > MaxPoints || !finite(all.Sum, all.Top, all.Time) {
			return false
		}
	}
	return true
}

// Add adds a reading that holds between two moments, in seconds since the job's
// start. What lies before the last one's end counts once.
func (t *Tally) Add(from, to float64, r Reading) {
	from = max(from, t.Last)
	if !(to > from) || math.IsInf(to, 0) || r.Empty() {
		return
	}
	t.Last = to
	t.Any += to - from
	t.reach(to)
	for i := range Recorded {
		s := t.of(Fig(i))
		s.add(from, to, t.PeriodS, r.Value[i], r.Has(Fig(i)))
		t.By[Recorded[i].Name] = s
	}
}

// reach makes the points long enough for all series to reach a moment.
func (t *Tally) reach(to float64) {
	for t.PeriodS > 0 && to > t.PeriodS*MaxPoints {
		for name, s := range t.By {
			t.By[name] = s.halved()
		}
		t.PeriodS *= 2
	}
}

// unknownBelow is the part of a run that a figure must have been read in.
const unknownBelow = 0.9

// Fill writes what was gathered into a record with a Start and an End.
func (t *Tally) Fill(r *Record) {
	unknown := Figures(0)
	r.PeriodS = t.PeriodS
	r.MissedS = max(0, r.DurationS()-t.Any)
	r.Series = make([]rlcore.Use, len(t.of(FigGPU)))
	for i := range Recorded {
		row := &Recorded[i]
		points := t.of(Fig(i))
		all := points.total()
		mean := 0.0
		if t.Any == 0 || all.Time < unknownBelow*t.Any {
			unknown |= Of(Fig(i))
		}
		if all.Time > 0 {
			mean = min(all.Top, all.mean()) // sums round
		}
		if row.Resource != nil {
			*row.Resource(&r.Mean) = mean
			*row.Resource(&r.Peak) = all.Top
			row.series(points, r.Series)
		}
		if Fig(i) == FigPower && all.Time > 0 {
			r.Power = &Power{MeanW: mean, PeakW: all.Top, EnergyJ: all.Sum}
		}
	}
	r.Unknown = unknown.Names()
}

// series writes a resource's points into a record's series.
func (f *Figure) series(points series, to []rlcore.Use) {
	of := (*Point).mean
	if f.Held {
		of = (*Point).top
	}
	for i, v := range points.column(of) {
		if f.fraction() {
			v = min(1, v) // sums round
		}
		*f.Resource(&to[i]) = f.Round(v)
	}
}

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

// halved joins neighbours two by two, in place.
func (s series) halved() series {
	out := s[:0]
	for i := 0; i < len(s); i += 2 {
		out = append(out, s[i:min(i+2, len(s))].total())
	}
	return out
}

// total is all of it as one point.
func (s series) total() (all Point) {
	for _, p := range s {
		all.Sum += p.Sum
		all.Time += p.Time
		all.Top = max(all.Top, p.Top)
	}
	return all
}

func (p *Point) mean() float64 { return p.Sum / p.Time }
func (p *Point) top() float64  { return p.Top }

// column returns a value of each point. A point without a reading repeats the one
// before it; at the start, the first there is.
func (s series) column(of func(*Point) float64) []float64 {
	out := make([]float64, len(s))
	last := 0.0
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
