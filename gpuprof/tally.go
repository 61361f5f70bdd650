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
	By      map[string]*Total // by the figure's name: the state outlives a longer table
	Any     float64           // s with a reading of anything
	Last    float64           // up to when, s since the job's start
}

// Total is what a Tally has gathered of one figure.
type Total struct {
	Sum, Max, Time float64 // integral over time, largest, s with a reading
	Points         series
}

// NewTally returns an empty tally. periodS is the length of the series's first
// points, s.
func NewTally(periodS float64) *Tally {
	t := &Tally{PeriodS: periodS, By: map[string]*Total{}}
	for f := range Recorded {
		t.of(Fig(f))
	}
	return t
}

// of returns what was gathered of a figure.
func (t *Tally) of(f Fig) *Total {
	name := Recorded[f].Name
	if t.By[name] == nil {
		t.By[name] = &Total{}
	}
	return t.By[name]
}

// Sane reports whether a tally that was read from a file can be true.
func (t *Tally) Sane() bool {
	if !(t.PeriodS > 0) || !finite(t.PeriodS, t.Any, t.Last) || t.By == nil {
		return false
	}
	for _, total := range t.By {
		if total == nil || len(total.Points) > MaxPoints || !finite(total.Sum, total.Max, total.Time) {
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
	dt := to - from
	t.Last = to
	t.Any += dt
	t.reach(to)
	for i := range Recorded {
		f, row := Fig(i), &Recorded[i]
		total, v := t.of(f), r.Value[f]
		if row.Resource != nil {
			total.Points.add(from, to, t.PeriodS, v, r.Has(f))
		}
		if !r.Has(f) {
			continue
		}
		total.Sum += v * dt
		total.Time += dt
		total.Max = max(total.Max, v)
	}
}

// reach makes the points long enough for all series to reach a moment.
func (t *Tally) reach(to float64) {
	for t.PeriodS > 0 && to > t.PeriodS*MaxPoints {
		for _, total := range t.By {
			total.Points.halve()
		}
		t.PeriodS *= 2
	}
}

// unknownBelow is the part of a run that a figure must have been read in.
const unknownBelow = 0.9

// Fill writes what was gathered into a record with a Start and an End.
func (t *Tally) Fill(r *Record) {
	unknown := Figures(0)
	r.PeriodS, r.MissedS = t.PeriodS, max(0, r.DurationS()-t.Any)
	r.Series = make([]rlcore.Use, len(t.of(FigGPU).Points))
	for i := range Recorded {
		row, total := &Recorded[i], t.of(Fig(i))
		if t.Any == 0 || total.Time < unknownBelow*t.Any {
			unknown |= Of(Fig(i))
		}
		if row.Resource != nil {
			*row.Resource(&r.Mean), *row.Resource(&r.Peak) = total.mean(), total.Max
			row.series(total.Points, r.Series)
		}
	}
	if p := t.of(FigPower); p.Time > 0 {
		r.Power = &Power{MeanW: p.mean(), PeakW: p.Max, EnergyJ: p.Sum}
	}
	r.Unknown = unknown.Names()
}

// mean is over the time with readings; of none it is 0.
func (t *Total) mean() float64 {
	if t.Time == 0 {
		return 0
	}
	return min(t.Max, t.Sum/t.Time) // sums round
}

// series writes a resource's points into a record's series.
func (f *Figure) series(points series, to []rlcore.Use) {
	of := (*Point).mean
	if f.Held {
		of = (*Point).top
	}
	for i, v := range points.column(of) {
		if f.Fraction() {
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
