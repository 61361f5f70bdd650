package sim

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// Observer learns of runs what a site would; see interference.Model.
type Observer interface {
	// Observe: members[0] has ended and was slowed by slowdown, where the Predictor had predicted predicted. The slice is
	// the observer's to keep.
	Observe(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdown, predicted float64)
	// Doubt and Reassure: the victim's contract was broken, or kept, next to these.
	Doubt(victim rlcore.Identity, others []rlcore.Identity)
	Reassure(victim rlcore.Identity, others []rlcore.Identity)
}

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

// dropMeetings forgets which jobs job i met on device g, since it lost that run.
func (s *Sim) dropMeetings(g, i int) {
	for m := range s.devs[g].met {
		if m.job == i {
			delete(s.devs[g].met, m)
		}
	}
}

// observe reports job i, which has ended, to the observer as slurmbridge/history judges a run; est is its predicted
// progress.
func (s *Sim) observe(g, i int, est float64) {
	d := &s.devs[g]
	if s.cfg.Observer == nil || len(d.met) == 0 {
		return
	}
	j := &s.jobs[i]
	var met []meeting
	for m := range d.met {
		if m.job == i {
			met = append(met, m)
		}
	}
	slices.SortFunc(met, func(a, b meeting) int { return cmp.Compare(a.other, b.other) })
	overlaps := make([]interference.Overlap, len(met))
	var others []rlcore.Identity
	for k, m := range met {
		other := s.jobs[m.other].Profile
		overlaps[k] = interference.Overlap{Profile: other, S: d.met[m]}
		if other != nil {
			others = append(others, other.Identity())
		}
		delete(d.met, m)
	}
	p := s.expected(i, g)
	if p == nil || len(met) == 0 {
		return
	}
	run := j.ended - j.started
	contract := cmp.Or(j.MaxSlowdown, s.cfg.MaxSlowdown)
	if contract > 0 && run > contract*p.LongS() {
		s.cfg.Observer.Doubt(p.Identity(), others)
	}
	with, part, ok := interference.CoRunners(run, overlaps)
	soloS, tells := p.SlowdownBy()
	if !ok || !tells {
		return
	}
	members := append([]*rlcore.Profile{p}, with...)
	s.cfg.Observer.Observe(&d.spec, members, interference.CoRunSlowdown(run, soloS, part),
		interference.CoRunSlowdown(run, est, part))
	if contract > 0 && run <= contract*p.LongS() {
		s.cfg.Observer.Reassure(p.Identity(), others)
	}
}
