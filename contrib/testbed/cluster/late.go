package cluster

import "github.com/slurmbridge/slurmbridge/rlcore"

// Lateness is how a run compares with plain Slurm's of the same jobs, each with a whole GPU to
// itself, by the jobs that did all their work in both.
type Lateness struct {
	// Later counts the jobs that ended later than on plain Slurm by more than Pause.
	Later int `json:"jobs_later"`
	// Late counts the jobs among them that ended later by more than the default grace, too, a tenth
	// of their solo time.
	Late int `json:"jobs_late"`
	// WorstS is by how much the latest ended later, GPU seconds; 0 where none did.
	WorstS float64 `json:"late_worst_s"`
}

// Pause is the difference between two runs that says nothing: about what Slurm's own pause
// before a job takes, s by the clock on the wall.
const Pause = 1.0

// Compare counts a job that takes soloS alone and ended at endS, on plain Slurm at plainS. Time
// passes scale times as fast.
func (l *Lateness) Compare(endS, plainS, soloS, scale float64) {
	by := endS - plainS
	l.WorstS = max(l.WorstS, by)
	if by > Pause*scale {
		l.Later++
		if by > rlcore.DefaultGrace*soloS {
			l.Late++
		}
	}
}
