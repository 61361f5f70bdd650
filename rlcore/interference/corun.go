package interference

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Overlap is a job that shared the GPU during part of a run.
type Overlap struct {
	Profile    *rlcore.Profile // nil = application unknown
	FromS, ToS float64         // when it was there, s from the run's start
}

// Company is the applications that shared the GPU of a run at the same time.
type Company struct {
	With []*rlcore.Profile // one for each job, in the order of their identities
	Part float64           // of the run for which they did, 0..1
}

// hardly is the part of a run below which it says nothing of a company.
const hardly = 0.1

// Companies returns the companies of a run of runS seconds that lasted for more than hardly, and the part of the run
// for which it shared its GPU at all, 0..1. A run next to an unknown job for more than hardly has none.
//
// All companies of a run count, however often they changed. A run that takes longer than its co-runners meets further
// jobs: if only runs with the same co-runners nearly all along taught something, long runs would be missing, and
// slowdowns would be learned too low.
func Companies(runS float64, others []Overlap) (all []Company, part float64) {
	var cuts []float64
	for _, o := range others {
		cuts = append(cuts, o.FromS, o.ToS)
	}
	slices.Sort(cuts)
	unknown := 0.0
	for i := 1; i < len(cuts); i++ {
		from, to := cuts[i-1], cuts[i]
		length := (min(to, runS) - max(from, 0)) / runS
		there := others[:0:0]
		for _, o := range others {
			if o.FromS <= from && to <= o.ToS {
				there = append(there, o)
			}
		}
		switch {
		case !(length > 0) || len(there) == 0:
			continue
		case slices.ContainsFunc(there, func(o Overlap) bool { return o.Profile == nil }):
			unknown += length
		default:
			all = add(all, there, length)
		}
		part += length
	}
	if unknown > hardly {
		return nil, 0
	}
	return slices.DeleteFunc(all, func(c Company) bool { return c.Part <= hardly }), part
}

// add adds a part of a run, for which known jobs were there, to the companies of the run.
func add(all []Company, there []Overlap, part float64) []Company {
	c := Company{Part: part}
	for _, o := range there {
		c.With = append(c.With, o.Profile)
	}
	slices.SortFunc(c.With, func(a, b *rlcore.Profile) int { return a.Identity().Compare(b.Identity()) })
	for i := range all {
		same := func(a, b *rlcore.Profile) bool { return a.Identity() == b.Identity() }
		if slices.EqualFunc(all[i].With, c.With, same) {
			all[i].Part += part
			return all
		}
	}
	return append(all, c)
}

// CoRunSlowdown returns the slowdown while sharing of a run that took runS seconds instead of soloS and shared the GPU
// for a fraction part of it, to which the whole excess over 1 is attributed.
func CoRunSlowdown(runS, soloS, part float64) float64 { return 1 + (runS/soloS-1)/part }
