package sim

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// shares is what a running job holds, of 100: five of them fill a GPU.
const shares = 20

// State returns what the decision that is due may depend on; valid until Start.
func (s *Sim) State() *rlcore.State {
	if s.stateS == s.now {
		return &s.state
	}
	s.stateS, s.state.NowS, s.begun = s.now, s.now, nil
	for i := range s.state.Pending {
		j := &s.state.Pending[i]
		j.PlainEndS, j.EarlyS = s.plain.EndS(j.ID), s.plain.EarlyS(j.ID)
		j.PlainSlot = s.plain.Slot(j.ID)
	}
	s.state.PlainFreeS = s.plain.FreeS(s.state.PlainFreeS, s.now)
	for g := range s.devs {
		d, gpu := &s.devs[g], &s.state.GPUs[g]
		if d.inState && len(d.members) == 0 {
			continue
		}
		s.sync(g)
		d.inState = true
		gpu.Running = gpu.Running[:0]
		for i := range d.members {
			m := &d.members[i]
			j := &s.jobs[m.job]
			own, done := s.onGPU(j, g), m.done
			if s.cfg.Predictor != nil && own.Profile != nil {
				done = own.Profile.Believed(m.est)
			}
			r := rlcore.Running{
				Job: own, DoneS: done, ElapsedS: s.now - m.startS, Shares: shares, Whole: j.NoShare || j.Profile == nil,
			}
			r.PlainEndS, r.EarlyS = s.plain.EndS(j.ID), s.plain.EarlyS(j.ID)
			gpu.Running = append(gpu.Running, r)
		}
	}
	return &s.state
}

// estimate sets the slowdowns of device g's members as the Predictor has them.
func (s *Sim) estimate(g int) {
	d := &s.devs[g]
	sc := &s.scratch
	if s.cfg.Predictor == nil || len(d.members) == 0 {
		return
	}
	sc.profiles = sc.profiles[:0]
	for i := range d.members {
		p := s.jobs[d.members[i].job].On(&s.state.GPUs[g])
		if p == nil { // it runs alone
			for k := range d.members {
				d.members[k].estSlow = 1
			}
			return
		}
		sc.profiles = append(sc.profiles, p)
	}
	sc.pred = slices.Grow(sc.pred[:0], len(d.members))[:len(d.members)]
	if pacer, ok := s.cfg.Predictor.(rlcore.Pacer); ok {
		sc.at = sc.at[:0]
		for i := range d.members {
			sc.at = append(sc.at, d.members[i].est)
		}
		pacer.Pace(sc.pred, &d.spec, sc.profiles, sc.at)
	} else {
		s.cfg.Predictor.Predict(sc.pred, &d.spec, sc.profiles)
	}
	for i := range d.members {
		d.members[i].estSlow = max(1, sc.pred[i].Slowdown)
	}
}
