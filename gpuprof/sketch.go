package gpuprof

import "math"

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
