package gpuprof

import (
	"errors"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Errors of ProfileOf.
var (
	// ErrNoSeries says that a record has nothing that a profile could be made of.
	ErrNoSeries = errors.New("the record has no series")
	// ErrPartial says that too much of the run was not seen, its end or what it did.
	ErrPartial = errors.New("the record misses too much of the run")
	// ErrWithoutMPS says that the run was to share its GPU through MPS, and a process of it didn't.
	ErrWithoutMPS = errors.New("a process computed without MPS")
	// ErrFaulted says that its MPS server failed under the run.
	ErrFaulted = errors.New("the MPS server failed under the run")
)

// missable is the part of a run that may lack samples in a record that becomes a profile.
const missable = 0.1

// ProfileOf makes a profile of one solo run. A run without measured GPU use or memory makes none: a 0 that wasn't
// measured would let any job share with it. Returns ErrNoSeries, ErrPartial, ErrFaulted and ErrWithoutMPS.
func ProfileOf(app string, r *Record) (*rlcore.Profile, error) {
	if len(r.Series) == 0 || !(r.DurationS() > 0) {
		return nil, ErrNoSeries
	}
	if !r.MPSFault.IsZero() {
		return nil, ErrFaulted
	}
	if r.WithoutMPS {
		return nil, ErrWithoutMPS
	}
	if r.NoEpilog || r.MissedS > missable*r.DurationS() || r.unknown(FigGPU) || r.unknown(FigMem) {
		return nil, ErrPartial
	}
	p := &rlcore.Profile{
		App: app, DurationS: r.DurationS(), PeriodS: r.PeriodS, Series: append([]rlcore.Use(nil), r.Series...),
		Processes: r.Processes, ProcessMiB: r.ProcessMiB, Runs: 1, Source: "measured",
	}
	if p.Peak().MemMiB >= mostOfLimit*r.MemLimitMiB {
		p.HeldMiB = r.MemLimitMiB
	}
	return p, p.Validate()
}

// mostOfLimit is the part of a limit from which on a run may have taken what it could get: JAX takes three quarters.
const mostOfLimit = 0.7

func (r *Record) unknown(f Fig) bool { return slices.Contains(r.Unknown, Recorded[f].Name) }

// Merge joins what was known of an application with one more solo run, on a card of cardMiB (0 = not known): duration
// and its spread over all runs, and at each part of the run the mean of what flows and the largest memory of the two,
// so that a group fits even with the more demanding run. Where one of them took the card's memory at its start and the
// other made do with a limit, the memory is the other's.
func Merge(old, run *rlcore.Profile, cardMiB float64) *rlcore.Profile {
	if old == nil || old.Runs == 0 {
		return run // measured beats imported
	}
	memory := []*rlcore.Profile{old, run}
	switch {
	case run.HeldMiB > 0 && old.HeldMiB == 0 && old.Preallocating(cardMiB):
		memory = memory[1:]
	case old.HeldMiB > 0 && run.HeldMiB == 0 && run.Preallocating(cardMiB):
		memory = memory[:1]
	}
	n := float64(old.Runs)
	p := &rlcore.Profile{App: old.App, Runs: old.Runs + 1, Source: run.Source}
	p.AddPast(slices.Concat(old.Past, run.Past)...)
	p.Processes = max(old.Processes, run.Processes)
	p.HeldMiB = memory[0].HeldMiB
	for _, m := range memory {
		p.ProcessMiB = max(p.ProcessMiB, m.ProcessMiB)
		p.HeldMiB = min(p.HeldMiB, m.HeldMiB) // what one took without a limit is its need
	}
	p.DurationS = (old.DurationS*n + run.DurationS) / (n + 1)
	// Welford's update of the variance over the runs.
	variance := old.DurationSD * old.DurationSD * math.Max(n-1, 0)
	variance += (run.DurationS - old.DurationS) * (run.DurationS - p.DurationS)
	p.DurationSD = math.Sqrt(math.Max(variance, 0) / n)
	points := min(max(len(old.Series), len(run.Series)), MaxPoints)
	p.PeriodS = p.DurationS / float64(points)
	p.Series = make([]rlcore.Use, points)
	for i := range p.Series {
		// The same part of each run, regardless of its length.
		part := (float64(i) + 0.5) / float64(points)
		a := old.At(part * old.DurationS)
		b := run.At(part * run.DurationS)
		for f := range resources {
			v := (*f.Resource(&a)*n + *f.Resource(&b)) / (n + 1)
			if f.Held {
				v = 0
				for _, m := range memory {
					v = max(v, f.most(m, i, points))
				}
			}
			*f.Resource(&p.Series[i]) = v
		}
	}
	return p
}

// most is the figure's largest value during part i of n of a run: a single moment of the part may show less.
func (f *Figure) most(p *rlcore.Profile, i, n int) float64 {
	from := float64(i) / float64(n) * p.DurationS
	to := float64(i+1) / float64(n) * p.DurationS
	first := p.At(from)
	last := p.At(to)
	most := max(*f.Resource(&first), *f.Resource(&last))
	for k := int(from / p.PeriodS); k < len(p.Series) && float64(k)*p.PeriodS < to; k++ {
		most = max(most, *f.Resource(&p.Series[k]))
	}
	return most
}
