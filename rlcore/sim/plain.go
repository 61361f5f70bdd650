package sim

// lateBy is the part of its own solo time by which a job must end after its plain end to
// count as late.
const lateBy = 0.1

// expect adds job i to the plain schedules.
func (s *Sim) expect(i int) {
	j := &s.jobs[i]
	s.plain.Add(&j.Job, s.now)
	truth := j.Job
	truth.Profile = j.Truth
	s.truly.Add(&truth, s.now)
}

// believed is how much solo work the site believes a member to have done, s.
func (s *Sim) believed(m *member) float64 {
	if s.cfg.Predictor != nil {
		return m.est
	}
	return m.done
}

// promise writes into the State what plain Slurm would have done.
func (s *Sim) promise() {
	for i := range s.state.Pending {
		j := &s.state.Pending[i]
		j.PlainEndS = s.plain.EndS(j.ID)
	}
	s.state.PlainFreeS = s.plain.FreeS(s.state.PlainFreeS, s.now)
}

// Late returns by how many of its own solo times the job ended after its plain end; 0
// where it ended before.
func (o *Outcome) Late() float64 { return max(0, (o.EndS-o.PlainEndS)/o.SoloS) }

// Late returns which part of the jobs ended after their plain end by more than a tenth of
// their solo time, 0..1, and the most that one did, in its own solo times. Jobs that were
// ended early aren't late.
func (r *Result) Late() (part, worst float64) {
	for i := range r.Jobs {
		o := &r.Jobs[i]
		if o.Ended != Completed {
			continue
		}
		late := o.Late()
		worst = max(worst, late)
		if late > lateBy+rounding {
			part += 1 / float64(len(r.Jobs))
		}
	}
	return part, worst
}
