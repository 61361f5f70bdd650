package sim

import (
	"cmp"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Observer is told of a co-run as a site gets to know it: members[0] has ended and
// was slowed by slowdowns[0], where the Predictor had foreseen foreseen[0]; how the
// others fared isn't known (NaN). The slices are the observer's.
type Observer func(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdowns, foreseen []float64)

// meet counts dt s that the members of device g have spent together.
func (s *Sim) meet(d *device, dt float64) {
	if s.cfg.Observer == nil {
		return
	}
	if d.met == nil {
		d.met = map[[2]int]float64{}
	}
	for i := range d.members {
		for k := range d.members {
			if i != k {
				d.met[[2]int{d.members[i].job, d.members[k].job}] += dt
			}
		}
	}
}

// forgetMet drops whom job i met on device g: it lost that run.
func (s *Sim) forgetMet(g, i int) {
	for pair := range s.devs[g].met {
		if pair[0] == i {
			delete(s.devs[g].met, pair)
		}
	}
}

// report tells the observer of a job that has ended; est is how far it was
// believed to have come.
func (s *Sim) report(g, i int, est float64) {
	d := &s.devs[g]
	if s.cfg.Observer == nil || len(d.met) == 0 {
		return
	}
	j := &s.jobs[i]
	type other struct {
		job int
		dt  float64
	}
	var others []other
	for pair, dt := range d.met {
		if pair[0] == i {
			others = append(others, other{pair[1], dt})
			delete(d.met, pair)
		}
	}
	slices.SortFunc(others, func(a, b other) int { return cmp.Compare(a.job, b.job) })
	run := j.ended - j.started
	beside := make([]rlcore.Overlap, len(others))
	for k, o := range others {
		beside[k] = rlcore.Overlap{Profile: s.jobs[o.job].Profile, S: o.dt}
	}
	with, part, ok := rlcore.CoRunners(run, beside)
	if !ok || j.Profile == nil {
		return
	}
	members := append([]*rlcore.Profile{j.Profile}, with...)
	slow := make([]float64, len(members))
	for k := range slow {
		slow[k] = math.NaN()
	}
	foreseen := slices.Clone(slow)
	slow[0] = rlcore.CoRunSlowdown(run, j.Truth.DurationS, part)
	foreseen[0] = rlcore.CoRunSlowdown(run, est, part)
	s.cfg.Observer(&d.spec, members, slow, foreseen)
}
