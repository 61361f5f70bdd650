package sim

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
)

// End is how a job ended.
type End uint8

// The ends of a job. Slurm's states for them are COMPLETED, TIMEOUT and DEADLINE.
const (
	Completed  End = iota
	AtLimit        // its run was ended at its time limit
	AtDeadline     // it was ended at its deadline, or cancelled when it couldn't meet it any more
)

// String implements fmt.Stringer.
func (e End) String() string {
	return [...]string{Completed: "completed", AtLimit: "at its limit", AtDeadline: "at its deadline"}[e]
}

// latestEnd returns the latest end of a run of the job that starts at startS, and what ends it;
// +Inf = never. Slurm checks about every 30 s; here it is exact. A job that gets back what sharing
// costs it isn't ended at a limit within which it would end alone, after aloneS.
func (cfg *Config) latestEnd(j *Arrival, aloneS, startS float64) (float64, End) {
	at, end := math.Inf(1), Completed
	if j.LimitS > 0 && !(cfg.ExtendLimit && !j.LimitFixed && aloneS < j.LimitS) {
		at, end = startS+j.LimitS, AtLimit
	}
	if j.DeadlineS > 0 && j.DeadlineS < at {
		at, end = j.DeadlineS, AtDeadline
	}
	return at, end
}

// latestStart returns the latest start with which the job meets its deadline, +Inf without one.
// Slurm counts with the limit; without a limit it may start until the deadline.
func latestStart(j *rlcore.Job) float64 {
	if j.DeadlineS == 0 {
		return math.Inf(1)
	}
	return j.DeadlineS - j.LimitS
}

// overrun returns the member of device d that is past its limit or deadline, −1 if there is none.
func (d *device) overrun(now float64) int {
	for k := range d.members {
		if d.members[k].latestS <= now {
			return k
		}
	}
	return -1
}

// kill ends a running job at its limit or deadline. Its work is lost; how far it had come is
// unknown to a site, so nothing is learned from it.
func (s *Sim) kill(g, k int) {
	m := &s.devs[g].members[k]
	j := &s.jobs[m.job]
	_, end := s.cfg.latestEnd(&j.Arrival, s.truth(m.job, g).DurationS, m.startS)
	s.dropMeetings(g, m.job)
	s.over(m.job, end, m.done)
	s.plain.Ended(s.now, schedule.End{ID: j.ID})
	s.remove(g, k)
}

// over records how job i ended, with what of it was done, s of solo work.
func (s *Sim) over(i int, end End, done float64) {
	j := &s.jobs[i]
	j.ended, j.end, j.done = s.now, end, done
	s.left--
}

// missed cancels job i, which waits and can't meet its deadline any more.
func (s *Sim) missed(i int) {
	j := &s.jobs[i]
	j.started, j.gpu = s.now, -1
	s.over(i, AtDeadline, 0)
	s.plain.Remove(s.now, j.ID)
}

// expire cancels the pending jobs that can't meet their deadlines any more. It comes after
// all that happens at the same instant, so that a job may start at the last moment.
func (s *Sim) expire() {
	s.expiryS = math.Inf(1)
	cancelled := s.scratch.expired[:0]
	for p := range s.state.Pending {
		latest := latestStart(&s.state.Pending[p])
		if latest > s.now {
			s.expiryS = min(s.expiryS, latest)
			continue
		}
		cancelled = append(cancelled, p)
		s.missed(s.wait[p])
	}
	s.scratch.expired = cancelled
	if len(cancelled) > 0 {
		s.dequeue(cancelled)
		s.decideAll() // all windows have changed
	}
}
