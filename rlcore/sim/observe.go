package sim

import (
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
	"github.com/slurmbridge/slurmbridge/rlcore/sim/site"
)

// part notes how long member k of device g, which leaves, was together with each other member, and returns its
// co-runners.
func (s *Sim) part(g, k int) []interference.Overlap {
	members := s.devs[g].members
	leaves := &members[k]
	for i := range members {
		if other := &members[i]; i != k && s.cfg.Observer != nil {
			fromS := max(leaves.startS, other.startS)
			meet := func(m, with *member) {
				m.met = append(m.met, interference.Overlap{
					Profile: s.jobs[with.job].Profile, FromS: fromS - m.startS, ToS: s.now - m.startS,
				})
			}
			meet(leaves, other)
			meet(other, leaves)
		}
	}
	return leaves.met
}

// learn reports to the site the end of job i on GPU g, after believedS of predicted solo work, and its co-runners.
// Waiting jobs then get new expectations.
func (s *Sim) learn(g, i int, believedS float64, met []interference.Overlap) {
	j := &s.jobs[i]
	r := site.Run{
		Job: &j.Job, Known: j.known, Card: s.cfg.card(g), Spec: &s.devs[g].spec, RanS: j.ended - j.started,
		BelievedS: believedS, Others: met,
	}
	if !s.site.Ended(&r) {
		return
	}
	var changed []schedule.Entry
	for k, w := range s.wait {
		if x := &s.jobs[w]; x.known != nil && x.known.Identity() == j.known.Identity() {
			s.know(w)
			s.state.Pending[k].Profile, s.state.Pending[k].ByModel = x.Profile, x.ByModel
			changed = append(changed, x.ForSchedule())
		}
	}
	if len(changed) > 0 {
		s.plain.Wait(changed, s.now)
	}
}
