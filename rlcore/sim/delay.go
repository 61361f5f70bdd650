package sim

import "slices"

// rounding is by how much sums of times may fall short of what they add up to, s.
const rounding = 1e-6

// advance lets the time until t pass.
func (s *Sim) advance(t float64) {
	dt := t - s.now
	if dt <= 0 {
		return
	}
	s.delay(dt)
	s.now = t
}

// delay counts dt s for every pending job that could have had a GPU which a
// decision left idle, once however many there are; the bridge counts likewise.
func (s *Sim) delay(dt float64) {
	if s.waiting == 0 {
		return
	}
	idle := s.scratch.idle[:0]
	for g := range s.devs {
		if s.devs[g].waits {
			idle = append(idle, g)
		}
	}
	s.scratch.idle = idle
	for p := range s.state.Pending {
		j := &s.state.Pending[p]
		if !slices.ContainsFunc(idle, j.MayUse) {
			continue
		}
		j.DelayedS += dt
		if j.DelayedS > s.cfg.MaxDelayS-rounding {
			j.DelayedS = max(j.DelayedS, s.cfg.MaxDelayS)
		}
	}
}

// leave notes that a decision left GPU g as it is. Where it is idle, nothing may
// ever happen that makes the guard look again: it is asked once more as soon as a
// job of its window has been delayed for MaxDelayS.
func (s *Sim) leave(g int) {
	d := &s.devs[g]
	if len(d.members) > 0 {
		return
	}
	d.waits = true
	s.waiting++
	for _, p := range s.window(g) {
		if left := s.cfg.MaxDelayS - s.state.Pending[p].DelayedS; left > 0 {
			d.wakeS = min(d.wakeS, s.now+max(left, rounding))
		}
	}
}
