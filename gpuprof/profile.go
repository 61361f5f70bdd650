package gpuprof

import (
	"errors"
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// ErrNoSeries says that a record has nothing that a profile could be made of.
var ErrNoSeries = errors.New("the record has no series")

// ProfileOf makes a profile of one solo run. Returns ErrNoSeries.
func ProfileOf(app string, r *Record) (*rlcore.Profile, error) {
	if len(r.Series) == 0 || !(r.DurationS() > 0) {
		return nil, ErrNoSeries
	}
	p := &rlcore.Profile{
		App: app, DurationS: r.DurationS(), PeriodS: r.PeriodS, Series: append([]rlcore.Use(nil), r.Series...),
		Runs: 1, Source: "measured",
	}
	return p, p.Validate()
}

// Merge joins what was known of an application with one more solo run: duration
// and its spread over all runs, and at each part of the run the mean of what flows
// and the largest memory of the two, so that a group fits even beside the more
// demanding run.
func Merge(old, run *rlcore.Profile) *rlcore.Profile {
	if old == nil || old.Runs == 0 {
		return run // measured beats imported
	}
	n := float64(old.Runs)
	p := &rlcore.Profile{App: old.App, Runs: old.Runs + 1, Source: run.Source, StepS: old.StepS}
	p.DurationS = (old.DurationS*n + run.DurationS) / (n + 1)
	// Welford's update of the variance over the runs.
	variance := old.DurationSD * old.DurationSD * math.Max(n-1, 0)
	variance += (run.DurationS - old.DurationS) * (run.DurationS - p.DurationS)
	p.DurationSD = math.Sqrt(math.Max(variance, 0) / n)
	points := min(max(len(old.Series), len(run.Series)), MaxPoints)
	p.PeriodS = p.DurationS / float64(points)
	p.Series = make([]rlcore.Use, points)
	for i := range p.Series {
		// The same part of each run, whatever its length.
		part := (float64(i) + 0.5) / float64(points)
		a, b := old.At(part*old.DurationS), run.At(part*run.DurationS)
		mix := func(x, y float64) float64 { return (x*n + y) / (n + 1) }
		p.Series[i] = rlcore.Use{
			GPU: mix(a.GPU, b.GPU), Core: mix(a.Core, b.Core), PCIeMBps: mix(a.PCIeMBps, b.PCIeMBps),
			MemMiB: max(a.MemMiB, b.MemMiB),
		}
	}
	return p
}
