package rlcore

// Overlap is a job that was on the same GPU during some of a run.
type Overlap struct {
	Profile *Profile // nil = its application isn't known
	S       float64  // how long the two were there together, s
}

// A run tells something of who was beside it when each other was there for most
// of it or for hardly any of it: what lies between can't be told apart.
const mostly, hardly = 0.7, 0.1

// Company says beside whom a run of runS seconds was, for learning from it: those
// who were there for most of it, and the mean part of the run (0..1) that they
// were there. false: it was alone, or somebody was there for a part of it that can't be
// told apart, or isn't known.
func Company(runS float64, others []Overlap) (with []*Profile, part float64, ok bool) {
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

// Excess is the slowdown while in company of a run that took runS seconds instead of
// soloS and had company for a part of it: what exceeds 1 is put down to that part.
func Excess(runS, soloS, part float64) float64 { return 1 + (runS/soloS-1)/part }
