package sim

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
)

// latestEnd returns when a run of the job that starts at startS is ended at its time limit; +Inf = never. Slurm checks
// about every 30 s; here it is exact. A job that gets back what sharing costs it isn't ended at a limit within which it
// would end alone, after aloneS.
func (cfg *Config) latestEnd(j *Arrival, aloneS, startS float64) float64 {
	if j.LimitS > 0 && !(cfg.ExtendLimit && !j.LimitFixed && aloneS < j.LimitS) {
		return startS + j.LimitS
	}
	return math.Inf(1)
}

// overrun returns the member of device d that is past its limit, −1 if there is none.
func (d *device) overrun(now float64) int {
	for k := range d.members {
		if d.members[k].latestS <= now {
			return k
		}
	}
	return -1
}

// kill ends a running job at its limit. Its work is lost; how far it had come is unknown to a site, so nothing is
// learned from it.
func (s *Sim) kill(g, k int) {
	m := &s.devs[g].members[k]
	j := &s.jobs[m.job]
	s.dropMeetings(g, m.job)
	j.timedOut = true
	s.over(m.job, m.done)
	s.plain.Ended(s.now, schedule.End{ID: j.ID})
	s.remove(g, k)
}

// over records that job i has ended, with what of it was done, s of solo work.
func (s *Sim) over(i int, done float64) {
	s.jobs[i].ended, s.jobs[i].done = s.now, done
	s.left--
}
