package sim

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
	"github.com/slurmbridge/slurmbridge/rlcore/sim/site"
)

// meeting is two jobs on one device, by index in Sim.jobs, from the first one's view.
type meeting struct{ job, other int }

// meet adds dt s to the time that the members of device g have spent together.
func (s *Sim) meet(d *device, dt float64) {
	if s.cfg.Observer == nil {
		return
	}
	if d.met == nil {
		d.met = map[meeting]float64{}
	}
	for i := range d.members {
		for k := range d.members {
			if i != k {
				d.met[meeting{d.members[i].job, d.members[k].job}] += dt
			}
		}
	}
}

// took returns which jobs job i met on device g, and forgets them.
func (s *Sim) took(g, i int) (others []interference.Overlap) {
	d := &s.devs[g]
	var met []meeting
	for m := range d.met {
		if m.job == i {
			met = append(met, m)
		}
	}
	slices.SortFunc(met, func(a, b meeting) int { return cmp.Compare(a.other, b.other) })
	for _, m := range met {
		others = append(others, interference.Overlap{Profile: s.jobs[m.other].Profile, S: d.met[m]})
		delete(d.met, m)
	}
	return others
}

// learn tells the site of job i, which has ended on GPU g after believedS of solo work as predicted. Waiting jobs are
// then what the site expects of them.
func (s *Sim) learn(g, i int, believedS float64) {
	j := &s.jobs[i]
	r := site.Run{
		Job: &j.Job, Known: j.known, Card: s.cfg.card(g), Spec: &s.devs[g].spec, RanS: j.ended - j.started,
		BelievedS: believedS, Others: s.took(g, i),
	}
	if !s.site.Ended(&r) {
		return
	}
	var changed []schedule.Job
	for k, w := range s.wait {
		if x := &s.jobs[w]; x.known != nil && x.known.Identity() == j.known.Identity() {
			s.know(w)
			s.state.Pending[k].Profile, s.state.Pending[k].Cards = x.Profile, x.Cards
			changed = append(changed, x.Plainly())
		}
	}
	if len(changed) > 0 {
		s.plain.Wait(changed, s.now)
	}
}
