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
	Bins           *Sketch // nil = the figure has no quantiles
	Points         series
}

// NewTally returns an empty tally. periodS is the length of the series's first
// points, s; span the range of a figure on the job's GPUs, 0 or missing = unknown.
func NewTally(periodS float64, span map[Fig]float64) *Tally {
	t := &Tally{PeriodS: periodS, By: map[string]*Total{}}
	for f := range Recorded {
		total := t.of(Fig(f))
		if wide := span[Fig(f)]; wide > 0 && total.Bins != nil {
			total.Bins.Width = wide / sketchBins
		}
	}
	return t
}

// of returns what was gathered of a figure.
func (t *Tally) of(f Fig) *Total {
	row := &Recorded[f]
	total := t.By[row.Name]
	if total == nil {
		total = &Total{}
		if row.Span > 0 {
			total.Bins = &Sketch{Width: row.Span / sketchBins}
		}
		t.By[row.Name] = total
	}
	return total
}

// Sane reports whether a tally that was read from a file can be true.
func (t *Tally) Sane() bool {
	if !(t.PeriodS > 0) || !finite(t.PeriodS, t.Any, t.Last) || t.By == nil {
		return false
	}
	for _, total := range t.By {
		if total == nil || len(total.Points) > MaxPoints || total.Bins != nil && !(total.Bins.Width > 0) ||
			!finite(total.Sum, total.Max, total.Time) {
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
		peak := v
		if row.Value != nil {
			v, peak = row.Value(&r)
		}
		total.Sum += v * dt
		total.Time += dt
		total.Max = max(total.Max, peak)
		if total.Bins != nil {
			total.Bins.Add(v, dt)
		}
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
	if t.Any > 0 {
		r.Quantiles = &Quantiles{}
	}
	peaks, notable := &Peaks{}, false
	for i := range Recorded {
		row, total := &Recorded[i], t.of(Fig(i))
		if t.Any == 0 || total.Time < unknownBelow*t.Any {
			unknown |= Of(Fig(i))
		}
		s := total.summary()
		switch {
		case row.Resource != nil:
			*row.Resource(&r.Mean), *row.Resource(&r.Peak) = s.Mean, s.Peak
			if t.Any > 0 && row.Quantiles != nil {
				*row.Quantiles(r.Quantiles) = *s.Quantiles
			}
			notable = row.series(total.Points, r.Series, peaks) || notable
		case total.Time == 0:
		case row.Record != nil:
			row.Record(r, s)
		default:
			if r.Figures == nil {
				r.Figures = map[string]Summary{}
			}
			r.Figures[row.Name] = s
		}
	}
	r.Unknown = unknown.Names()
	if notable {
		r.Peaks = peaks
	}
}

// summary makes a summary of the readings of a figure; of none it is 0.
func (t *Total) summary() Summary {
	s := Summary{Peak: t.Max, Integral: t.Sum}
	if t.Time > 0 {
		s.Mean = min(t.Max, t.Sum/t.Time) // sums round
	}
	if b := t.Bins; b != nil {
		q := func(part float64) float64 { return min(b.Quantile(part), t.Max) } // bins round up
		s.Quantiles = &Quantile{P50: q(0.5), P90: q(0.9), P95: q(0.95), P99: q(0.99), Max: t.Max}
	}
	return s
}

// series writes a resource's points into a record's series and its peaks, and reports
// whether the peaks say more than the series.
func (f *Figure) series(points series, to []rlcore.Use, peaks *Peaks) (notable bool) {
	short := func(v float64) float64 {
		if f.Fraction() {
			v = min(1, v) // sums round
		}
		return f.Round(v)
	}
	of := (*Point).mean
	if f.Held {
		of = (*Point).top
	}
	for i, v := range points.column(of) {
		*f.Resource(&to[i]) = short(v)
	}
	if f.Peaks == nil {
		return false
	}
	column := f.Peaks(peaks)
	for i, v := range points.column((*Point).top) {
		// Never under the mean of the same point, which was rounded too.
		mean := *f.Resource(&to[i])
		notable = notable || short(v) > mean+f.Notable
		*column = append(*column, max(short(v), mean))
	}
	return notable
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

// sketchBins is a Sketch's resolution.
const sketchBins = 50

// Sketch is the distribution of one figure over time, in 600 bytes however long
// the job. It counts the time in bins of equal width; a value past the last bin
// doubles the width. A bin remembers the largest value in it.
type Sketch struct {
	Width float64             // of a bin; set before the first Add
	Time  [sketchBins]float64 // s
	Top   [sketchBins]float32
	Total float64 // s
}

// Add adds dt seconds with the value v ≥ 0.
func (s *Sketch) Add(v, dt float64) {
	if !(dt > 0) || !(v >= 0) || math.IsInf(v, 0) || math.IsInf(dt, 0) || !(s.Width > 0) {
		return
	}
	for v > s.Width*sketchBins {
		s.widen()
	}
	i := min(int(v/s.Width), sketchBins-1)
	top := float32(v)
	if float64(top) < v { // no quantile of memory may fall short
		top = math.Nextafter32(top, math.MaxFloat32)
	}
	s.Time[i] += dt
	s.Top[i] = max(s.Top[i], top)
	s.Total += dt
}

func (s *Sketch) widen() {
	for i := range sketchBins {
		var t float64
		var top float32
		if 2*i < sketchBins {
			t, top = s.Time[2*i]+s.Time[2*i+1], max(s.Top[2*i], s.Top[2*i+1])
		}
		s.Time[i], s.Top[i] = t, top
	}
	s.Width *= 2
}

// Quantile returns the value that is not exceeded during the fraction q of the
// time. The answer is never under the true one, and over it by less than a bin: 1/50
// of the range that Width was set for, 1/25 of the largest value where that was
// exceeded. It is exact where a bin holds one value, as memory's plateaus do.
func (s *Sketch) Quantile(q float64) float64 {
	var sum float64
	last := 0.0
	for i, t := range s.Time {
		if t == 0 {
			continue
		}
		last = float64(s.Top[i])
		// Sums round.
		if sum += t; sum >= q*s.Total*(1-1e-12) {
			return last
		}
	}
	return last
}
