package sim

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// Observer receives a co-run as a site would observe it: members[0] has ended and was slowed by slowdown, where the
// Predictor had predicted predicted. The slice is the observer's to keep.
type Observer func(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdown, predicted float64)

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

// observe reports job i, which has ended, to the observer; est is its predicted progress.
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
	others := make([]interference.Overlap, len(met))
	for k, m := range met {
		others[k] = interference.Overlap{Profile: s.jobs[m.other].Profile, S: d.met[m]}
		delete(d.met, m)
	}
	run := j.ended - j.started
	with, part, ok := interference.CoRunners(run, others)
	if !ok || j.Profile == nil {
		return
	}
	members := append([]*rlcore.Profile{j.Profile}, with...)
	slow := interference.CoRunSlowdown(run, s.truth(i, g).DurationS, part)
	s.cfg.Observer(&d.spec, members, slow, interference.CoRunSlowdown(run, est, part))
}
