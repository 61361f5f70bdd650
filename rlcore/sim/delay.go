package sim

import "slices"

// rounding is by how much sums of times may fall short, s.
const rounding = 1e-6

// sumError is by how much sums of times may be off, as a part of the time.
const sumError = 1e-12

// advance moves the clock to t.
func (s *Sim) advance(t float64) {
	dt := t - s.now
	if dt <= 0 {
		return
	}
	s.delay(dt)
	s.countVetoes(dt)
	s.now = t
}

// delay adds dt s to the delay of every pending job that may use a GPU which a
// decision left idle, once however many there are, as the bridge does.
func (s *Sim) delay(dt float64) {
	var idle []int
	for g := range s.devs {
		if s.devs[g].leftIdle {
			idle = append(idle, g)
		}
	}
	if len(idle) == 0 {
		return
	}
	for p := range s.state.Pending {
		j := &s.state.Pending[p]
		kept := s.turns.pending > 0 && j.StartS() > 0 // the idle GPUs are other jobs' turn
		if kept || !slices.ContainsFunc(idle, j.MayUse) {
			continue
		}
		j.DelayedS += dt
		if j.DelayedS > s.cfg.MaxDelayS-rounding {
			j.DelayedS = max(j.DelayedS, s.cfg.MaxDelayS)
		}
	}
}

// leave records that a decision left GPU g as it is. If it is idle, possibly no event will ever make a decision due for
// it, so one is due after a job of its window has been delayed for MaxDelayS.
func (s *Sim) leave(g int) {
	d := &s.devs[g]
	if len(d.members) > 0 {
		return
	}
	d.leftIdle = true
	for _, p := range s.window(g) {
		if left := s.cfg.MaxDelayS - s.state.Pending[p].DelayedS; left > 0 {
			d.wakeS = min(d.wakeS, s.now+max(left, rounding))
		}
	}
}
