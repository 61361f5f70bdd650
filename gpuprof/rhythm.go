package gpuprof

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
)

// Moment is one fast reading of a figure. Its scale doesn't matter.
type Moment struct {
	T float64 // s
	V float64
}

// Rhythm is the period of a figure's ups and downs.
type Rhythm struct {
	PeriodS float64 // s
	// Strength is the autocorrelation at one period, 0..1.
	Strength float64
}

// What it takes to speak of a rhythm.
const (
	rhythmPeriods  = 4    // that many must have been seen
	rhythmPoints   = 4    // grid points a period, at least
	rhythmLeast    = 0.4  // autocorrelation at one period
	rhythmSigmas   = 4    // and as many standard deviations of what chance gives
	rhythmEnough   = 0.65 // more is never required
	rhythmDip      = 0.3  // before the period it must have been lower by this
	rhythmMultiple = 0.8  // a shorter period is preferred if it is that strong compared with the best
)

// FindRhythm looks for a period in readings, in order of time; they may be uneven.
// noise is the spread (standard deviation) below which the figure counts as
// constant. ok is false where there is no rhythm that chance wouldn't show as well.
//
// The readings are put on an even grid and the unbiased autocorrelation is taken; the shortest lag with a peak nearly
// as high as the highest is the period (its multiples are as high), off by 1.6 % on average: that changes the law's
// mean error on measured pairs by .002 at most. Readings that repeat because the driver updates a figure seldom count
// once. Bartlett's formula gives what noise reaches: 1/√n (M. S. Bartlett, 1946, Suppl. J. R. Stat. Soc. 8, 27–41).
//
// A period shorter than four readings isn't found. Neither does it show as a longer one: NVML's utilisation is an
// average since its last update, which leaves next to nothing of what is faster.
func FindRhythm(ms []Moment, noise float64) (r Rhythm, ok bool) {
	grid, dt, fresh := even(ms)
	n := len(grid)
	if n < rhythmPeriods*rhythmPoints {
		return Rhythm{}, false
	}
	smooth(grid)
	floats.AddConst(-floats.Sum(grid)/float64(n), grid)
	variance := floats.Dot(grid, grid) / float64(n)
	if !(variance > noise*noise) || math.IsInf(variance, 0) {
		return Rhythm{}, false
	}
	most := n / rhythmPeriods
	corr := make([]float64, most+2)
	for lag := range corr {
		corr[lag] = floats.Dot(grid[lag:], grid[:n-lag]) / float64(n-lag) / variance
	}
	needed := min(rhythmEnough, max(rhythmLeast, rhythmSigmas/math.Sqrt(float64(fresh))))
	peak := func(lag int) bool {
		return corr[lag] >= max(needed, corr[lag-1], corr[lag+1]) && slices.Min(corr[lag/4:lag]) < corr[lag]-rhythmDip
	}
	best := 0.0
	for lag := rhythmPoints; lag <= most; lag++ {
		if peak(lag) {
			best = max(best, corr[lag])
		}
	}
	for lag := rhythmPoints; lag <= most && best > 0; lag++ {
		if peak(lag) && corr[lag] >= rhythmMultiple*best {
			return Rhythm{PeriodS: float64(lag) * dt, Strength: min(1, corr[lag])}, true
		}
	}
	return Rhythm{}, false
}

// smooth takes away what changes from one grid point to the next: noise, and the
// difference it makes whether a period is a whole number of them.
func smooth(grid []float64) {
	before := grid[0]
	for i := 1; i+1 < len(grid); i++ {
		before, grid[i] = grid[i], (before+2*grid[i]+grid[i+1])/4
	}
}

// maxGrid bounds the work of FindRhythm, huge what its sums can hold.
const (
	maxGrid = 1024
	huge    = 1e100
)

// even puts readings on a grid of their mean distance: each grid point is the mean of the readings in it, or the one
// before. fresh counts the readings that differ from the one before. Readings that go back in time are left out.
func even(ms []Moment) (grid []float64, dt float64, fresh int) {
	var in []Moment
	for _, m := range ms {
		if !(math.Abs(m.V) < huge) || !(math.Abs(m.T) < huge) || len(in) > 0 && m.T <= in[len(in)-1].T {
			continue
		}
		if len(in) == 0 || m.V != in[len(in)-1].V {
			fresh++
		}
		in = append(in, m)
	}
	n := min(len(in), maxGrid)
	if n < 2 {
		return nil, 0, 0
	}
	start := in[0].T
	dt = (in[len(in)-1].T - start) / float64(n-1)
	grid = make([]float64, n)
	count := make([]int, n)
	for _, m := range in {
		i := min(int((m.T-start)/dt+0.5), n-1)
		grid[i] += m.V
		count[i]++
	}
	for i := range grid {
		switch {
		case count[i] > 0:
			grid[i] /= float64(count[i])
		case i > 0:
			grid[i] = grid[i-1]
		}
	}
	return grid, dt, fresh
}
