package interference

import "github.com/slurmbridge/slurmbridge/rlcore"

// Overlap is a job that shared the GPU during part of a run.
type Overlap struct {
	Profile *rlcore.Profile // nil = application unknown
	S       float64         // how long both jobs ran together, s
}

// A co-run teaches something only where each other job was present for most of the
// run or for hardly any of it; the effects of anything in between can't be separated.
const mostly, hardly = 0.7, 0.1

// CoRunners returns the jobs that shared the GPU for most of a run of runS seconds, and the mean
// fraction (0..1) of the run for which they did. It returns false if the run teaches nothing: it
// was alone, or another job was unknown or present for a part of the run that can't be separated.
func CoRunners(runS float64, others []Overlap) (with []*rlcore.Profile, part float64, ok bool) {
	for _, o := range others {
		switch share := o.S / runS; {
		case share <= hardly:
		case share < mostly || o.Profile == nil:
			return nil, 0, false
		default:
			with = append(with, o.Profile)
			part += min(share, 1)
		}
	}
	if len(with) == 0 {
		return nil, 0, false
	}
	return with, part / float64(len(with)), true
}

// CoRunSlowdown returns the slowdown while sharing of a run that took runS seconds instead of soloS and shared the GPU
// for a fraction part of it, to which the whole excess over 1 is attributed.
func CoRunSlowdown(runS, soloS, part float64) float64 { return 1 + (runS/soloS-1)/part }
